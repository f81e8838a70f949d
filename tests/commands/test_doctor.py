"""`neli doctor`: what each check finds on healthy and broken hosts, and the remedy it gives."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import Result

from neli_router import Config, Layout, Member
from neli_router.agent.wire import PeersView, PeerView
from neli_router.commands.doctor import _links
from neli_router.commands.measurements import (
    Diagnosis,
    HostTiming,
    Trips,
    judge_clock,
    judge_digests,
    judge_expiry,
    judge_lease,
    measure_host,
    measure_trips,
    percentile,
)
from neli_router.config.protocols import Induction
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.drivers.open import open_ledger
from tests.support.agents.running import STEADY, TOKEN, Running, configured, on_both_sockets, running
from tests.support.commands import neli
from tests.support.servers.process import free_port
from tests.support.waiting import PATIENCE, beside, until

LONG_ENOUGH = "with a lease of at least 3 s"
NONE_YET = "there is none yet; the first member makes it, if it may"


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an agent may answer late. Tests do not need a full second of clock readings."""
    monkeypatch.setattr("neli_router.commands.doctor.ANSWER_MAX", PATIENCE)
    monkeypatch.setattr(measure_host, "__defaults__", (0.05,))


def run(*arguments: str, ledger: Path | str) -> Result:
    address = ledger if isinstance(ledger, str) else f"sqlite://{ledger}"
    return neli("doctor", "--ledger", address, "--socket", "/nowhere/agent.sock", *arguments)


def findings(*arguments: str, ledger: Path | str) -> tuple[int, dict[str, dict[str, str]]]:
    result = run("--output", "json", *arguments, ledger=ledger)
    return result.exit_code, {finding["name"]: finding for finding in json.loads(result.stdout)}


def found_of(name: str, *arguments: str, ledger: Path | str = "memory://jobs") -> tuple[str, str]:
    """The verdict of one check, and what it found."""
    found = findings(*arguments, ledger=ledger)[1][name]
    return found["verdict"], found["found"]


def host(*, overshoot: float = 0.001, rate_error: float = 0.0) -> HostTiming:
    return HostTiming(0.0001, overshoot, rate_error, 0.0)


def trips(p99: float) -> Trips:
    return Trips(p99 / 2, p99, 200)


def test_every_check_is_made_and_nothing_is_left_behind(tmp_path: Path) -> None:
    code, found = findings("--lease", "60", ledger=tmp_path / "jobs.db")
    names = "configuration place space ledger clock scheduling trips lease agent witness"
    assert (0, names) == (code, " ".join(found))
    assert ("fine", NONE_YET) == (found["ledger"]["verdict"], found["ledger"]["found"])
    assert ("warning", "start one: neli agent") == (found["agent"]["verdict"], found["agent"]["remedy"])
    assert [] == list(tmp_path.iterdir())


def test_a_group_is_compared_with_the_configuration_and_nothing_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Member(Config(f"sqlite://{path}", name="alice", lease=0.2, layout=Layout(partitions=4))) as member:
        assert member.pulse(60.0)
    ledger = SqliteLedger(path)
    tip = ledger.tip()
    code, found = findings("--lease", "0.2", "--layout-partitions", "8", ledger=path)
    assert (1, "failed") == (code, found["group"]["verdict"])
    assert "partitions=8, tags=off against slots=16384, partitions=4" in found["group"]["found"]
    _, found = findings("--lease", "0.2", "--layout-partitions", "4", ledger=path)
    assert "fine" == found["group"]["verdict"]
    assert "0 members at the last record, 4 partitions, 4 of them unowned" in found["group"]["found"]
    assert tip == ledger.tip()
    ledger.close()


def test_a_fenced_table_needs_the_layout_of_the_group_and_foreign_commits_are_listed(tmp_path: Path) -> None:
    deltalake, pa = pytest.importorskip("deltalake"), pytest.importorskip("pyarrow")
    from neli_router.fence.delta import FencedTable  # noqa: PLC0415 - it needs them.

    table = FencedTable.create(tmp_path / "ticks", pa.schema([("id", pa.int64())]), Layout(partitions=4))
    rows = pa.table({"id": [1], "partition": pa.array([3], pa.int32())})
    table.append(rows, {3: 7}, 0)
    named = ("--table", str(table.path), "--layout-partitions")
    fine = f"{table.path} has 1 files and the group's layout, and only fenced writers have changed its rows"
    assert ("fine", fine) == found_of("table", *named, "4")
    assert "failed" == found_of("table", *named, "8")[0]
    deltalake.write_deltalake(str(table.path), rows, mode="append")
    verdict, found = found_of("table", *named, "4")
    assert ("warning", True) == (verdict, re.search(r"version 2, .* UTC: WRITE by delta-rs", found) is not None)


def test_a_configuration_that_is_not_usable_fails_with_every_problem() -> None:
    result = run("--weight", "heavy", "--lease", "7200", ledger="memory://jobs")
    assert 1 == result.exit_code
    assert "FAIL configuration weight='heavy' must be a whole number (flag --weight)" in result.stdout
    assert "                   lease=7200 must be from 0.01 to 3600.0 seconds (lease: flag --lease)" in result.stdout
    assert "                   -> correct each; `neli config` shows" in result.stdout


def test_a_place_where_no_ledger_can_be_fails_and_what_needs_it_is_skipped(tmp_path: Path) -> None:
    code, found = findings(ledger=tmp_path / "nowhere" / "jobs.db")
    assert (1, "failed", "skipped") == (code, found["place"]["verdict"], found["lease"]["verdict"])
    assert ("make the folder; only the file is created", "ledger" in found) == (found["place"]["remedy"], False)
    (tmp_path / "diary").write_text("my diary" * 1000, encoding="utf-8")
    code, found = findings(ledger=tmp_path / "diary")
    assert (1, "failed") == (code, found["ledger"]["verdict"])
    assert "name another file; this one was left unchanged" == found["ledger"]["remedy"]
    code, found = findings(ledger="memory://jobs")
    assert (0, "warning", "skipped") == (code, found["place"]["verdict"], found["lease"]["verdict"])


@pytest.mark.parametrize(
    "server", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("kafka", "redis")]
)
def test_a_server_is_asked_and_nothing_is_made_or_appended(server: str, request: pytest.FixtureRequest) -> None:
    """Before there is a ledger, with a ledger, and without the option that accepts its risk."""
    place = request.getfixturevalue(server).removeprefix("redis://")
    address = f"{server}://{place}/doctor-{uuid4().hex}"
    # Long enough for any machine: the doctor would complain about a slow one.
    given = ("--lease", "60", "--layout-partitions", "4")
    for _ in range(2):
        code, found = findings(*given, ledger=address)
        assert (0, NONE_YET) == (code, found["ledger"]["found"])
        assert ("skipped", "skipped") == (found["trips"]["verdict"], found["lease"]["verdict"])
    layout, protocol = Layout(partitions=4), Induction(accept_rewinds=True)
    config = Config(address, name="alice", lease=60.0, layout=layout, protocol=protocol)
    with Member(config) as member:
        until(lambda: member.incarnation in member.state.seats)
    ledger = open_ledger(config.common_ledger, create=True, patience=1.0)
    tip = ledger.tip()
    code, found = findings(*given, "--accept-rewinds", ledger=address)
    names = "configuration ledger promises group name expiry digests version clock scheduling trips lease agent witness"
    assert (0, names) == (code, " ".join(found))
    verdicts = {name: found[name]["verdict"] for name in ("ledger", "promises", "group", "trips")}
    assert {"ledger": "fine", "promises": "warning", "group": "fine", "trips": "fine"} == verdicts
    assert "; ".join(ledger.doubts) == found["promises"]["found"] != ""
    assert "nothing was appended here; a question" in found["trips"]["found"]
    code, found = findings(*given, ledger=address)
    assert (1, "failed") == (code, found["promises"]["verdict"])
    assert "needs a ledger that never rewinds" in found["promises"]["found"]
    assert tip == ledger.tip()
    ledger.close()


def test_a_server_that_is_not_there_fails() -> None:
    found = found_of("ledger", ledger="redis://127.0.0.1:1/jobs")
    assert ("failed", True) == (found[0], "127.0.0.1:1" in found[1])


@contextmanager
def answering(path: Path, *answers: bytes, mode: int = 0o600) -> Iterator[None]:
    """A server that listens at `path` and gives `answers` one after the other."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen()

        def serve() -> None:
            for answer in answers:
                client, _ = listener.accept()
                with client:
                    client.recv(4096)
                    client.sendall(answer)
            listener.close()  # A client that asks again is refused, and need not wait.

        with beside(serve):
            yield


HEALTHY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
UNWELL = b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"
REASON = b'{"kind": "NotReady", "wanted": "a", "found": "the disk is full", "remedy": "free some space"}'
NOT_READY = b"HTTP/1.1 503 No\r\nContent-Length: %d\r\n\r\n%b" % (len(REASON), REASON)


@pytest.mark.parametrize(
    ("answers", "mode", "verdict", "expected"),
    [
        ([HEALTHY], 0o600, "fine", "one answers at "),
        ([HEALTHY], 0o666, "failed", "is open to other users"),
        ([UNWELL, UNWELL], 0o600, "failed", "and says 503 of its health"),
        ([NOT_READY, HEALTHY], 0o600, "warning", "and is not ready: the disk is full"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], 0o600, "warning", "none answers at "),
        ([b""], 0o600, "warning", "none answers at "),
    ],
)
def test_the_agents_health_is_checked(
    tmp_path: Path, answers: list[bytes], mode: int, verdict: str, expected: str
) -> None:
    path = tmp_path / "agent.sock"
    with answering(path, *answers, mode=mode):
        found = found_of("agent", "--socket", str(path))
    assert (verdict, True) == (found[0], expected in found[1])


def test_a_socket_that_was_left_over_and_a_file_in_its_place_are_told_apart(tmp_path: Path) -> None:
    stale, file = tmp_path / "stale.sock", tmp_path / "file"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stale))
    file.touch()
    _, found = findings("--socket", str(stale), ledger="memory://jobs")
    assert "start one: neli agent; a socket that was left over is replaced" == found["agent"]["remedy"]
    code, found = findings("--socket", str(file), ledger="memory://jobs")
    assert (1, f"{file} is not a socket") == (code, found["agent"]["found"])


@pytest.fixture(name="agent", scope="module")
def _agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("agent")
    with running(configured(folder, lease=STEADY), on_both_sockets(folder)) as agent:
        agent.await_ready()
        yield agent


def test_the_agent_is_asked_whether_it_tells_deaths(agent: Running, tmp_path: Path) -> None:
    given = ("witness", "--lease", str(STEADY), "--socket", agent.options.socket)
    expected = "a reports the death of a member here: no member waits for its lease"
    assert ("fine", expected) == found_of(*given, ledger=agent.agent.config.ledger)
    code, found = findings(*given[1:], ledger=tmp_path / "other.db")
    assert (1, "witness" in found) == (code, False)
    assert "serves another group: this is the agent of sqlite:///" in found["agent"]["found"]
    assert f"and this configuration is of sqlite://{tmp_path}/other.db" in found["agent"]["found"]
    assert NONE_YET == found["ledger"]["found"]


def test_an_agent_without_clients_is_a_warning(agent: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("--lease", str(STEADY), "--socket", agent.options.socket)
    assert "use" not in findings(*given, ledger=agent.agent.config.ledger)[1]
    monkeypatch.setattr("neli_router.commands.doctor.IDLE_LONG", 0.0)
    until(lambda: agent.agent.member.led)
    verdict, found = found_of("use", *given, ledger=agent.agent.config.ledger)
    assert ("warning", "its member a leads 8 partitions, and for ") == (verdict, found.partition("for ")[0] + "for ")


def at_port(port: int) -> dict[str, str]:
    token = Path("token")
    token.write_text(TOKEN, encoding="ascii")
    token.chmod(0o600)
    given = ("--listen", f"127.0.0.1:{port}", "--token-file", str(token.absolute()))
    return findings(*given, ledger="memory://jobs")[1]["port"]


def test_a_free_port_is_told_from_one_that_is_held(agent: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as holder:

        def hang_up() -> None:
            holder.accept()[0].close()

        with beside(hang_up):
            held = at_port(port)
        with monkeypatch.context() as brief:
            brief.setattr("neli_router.commands.doctor.ANSWER_MAX", 0.01)
            mute = at_port(port)
    assert f"another program holds 127.0.0.1:{port}, and gave no answer within 0.01 s" == mute["found"]
    assert ("failed", f"another program holds 127.0.0.1:{port}") == (held["verdict"], held["found"])
    assert f"ss -ltnp 'sport = :{port}'" in held["remedy"]
    free = at_port(port)
    assert ("fine", f"127.0.0.1:{port} is free") == (free["verdict"], free["found"])
    port = int((agent.agent.tcp_address or "").rpartition(":")[2])
    found = at_port(port)
    assert ("fine", f"an agent answers at 127.0.0.1:{port}") == (found["verdict"], found["found"])


def test_a_living_member_of_the_same_name_is_found_unless_it_is_the_agent_here(agent: Running) -> None:
    def named(name: str, *arguments: str) -> tuple[str, str]:
        given = ("--lease", str(STEADY), "--layout-partitions", "8", "--name", name, *arguments)
        return found_of("name", *given, ledger=agent.agent.config.ledger)

    # A member that beats seldom gets more time to be heard.
    assert ("fine", "no member is called 'b'") == named("b")
    assert ("failed", "a member called 'a' is alive, and no agent that answers here is it") == named("a")
    assert ("fine", "'a' is alive, and is the agent that answers here") == named("a", "--socket", agent.options.socket)


@pytest.mark.parametrize(
    ("judge", "measured", "verdict", "said"),
    [
        (judge_digests, ({},), "skipped", "no member's digest can be compared"),
        (judge_digests, ({"a": (7, True), "b": (9, True)},), "fine", "the last digest of a, b is this release's"),
        # One member is astray, or all run another release.
        (judge_digests, ({"a": (7, True), "b": (9, False)},), "failed", "the others: b at offset 9.*test their hosts'"),
        (judge_digests, ({"a": (7, False)},), "failed", "state that this release computes: a at.*that the members run"),
        (judge_expiry, (1.0, {}, 2), "fine", "nothing in the ledger says that heartbeats come back too late to expire"),
        (judge_expiry, (1.0, {"a": 0.9}, 2), "warning", f"0.9 s of .* to a: they cannot expire.*{LONG_ENOUGH}"),
        (judge_expiry, (1.0, {"a": 0.9, "b": 1.0}, 2), "failed", f" 1 s of .* to a, b: no member can.*{LONG_ENOUGH}"),
        # A lease needs three times what its host takes, and six times that for comfort.
        (judge_lease, (1.0, trips(0.01), host(overshoot=0.001)), "fine", ""),
        (judge_lease, (1.0, trips(0.16), host(overshoot=0.006)), "fine", ""),
        (judge_lease, (1.0, trips(0.2), host(overshoot=0.001)), "warning", ""),
        (judge_lease, (1.0, trips(0.3), host(overshoot=0.1)), "failed", ""),
        (judge_lease, (0.05, trips(0.008), host(overshoot=0.0)), "fine", ""),
        (judge_lease, (0.05, trips(0.008), host(overshoot=0.001)), "warning", ""),
        (judge_lease, (0.05, trips(0.008), host(overshoot=0.02)), "failed", ""),
        # A clock may be off by what members allow each other.
        (judge_clock, (host(),), "fine", ""),
        (judge_clock, (host(rate_error=-0.0004),), "fine", ""),
        (judge_clock, (host(rate_error=0.0007),), "warning", ""),
        (judge_clock, (host(rate_error=-0.0011),), "failed", ""),
    ],
)
def test_what_was_measured_is_judged(
    judge: Callable[..., Diagnosis], measured: tuple[Any, ...], verdict: str, said: str
) -> None:
    told = judge(*measured)
    assert verdict == told.verdict
    assert re.search(said, f"{told.found} -> {told.remedy}")


def test_the_lease_that_is_advised_passes() -> None:
    for milliseconds in (1, 7, 33, 150, 900, 4000):
        slow = trips(milliseconds / 1000)
        advised = float(judge_lease(0.003, slow, host()).remedy.split("at least ")[1].split()[0])
        assert "fine" == judge_lease(advised, slow, host()).verdict


def test_a_clock_that_runs_fast_is_measured_as_such() -> None:
    """Compare a clock that gains a hundredth with the real one."""
    real = measure_host(0.05)
    fast = measure_host(0.05, clock=lambda: time.monotonic() * 1.01)
    assert (True, True) == (abs(real.rate_error) < 0.005, 0.005 < fast.rate_error)


def test_trips_are_counted_and_their_scratch_file_goes(tmp_path: Path) -> None:
    found = measure_trips(tmp_path)
    assert (True, []) == (0 < found.p50 <= found.p99, list(tmp_path.iterdir()))


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (50.0, 99.0, 100.0, 1.0) == tuple(percentile(values, share) for share in (0.5, 0.99, 1.0, 0.0))


@pytest.mark.parametrize(("lease", "said"), [(3.0, "only with a lease of 8.1 s or more"), (9.0, "is long enough")])
def test_a_member_of_gossip_that_hears_few_of_its_peers_is_told_which_lease_it_needs(lease: float, said: str) -> None:
    config = Config(f"peers://{','.join(f'127.0.0.1:{7801 + i}' for i in range(7))}/jobs", protocol="gossip", beat=0.3)
    peers = [PeerView(str(i), ["here", "alive", "alive", *["silent"] * 4][i], None, 0) for i in range(7)]
    assert said in _links(replace(config, lease=lease), PeersView(peers, 4, 3, 1, 0))
    assert "" == _links(replace(config, protocol="term", beat=None), PeersView(peers, 4, 3, 1, 0))


@pytest.mark.kafka
def test_a_consumer_group_is_looked_at_with_its_store_of_owners_and_not_joined(kafka: str, redis: str) -> None:
    group, redis = f"kafka://{kafka}/doctor-{uuid4().hex}", f"{redis}/{uuid4().hex}"
    given = ("--protocol", "fast-neli", "--layout-partitions", "2", "--name", "alice")
    code, found = findings(*given, ledger=group)
    assert (1, "failed") == (code, found["owners"]["verdict"])
    assert "give all members, and this, ownership='redis://host:6379/group'" in found["owners"]["remedy"]
    told = (*given, "--ownership", redis)
    code, found = findings(*told, ledger=group)
    assert (0, "its topic is not there yet; the first member makes it, if it may") == (code, found["group"]["found"])
    assert "no member has recorded anything yet" in found["owners"]["found"]
    config = Config(group, protocol="fast-neli", name="alice", layout=Layout(partitions=2), ownership=redis)
    with Member(replace(config, drain_timeout=5.0)) as member:
        until(lambda: len(member.led) == 2)
        until(lambda: "2 partitions, 0 of them unowned" in findings(*told, ledger=group)[1]["owners"]["found"])
        code, found = findings(*told, ledger=group)
        assert (0, "warning", "warning") == (code, found["group"]["verdict"], found["name"]["verdict"])
        assert "has 1 replica" in found["group"]["found"]
        assert "all members together send 20 a second, for 2 partitions" == found["messages"]["found"]
        assert "no agent that answers here is it" in found["name"]["found"]
        assert len(member.led) == 2
        code, found = findings(*told, "--layout-partitions", "4", ledger=group)
        assert (1, "failed", "failed") == (code, found["group"]["verdict"], found["owners"]["verdict"])
        assert "say layout.partitions=2" in found["group"]["remedy"]
