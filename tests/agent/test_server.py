"""The agent as a process: its start, its signals, and its end."""

import logging
import os
import resource
import signal
import socket
import sqlite3
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from neli_router.agent.server import server
from neli_router.agent.server.hub import HANGS_AFTER
from neli_router.agent.server.server import Changes, run
from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.config.protocols import Induction
from neli_router.config.reload import Reloaded
from neli_router.core.clock import host_clock
from neli_router.core.exit_codes import EXIT_DONE, EXIT_REFUSED, EXIT_USAGE
from neli_router.errors import ConfigError, NeliError
from neli_router.member.async_member import AsyncMember
from neli_router.member.member import Member
from tests.agent.test_sockets import answers, held
from tests.support.agents.processes import AgentProcess
from tests.support.agents.running import (
    LEASE,
    PARTITIONS,
    TOKEN,
    Events,
    configured,
    on_both_sockets,
    over_unix,
    running,
)
from tests.support.commands import neli
from tests.support.looping import in_loop
from tests.support.servers.process import free_port
from tests.support.waiting import PATIENCE, until


def exit_code(agent: AgentProcess) -> int:
    """How it ended, once it has."""
    assert agent._process is not None
    return agent._process.wait(PATIENCE)


@pytest.fixture(name="options")
def on_its_socket(tmp_path: Path) -> AgentOptions:
    return AgentOptions(socket=str(tmp_path / "agent.sock"))


def test_an_agent_whose_socket_is_held_does_not_join(tmp_path: Path, options: AgentOptions) -> None:
    with running(configured(tmp_path), options) as first:
        first.await_ready()
        wanted = f"process {os.getpid()} listens there already"
        with pytest.raises(NeliError, match=wanted), running(configured(tmp_path, "b"), options):
            pass
        assert ["a"] == [seat.name for seat in first.agent.member.state.seats.values()]


def test_an_agent_is_not_ready_before_it_is_a_member(tmp_path: Path, options: AgentOptions) -> None:
    # Where there is already a member, it first reads along for a lease: longer than a busy machine takes to ask.
    with Member(configured(tmp_path, "b", lease=60.0)) as other:
        until(lambda: other.incarnation in other.state.seats)
        with running(configured(tmp_path, lease=60.0), options) as agent, agent.client() as asker:
            ready, health = asker.get("/ready"), asker.get("/health")
    assert (503, "NotReady", 200) == (ready.status_code, ready.json()["kind"], health.status_code)


def test_an_agent_that_cannot_reach_its_ledger_at_start_says_why(
    options: AgentOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """A list without members, and an empty log, once led people at 3 a.m. to believe that all was well."""
    config = Config(f"redis://127.0.0.1:{free_port()}/jobs", name="a", protocol=Induction(accept_rewinds=True))
    with running(config, options) as agent, agent.client() as asker:
        until(lambda: "Connection refused" in asker.get("/ready").json()["found"])
        ready, members = asker.get("/ready").json(), asker.get("/v1/members")
        here = f"unix:{options.socket}"
        printed = [neli(*words, NELI_AGENT=here) for words in (["members"], ["table"], ["owner", "customer-7"])]
    assert "mend that, or correct the ledger's address" in ready["remedy"]
    assert "StaleTable" == members.json()["kind"]
    for result in printed:
        assert (5, "") == (result.exit_code, result.stdout)
        assert "was not yet read up to its end (the last try: " in result.stderr
        assert "Connection refused" in result.stderr
    lines = [record.getMessage() for record in caplog.records if "ledger.unavailable" in record.getMessage()]
    # Two lines if the first try takes long: that it is being tried, and then why it failed. Not one for each try.
    assert len(lines) in {1, 2}
    assert "Connection refused" in lines[-1]


def test_an_agent_whose_members_thread_hangs_is_not_well(tmp_path: Path, options: AgentOptions) -> None:
    with running(configured(tmp_path), options) as agent:
        agent.await_ready()
        stuck, free = threading.Event(), threading.Event()

        def hang(now: float) -> None:
            agent.agent.hub.turned_at = now - 2 * HANGS_AFTER
            stuck.set()
            free.wait(PATIENCE)

        agent.agent.member.engine.oversee(hang)
        assert stuck.wait(PATIENCE)
        with agent.client() as asker:
            answers = [asker.get(path) for path in ("/health", "/ready")]
        free.set()
        agent.agent.member.engine.neglect(hang)
    assert [503, 503] == [answer.status_code for answer in answers]
    assert ["the member's thread gives no sign"] == [answers[1].json()["found"]]


def test_sigterm_lets_the_programs_finish_and_hands_over(tmp_path: Path) -> None:
    # A lease that holds while other tests use all cores: an agent that is fenced revokes nothing.
    patient: dict[str, Any] = {"lease": 4.0, "drain_timeout": 60.0}
    with (
        Member(configured(tmp_path, "b", **patient)) as other,
        AgentProcess("a", tmp_path, "--log-level", "warning", **patient) as agent,
        ExitStack() as stack,  # Closes a client that sends half a request, which must not delay the end.
    ):
        other.operator.drain("b", timeout=PATIENCE)
        broken = stack.enter_context(socket.socket(socket.AF_UNIX))
        broken.connect(str(agent.socket))
        broken.sendall(b"POST /v1/owners HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{")
        asker, second = (stack.enter_context(over_unix(str(agent.socket))) for _ in range(2))
        with asker.stream("GET", "/v1/leadership/events?partition=3") as answer:
            events = Events(answer)
            events.next_called("acquired")
            other.operator.drain("b", undo=True, timeout=PATIENCE)
            other.operator.drain("a", timeout=PATIENCE)
            other.operator.drain("a", undo=True, timeout=PATIENCE)
            agent.signal(signal.SIGTERM)
            events.next_called("revoked")
            until(lambda: "this agent is being stopped" == second.get("/ready").json().get("found"))
            assert 503 == second.get("/ready").status_code
            assert 200 == second.get("/health").status_code
            assert 503 == second.get("/v1/leadership?partition=3").status_code
            end = host_clock() + 1.25 * patient["lease"]
            while host_clock() < end:  # The lease is renewed until the programs finish.
                assert events.next_called("renewed", "fenced")["remaining"] > 0
            assert 3 not in other.led
        assert EXIT_DONE == exit_code(agent)
        # On a busy machine, an append may find SQLite locked all the time.
        assert [] == [line for line in agent.log.read_text().splitlines() if "WARNING ledger.unavailable" not in line]
        until(lambda: PARTITIONS == len(other.led))
    assert not agent.socket.exists()


def test_a_replaced_member_tells_clients_and_ends_its_agent(tmp_path: Path) -> None:
    with AgentProcess("a", tmp_path, lease=LEASE) as agent:
        with over_unix(str(agent.socket)) as asker, asker.stream("GET", "/v1/leadership/events?partition=3") as answer:
            events = Events(answer)
            events.next_called("acquired")
            with Member(configured(tmp_path, replace=True)):
                told = events.next_called("ended")
        assert EXIT_REFUSED == exit_code(agent)
    assert "was to be the only one called 'a'" in told["why"]
    assert "Error: Replaced: " in agent.log.read_text()
    assert not agent.socket.exists()


def test_a_lost_socket_is_made_again_unless_another_has_it(
    tmp_path: Path, options: AgentOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """Its clients would ask the other agent, and never learn what this one leads."""
    path = tmp_path / "agent.sock"
    caplog.set_level(logging.ERROR, "neli_router")
    with running(configured(tmp_path), options) as one:
        one.await_ready()
        with one.events("/v1/leadership/events", partition=3) as events:
            events.next_called("acquired")
            path.unlink()
            until(lambda: answers(path) and one.is_ready(), "another socket that answers")
            # A busy machine may have cost it this short lease in the meantime.
            until(lambda: 3 in one.agent.member.led, "the lead of a member whose agent has another socket")
        with held(tmp_path / "other.sock"):
            (tmp_path / "other.sock").replace(path)  # In one step, or the agent may be quicker.
            one.join()
        assert isinstance(one.error, NeliError)
        assert "listens there already" in str(one.error)
    assert path.is_socket()
    assert ["agent.socket_lost"] == [record.event for record in caplog.records if "socket" in record.event]  # type: ignore[attr-defined]


def test_an_agent_with_few_descriptors_says_at_its_start_what_that_costs(tmp_path: Path) -> None:
    """Room is kept for the ledger. So one client is served, and the next one learns why it is not."""
    shell = ("sh", "-c", 'ulimit -n 64 && exec "$0" "$@"')
    with AgentProcess("a", tmp_path, prefix=shell) as agent:
        with over_unix(str(agent.socket)) as one, over_unix(str(agent.socket)) as other:
            # The agent may still count the connection that checked whether it is ready.
            until(lambda: one.get("/ready").status_code == 200, "an answer to the only client")
            assert 503 == other.get("/ready").status_code
        agent.signal(signal.SIGINT)
        assert EXIT_DONE == exit_code(agent)
    told = agent.log.read_text()
    assert "agent.few_descriptors clients_at_most=1 why='this process may have 64 open files; a client more is" in told


def test_a_failed_start_is_an_exit_code_and_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        assert EXIT_REFUSED == run(configured(tmp_path), AgentOptions(listen=address, token=TOKEN))
    assert "another process holds that port" in capfd.readouterr().err
    assert EXIT_USAGE == run(configured(tmp_path), AgentOptions(socket="relative.sock"))
    assert "must be an absolute path" in capfd.readouterr().err
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert EXIT_REFUSED == run(configured(tmp_path), AgentOptions(socket=f"{tmp_path}/agent.sock"))
    expected = "at least 64 open files were wanted, for the ledger, the sockets and a client, but this"
    assert expected in capfd.readouterr().err
    assert not (tmp_path / "agent.sock").exists()


def test_a_configuration_is_read_again_and_a_slip_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = Reloaded(token="another-token-of-ours", weight=7, log_level="error")  # noqa: S106 - it opens nothing.
    slips: list[ConfigError | Reloaded] = [
        ConfigError(["leese is not a known option"]),
        Reloaded(token="Secret"),  # noqa: S106 - the same.
        Reloaded(log_level="lowd"),
        Reloaded(weight=-3),
    ]
    readings = iter([*slips, found, Reloaded(weight=1)])

    def reload() -> Reloaded:
        reading = next(readings)
        if isinstance(reading, ConfigError):
            raise reading
        return reading

    options = on_both_sockets(tmp_path)
    caplog.set_level(logging.WARNING, "neli_router")  # Restored after the test, which changes it.
    with running(configured(tmp_path), options, reload=reload) as agent:
        agent.await_ready()
        for _ in slips:
            caplog.clear()
            agent.on_loop(agent.agent.reload)
            until(lambda: "agent.reload_refused" in caplog.text)
            assert "Secret" not in caplog.text
        agent.await_ready()
        agent.on_loop(agent.agent.reload)
        until(lambda: {"a": 7} == agent.agent.member.state.weights)
        with agent.stranger() as asker:
            for token, code in ((TOKEN, 401), (found.token, 200)):
                headers = {"authorization": f"Bearer {token}"}
                assert code == asker.get("/v1/owner?key=a", headers=headers).status_code
        assert logging.ERROR == logging.getLogger("neli_router").level
        agent.on_loop(agent.agent.reload)  # The weight that it joined with needs no wish.
        until(lambda: {} == agent.agent.member.state.weights)


@in_loop
async def test_a_weight_is_owed_until_the_ledger_can_be_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second reading of the same file finds no change, so the weight was never wished."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(server, "WISH_MAX", 2.0)
    inner = Member(configured(tmp_path))
    member = await AsyncMember(inner).open()
    try:
        until(lambda: inner.led)
        changes = Changes(None)
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            await changes.take(lambda: Reloaded(weight=7), member)
            assert "agent.reload_refused" in caplog.text
            until(lambda: inner.engine.membership.obstacle)
        until(lambda: not inner.engine.membership.obstacle)
        assert {} == inner.state.weights
        await changes.take(Reloaded, member)
        until(lambda: {"a": 7} == inner.state.weights)
        await changes.take(Reloaded, member)
    finally:
        await member.close()
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("agent.reloaded")]
    assert ["agent.reloaded weight=7", "agent.reloaded changed=nothing"] == told


def test_a_weight_that_a_wish_overrules_is_logged(
    tmp_path: Path, options: AgentOptions, caplog: pytest.LogCaptureFixture
) -> None:
    with Member(configured(tmp_path, "b")) as other:
        other.operator.weigh("a", 7, timeout=PATIENCE)
        for weight, expected in ((1, True), (7, False)):
            caplog.clear()
            with running(configured(tmp_path, weight=weight), options) as agent:
                agent.await_ready()
            overruled = "agent.weight_overruled weight=1 counts_with=7 remedy='neli weigh a --undo'"
            assert (expected, expected) == (overruled in caplog.text, "agent.weight_overruled" in caplog.text)


def test_no_key_is_in_the_log(tmp_path: Path, options: AgentOptions, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with running(configured(tmp_path), options) as agent, agent.client() as asker:
        agent.await_ready()
        for path in ("owner?key=MrSecret", "owner?key=MrSecret&partition=1", "MrSecret"):
            asker.get(f"/v1/{path}")
        asker.post("/v1/owners", json={"keys": ["MrSecret"]})
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert ours
    assert not [line for line in ours if "MrSecret" in line]
