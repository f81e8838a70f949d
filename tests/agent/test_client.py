"""The client's questions and leases, over real sockets."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from neli_router.agent import Client, NoAgent
from neli_router.agent.client.transport import EVENT_MAX, Events
from neli_router.agent.wire import LeaseView, Refusal, ShareView
from neli_router.core.clock import host_clock
from neli_router.errors import BadKey, Closed, ConfigError, LeaseLost, LedgerUnavailable, NeliError, NoOwner, NotLeading
from neli_router.member.member import Member
from tests.support.agents.running import STEADY, Running, over_once_told
from tests.support.agents.stand_in import StandIn, standing_in, whenever
from tests.support.forking import in_child, raised_by
from tests.support.waiting import PATIENCE, beside, until


def test_owners_come_in_the_order_of_their_keys_and_a_missing_one_says_why(stand_in: StandIn, client: Client) -> None:
    assert ["alpha"] * 3 == [client.owner(key).name for key in ("customer 7&x=\n", b"\xff", "x" * 100_000)]
    assert "alpha" == client.owner_of_role(3).name
    views = client.owners(["a", "nobody", b"\xff"])
    assert ["alpha", None, "alpha"] == [view.name for view in views]
    assert "no member is left" == views[1].why
    # More than fits into one request.
    assert 30_000 == len(client.owners(f"customer-{number:030}" for number in range(30_000)))
    assert stand_in.requests.count("/v1/owners") > 2
    with pytest.raises(NoOwner, match="no member is left") as caught:
        client.owner("nobody-known")
    assert "nobody-known" not in str(caught.value)


def test_what_is_no_key_and_no_role_is_refused_before_it_is_asked(stand_in: StandIn, client: Client) -> None:
    for key in ("\ud800", 7, None):
        with pytest.raises(BadKey):
            client.owner(key)  # type: ignore[arg-type]
    for role in (True, 1.5, "\ud800"):
        with pytest.raises(BadKey):
            client.lease(role)  # type: ignore[arg-type]
    assert [] == stand_in.requests


def test_a_watch_tells_each_change_until_it_is_closed_from_another_thread(stand_in: StandIn, client: Client) -> None:
    with client.watch("k") as watch:
        views = iter(watch)
        assert "alpha" == next(views).name
        with beside(watch.close):
            assert [] == list(views)
    until(lambda: stand_in.held == 0)


def test_keys_and_tokens_stay_out_of_logs_and_representations(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        client.owner("Jane-Doe")
        other = Client(str(client.address), token="hush-hush-hush-hush")  # noqa: S106 - of a test.
    told = f"{caplog.text} {client!r} {other!r}"
    assert [False, False] == [secret in told for secret in ("Jane-Doe", "hush")]


def test_where_no_agent_is_the_error_says_what_is_there_instead(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with pytest.raises(NoAgent, match=r"agent.sock, but there is no socket: start one with `neli agent`"):
        Client(str(path)).members()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with pytest.raises(NoAgent, match="its socket is stale"):
        Client(str(path)).members()
    path.unlink()
    path.touch()
    with pytest.raises(NoAgent, match=r"stale|no socket that takes"):
        Client(str(path)).members()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(NoAgent, match="nothing listens there"):
            Client(f"http://127.0.0.1:{taken.getsockname()[1]}").members()


def test_a_socket_of_another_user_is_told(tmp_path: Path) -> None:
    """Asks in a process without root's rights, because root is never refused."""
    with standing_in(tmp_path) as (_, address):
        # The child may not be able to read this project. So ask and fail here first, to import everything it needs.
        with Client(address) as client:
            assert client.members().members
        with Client(f"{tmp_path}/none.sock") as client, pytest.raises(NoAgent):
            client.members()
        os.chmod(tmp_path / "agent.sock", stat.S_IRUSR)  # noqa: PTH101 - it is a socket.
        tmp_path.chmod(0o711)

        def found() -> str:
            if os.getuid() == 0:
                os.setuid(65534)
            with pytest.raises(NoAgent) as caught:
                Client(address).members()
            return caught.value.found

        assert "this user may not open its socket" == in_child(found)


def test_refusals_are_raised_again_and_other_servers_are_no_agents(stand_in: StandIn, client: Client) -> None:
    stand_in.refusal = Refusal("LedgerUnavailable", "w", "f", "r")
    with pytest.raises(LedgerUnavailable) as caught:
        client.members()
    assert ("w", "f", "r") == (caught.value.wanted, caught.value.found, caught.value.remedy)
    stand_in.refusal = None
    for body in (b"<html>", b"[]", b"\xff", b""):
        stand_in.body = body
        with pytest.raises(NoAgent, match="is of no agent of this version"):
            client.members()
    stand_in.hangs = True
    with Client(str(client.address), timeout=0.1) as hasty, pytest.raises(NoAgent, match="did not answer in time"):
        hasty.members()


def test_over_tcp_a_missing_or_wrong_token_says_where_to_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # A proxy from the environment is never used.
    with standing_in() as (agent, address):
        agent.token = "correct-horse-battery"  # noqa: S105 - of a test.
        with Client(address) as client, pytest.raises(NeliError, match=r"none was given: .*NELI_TOKEN.*--token-file"):
            client.members()
        stranger = Client(address, token="another-horse-battery")  # noqa: S106 - of a test.
        with stranger as client, pytest.raises(NeliError, match="it knows another one"):
            client.members()
        monkeypatch.setenv("NELI_TOKEN", "correct-horse-battery")
        with Client(address) as client:
            assert ["alpha"] == [member.name for member in client.members().members]
    # A token that would leave the host, or break a header.
    for address, token in (("http://10.1.2.3", "t"), ("http://127.0.0.1", "a\r\nb"), ("http://127.0.0.1", "ü")):
        with pytest.raises(ConfigError):
            Client(address, token=token)


def test_a_restarted_agent_is_asked_over_a_new_connection_until_the_client_is_closed(tmp_path: Path) -> None:
    client = Client(f"{tmp_path}/agent.sock")
    for _ in range(2):
        with standing_in(tmp_path):
            assert 1 == len(client.members().members)
    client.close()
    client.close()
    with pytest.raises(Closed):
        client.members()


def test_a_lease_is_counted_from_before_it_was_asked_for(stand_in: StandIn, client: Client) -> None:
    assert None is client.lease("nightly")
    stand_in.leads(remaining=30.0)
    lease = client.lease("nightly")
    assert lease is not None
    assert ("nightly", 7, 0, "alpha") == (lease.role, lease.term, lease.partition, lease.member)
    assert (True, True, False) == (lease.holds(), lease.remaining() < 30, "nightly" in repr(lease))


def test_leading_waits_is_renewed_and_gives_the_role_back(stand_in: StandIn, client: Client) -> None:
    with pytest.raises(ConfigError, match="timeout=-1 must be at least 0"):
        client.leading("nightly", timeout=-1)
    with pytest.raises(NotLeading, match="beta leads it"), over_once_told(client.leading("nightly", timeout=PATIENCE)):
        raise AssertionError("nobody leads yet")
    until(lambda: stand_in.held == 0)
    with (
        whenever(lambda: stand_in.held == 1, lambda: stand_in.leads(remaining=20)),
        client.leading("nightly", timeout=PATIENCE) as lease,
    ):
        before, stand_in.lease = lease.remaining(), LeaseView(0, True, "alpha", 7, 50.0, 10.0)
        stand_in.say("renewed", stand_in.lease)
        until(lambda: lease.remaining() > before + 10)
        assert (False, 1) == (bool(lease.revoked), stand_in.held)
    until(lambda: stand_in.held == 0)
    assert not lease.holds()


def test_a_lease_is_kept_by_answers_that_take_as_long_as_any_other_may(stand_in: StandIn, client: Client) -> None:
    """On a busy host, every answer about a lease may take seconds, and the lease may last much longer."""
    stand_in.late = 1.2
    stand_in.leads()
    with client.leading("nightly", timeout=PATIENCE) as lease:
        assert lease.holds()


def test_a_revoked_lease_still_holds_so_that_the_program_may_finish(stand_in: StandIn, client: Client) -> None:
    stand_in.leads(remaining=20)
    with client.leading("nightly") as lease:
        # The time left in an event was true when it was written. Only the answer to a question asked now counts.
        stand_in.lease = LeaseView(0, False, "alpha", 7)
        asked = stand_in.requests.count("/v1/lease")
        stand_in.say("renewed", LeaseView(0, True, "alpha", 7, 500.0))
        until(lambda: stand_in.requests.count("/v1/lease") > asked)
        assert lease.remaining() < 20
        began = host_clock()
        assert (False, True) == (lease.revoked.wait(0.01), host_clock() >= began + 0.01)
        stand_in.say("revoked", why="beta is to have it")
        assert (True, True) == (lease.revoked.wait(PATIENCE), lease.holds())
        # It is renewed while it finishes, although it no longer leads in the sense that new work may begin.
        stand_in.lease = LeaseView(0, False, "alpha", 7, 90.0)
        stand_in.say("renewed")
        until(lambda: lease.remaining() > 60)


def test_a_fenced_lease_is_lost_at_once_and_its_block_raises(stand_in: StandIn, client: Client) -> None:
    stand_in.leads()
    heard = threading.Event()
    with pytest.raises(LeaseLost, match="was expired by beta"), client.leading("nightly") as lease:  # noqa: PT012 - its end raises.
        lease.on_news(heard.set)
        stand_in.say("fenced", why="it was expired by beta")
        assert (True, True) == (lease.revoked.wait(PATIENCE), heard.wait(PATIENCE))
        with pytest.raises(LeaseLost):
            lease.check()
        until(lambda: stand_in.held == 0, "the end of its stream")
    assert 0.0 == lease.remaining()


def test_a_lease_of_an_agent_that_died_runs_out_by_itself(tmp_path: Path) -> None:
    with Client(f"{tmp_path}/agent.sock", timeout=PATIENCE) as client:
        with standing_in(tmp_path) as (agent, _):
            agent.leads(remaining=6.0)
            block = client.leading("nightly")
            lease = block.__enter__()
        assert (True, True) == (lease.holds(), lease.revoked.wait(PATIENCE))
        with pytest.raises(LeaseLost, match="without being renewed"):
            block.__exit__(None, None, None)


def test_an_agent_that_ends_or_is_killed_while_it_is_waited_for_raises(stand_in: StandIn, client: Client) -> None:
    for end, why in ((lambda: stand_in.say("ended", why="stopped"), "stopped"), (stand_in.hang_up, "ended the con")):
        with whenever(lambda: stand_in.held == 1, end), pytest.raises(NoAgent, match=why), client.leading("nightly"):
            raise AssertionError("nobody leads")
        until(lambda: stand_in.held == 0)


def test_closing_the_client_loses_its_blocks(stand_in: StandIn, client: Client) -> None:
    stand_in.leads()
    with pytest.raises(LeaseLost, match="client was closed"), client.leading("nightly") as lease:  # noqa: PT012 - its end raises.
        client.close()
        assert not lease.holds()  # The agent may hand the role over as soon as it sees the end of the stream.
        assert lease.revoked.wait(PATIENCE)
    until(lambda: stand_in.held == 0)


def test_a_forked_child_has_no_lease_no_share_and_keeps_no_stream(stand_in: StandIn, client: Client) -> None:
    """Otherwise the agent would count the child as a holder for as long as it has the parent's connection."""
    stand_in.leads()
    stand_in.share = ShareView("alpha", {3: 7}, 30.0, 10.0)
    reading, writing = os.pipe()
    with client.leading("nightly") as lease, client.share() as share:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(writing)
                told = [raised_by(share.check), raised_by(lambda: share.check(3))]
                code = 0 if (client.owner("x").name, lease.holds(), told) == ("alpha", False, ["Forked"] * 2) else 2
                os.read(reading, 1)  # Until the parent is done.
            finally:
                os._exit(code)
        os.close(reading)
        lease.check()
        assert "alpha" == client.owner("x").name
    until(lambda: stand_in.held == 0)
    os.close(writing)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_events_are_whole_however_they_are_cut_and_one_without_an_end_is_given_up() -> None:
    text = b":\r\n\r\nevent: owner\r\ndata: {}\r\n\r\nevent: two\ndata: a\ndata: b\n\nevent: rest"
    for size in (1, 2, 3, 7, len(text)):
        events = Events()
        found = [event for at in range(0, len(text), size) for event in events.feed(text[at : at + size])]
        assert [("owner", b"{}"), ("two", b"a\nb")] == found
    with pytest.raises(ValueError, match="at most"):
        Events().feed(b"data: " + bytes(EVENT_MAX))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="a listing of open descriptors is wanted")
def test_clients_that_come_and_go_leave_no_descriptor_and_no_thread_behind(tmp_path: Path) -> None:
    def open_now() -> tuple[int, int]:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()), threading.active_count()

    with standing_in(tmp_path) as (agent, address):
        agent.leads()
        before = open_now()
        for _ in range(10):
            with Client(address, timeout=PATIENCE) as client:
                client.members()
                with client.leading("nightly") as lease:
                    lease.check()
                client.watch().close()
                client.watch()  # Neither iterated nor closed.
            with pytest.raises(NoAgent):
                Client(f"{tmp_path}/none.sock").members()
        until(lambda: agent.held == 0)
        # The stand-in's threads and sockets belong to this process, too, and end a little later.
        until(lambda: all(now <= then + 3 for now, then in zip(open_now(), before, strict=True)))


def test_a_role_is_waited_for_until_a_pin_brings_it(follower: Running, other: Member) -> None:
    with Client(follower.options.socket or "", timeout=PATIENCE) as client:
        assert not client.pin(2, "a", preview=True).done
        assert None is client.lease(2, within=0.1)
        with client.watch(2) as changes:
            assert 2 == next(iter(changes)).partition
        with pytest.raises(NotLeading), client.leading(2, timeout=0.1):
            raise AssertionError("b leads it")
        before = other.led[2]
        with whenever(lambda: follower.agent.traffic.waiting == 1, lambda: client.pin(2, "a")):
            waited_for = client.lease(2, within=PATIENCE)
        assert waited_for is not None
        assert (True, True) == (waited_for.term > before, waited_for.remaining() > 0)
        with client.leading(2, timeout=PATIENCE) as lease:
            assert (waited_for.term, "a", True) == (lease.term, lease.member, lease.remaining() <= STEADY)
