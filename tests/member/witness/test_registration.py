"""A member and the agent of its host: who is witnessed, who is refused and why, and what a member reports."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest

from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.config.protocols import Induction
from neli_router.core.clock import host_clock
from neli_router.core.closing import Closing
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.errors import ConfigError, LedgerUnavailable
from neli_router.member.member import Member
from neli_router.member.runtime import Runtime
from neli_router.member.witness.base import OwnLife, Witness, life_of
from neli_router.member.witness.registration import ANSWER_MAX, Registration, WitnessAsked, is_named_after
from neli_router.protocols.induction.fold import State
from neli_router.protocols.protocol import Notice
from tests.support.agents.running import PATIENCE, STEADY, TOKEN, Running, configured, on_both_sockets, running
from tests.support.waiting import beside, until

AGENT = "agent-of-the-host"


@pytest.fixture(name="agent", scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("agent")
    with running(configured(folder, AGENT, lease=STEADY), on_both_sockets(folder)) as agent:
        yield agent


class Asking(Closing):
    """A registration with its answer, if one comes within `patience` seconds, and the notices that it reported."""

    def __init__(
        self, config: Config, place: str, *, wanted: bool = True, secret: str = "", patience: float = PATIENCE
    ) -> None:
        self.notices: list[Notice] = []
        self.life = OwnLife(secret) if secret else OwnLife.begin(Random(os.urandom(16)))
        tell, environment = self.notices.append, {"NELI_AGENT": place}
        self.registration = Registration(config, "m", self.life, tell, wanted=wanted, environment=environment)
        self.registration.await_answer(patience)  # On a busy machine, an answer takes longer than a start may wait.

    @property
    def name(self) -> str:
        return self.registration.name

    @property
    def told(self) -> list[str]:
        return [notice.event for notice in self.notices]

    @property
    def why(self) -> str:
        return str(self.notices[-1].fields["why"])

    def close(self) -> None:
        self.registration.close()

    def look(self, now: float = inf) -> None:
        assert () == self.registration.look(State(), self.life.name + "0000", now)

    def is_found(self) -> bool:
        self.look()
        return bool(self.name)

    def await_refusal(self) -> None:
        until(lambda: not self.is_found() and self.told, "a refusal")


def witnessed(agent: Running) -> float:
    with agent.client() as client:
        text = client.get("/metrics").text
    return float(next(line for line in text.splitlines() if line.startswith("neli_witnessed_members ")).split()[1])


def test_the_agent_witnesses_a_member_that_asks_and_looks_at_its_connection_from_time_to_time(agent: Running) -> None:
    """Between two looks at the connection, a step costs one comparison: here it is closed behind the member's back."""
    with Asking(agent.agent.config, agent.options.socket) as asking:
        assert (AGENT, []) == (asking.name, asking.told)
        asking.look()
        asking.registration._link.close()  # type: ignore[union-attr]
        asking.look(-inf)
        assert AGENT == asking.name
        asking.look()
        assert "" == asking.name
        asking.look()
        until(asking.is_found, "a connection again")


def test_a_member_says_in_its_join_who_witnesses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = AgentOptions(socket=str(tmp_path / "agent.sock"))
    monkeypatch.setenv("NELI_AGENT", options.socket)
    monkeypatch.setattr("neli_router.member.witness.registration.ANSWER_MAX", PATIENCE)
    config = configured(tmp_path, AGENT)
    with running(config, options) as agent:
        agent.await_ready()
        with Member(replace(config, name="m", protocol=Induction(witness="agent"))) as member:
            until(lambda: member.incarnation in member.state.seats, "a seat")
            said = {seat.name: seat.witness for seat in member.state.seats.values()}
            assert {AGENT: "", "m": AGENT} == said  # The agent does not witness itself.
            assert 1 == witnessed(agent)
            assert [life_of(member.incarnation)] == agent.on_loop(lambda: [*agent.agent.lives._lives])


def test_a_member_asks_for_a_witness_once_however_often_it_tries_to_read_its_ledger(tmp_path: Path) -> None:
    """Each attempt would be another life for the agent to watch, or another line in the log."""

    class Unreadable(MemoryLedger):
        def tip(self) -> int:
            if len(tried) < 3:
                tried.append("to read")
                raise LedgerUnavailable("a tip was wanted", "there is none", "wait")
            return super().tip()

    class Counting(Runtime):
        def ledger(self, config: Config) -> Ledger:
            return Unreadable(MemoryLog())

        def witness(self, *chosen: Any) -> Witness:
            tried.append("to have a witness")
            return super().witness(*chosen)

    tried: list[str] = []
    with Member(configured(tmp_path), runtime=Counting()) as member:
        until(lambda: member.incarnation, "an opened ledger")
        assert [*3 * ["to read"], "to have a witness"] == tried


def test_where_there_is_no_agent_only_a_member_that_wants_it_says_so_and_only_once(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none.sock")
    with Asking(configured(tmp_path), nowhere) as wanted:
        for _ in range(3):
            wanted.look()
        assert ("", ["witness.missing"]) == (wanted.name, wanted.told)
        assert "the system refused to connect: No such file or directory" == wanted.why
    with Asking(configured(tmp_path), nowhere, wanted=False) as perhaps:
        perhaps.look()
        assert ("", []) == (perhaps.name, perhaps.told)


def test_an_agent_that_comes_later_or_is_started_again_is_found(tmp_path: Path) -> None:
    options, config = AgentOptions(socket=str(tmp_path / "agent.sock")), configured(tmp_path, AGENT)
    with Asking(config, options.socket) as asking:
        for _ in range(2):
            with running(config, options) as agent:
                until(asking.is_found, "a witness")
                assert 1 == witnessed(agent)
            until(lambda: not asking.is_found(), "the end of the agent")
        assert ["witness.missing", *["witness.found", "witness.missing"] * 2] == asking.told


def test_an_agent_of_another_ledger_refuses_and_says_which_is_its(agent: Running, tmp_path: Path) -> None:
    ours, its = configured(tmp_path), agent.agent.config
    with Asking(ours, agent.options.socket) as asking:
        assert ("", ["witness.missing"]) == (asking.name, asking.told)
        assert f"it refused: this agent's group is {its.ledger}, and the member's is {ours.ledger}" == asking.why


def test_a_life_is_registered_by_a_connection_of_its_own_alone(agent: Running) -> None:
    """A program that passes a member's bytes on has another connection. The member would be certified with its end."""
    with agent.client() as client, agent.stranger(headers={"authorization": f"Bearer {TOKEN}"}) as stranger:
        for one in (client, stranger):
            answer = one.post("/v1/witness", json=asked_of(agent))
            assert (400, "BadRequest") == (answer.status_code, answer.json()["kind"])
            assert "another program made this connection" in answer.json()["found"]
    life = OwnLife(32 * "a").name
    named = f"\0neli-{life}-1".encode()
    assert [True, False, False, False] == [
        is_named_after(life, peer) for peer in (named, named.replace(life.encode(), b"000000000000"), "", b"")
    ]


def asked_of(agent: Running, **different: Any) -> dict[str, Any]:
    return {"ledger": agent.agent.config.public_ledger, "member": "m", "secret": 32 * "a"} | different


def test_a_request_that_is_none_is_refused_and_its_secret_not_repeated(agent: Running) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"secret": 31 * "a"}, "ConfigError"),
        ({"secret": 7}, "BadRequest"),
        ({"member": ""}, "BadRequest"),
        ({"member": "two\nlines"}, "BadRequest"),
        ({"ledger": 5000 * "x"}, "BadRequest"),
        ({"incarnation": "another's"}, "BadRequest"),
    ]
    before = witnessed(agent)
    with agent.client() as client:
        for different, kind in wrong:
            answer = client.post("/v1/witness", json=asked_of(agent, **different))
            assert (400, kind) == (answer.status_code, answer.json()["kind"]), different
            assert 31 * "a" not in answer.text.lower()
    assert before >= witnessed(agent)
    assert 8 * "a" not in repr(WitnessAsked("sqlite:x", "m", 32 * "a"))


def test_a_life_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neli_router.agent.server.server.LIVES_MAX", 1)
    options, config = AgentOptions(socket=str(tmp_path / "agent.sock")), configured(tmp_path, AGENT)
    with running(config, options), Asking(config, options.socket) as first:
        assert AGENT == first.name
        with Asking(config, options.socket) as second:
            second.await_refusal()
            assert "it refused: 1 are registered" == second.why


def test_one_process_that_comes_again_and_again_is_watched_all_the_same(agent: Running) -> None:
    for _ in range(4):
        with Asking(agent.agent.config, agent.options.socket, secret=32 * "b") as asking:
            assert AGENT == asking.name
    with Asking(agent.agent.config, agent.options.socket, secret=32 * "b") as asking:
        asking.await_refusal()
        assert "it refused: it was registered 4 times, and is watched" == asking.why
        assert 1 <= witnessed(agent)


def test_a_life_without_connection_and_seat_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neli_router.agent.server.lives.UNCONNECTED_MAX", 0.1)
    options, config = AgentOptions(socket=str(tmp_path / "agent.sock")), configured(tmp_path, AGENT)
    with running(config, options) as agent:
        agent.await_ready()
        Asking(config, options.socket).close()
        until(lambda: 0 == witnessed(agent), "to be forgotten")


@contextmanager
def listening(place: Path, backlog: int = 8) -> Iterator[socket.socket]:
    """Something other than an agent, where an agent should be."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen(backlog)
        yield listener


def test_an_agent_that_hangs_or_takes_no_connection_does_not_hold_up_a_start(tmp_path: Path) -> None:
    silent, full = tmp_path / "silent.sock", tmp_path / "full.sock"
    began = host_clock()
    with listening(silent), Asking(configured(tmp_path), str(silent), patience=0.0) as asking:
        assert ("", [], True) == (asking.name, asking.told, host_clock() >= began + ANSWER_MAX)  # And keeps trying.
        asking.look()
        assert "it took the connection and gave no answer" == asking.why
    with listening(full, 0), closing(socket.socket(socket.AF_UNIX)) as other:
        other.connect(str(full))  # Now its queue is full.
        with Asking(configured(tmp_path), str(full)) as asking:
            assert "the system refused to connect: Resource temporarily unavailable" == asking.why


@pytest.mark.parametrize("said", [b"SSH-2.0-other\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\ndata: 7\n\n", 40_000 * b"x"])
def test_what_is_no_agent_is_not_taken_for_one(tmp_path: Path, said: bytes) -> None:
    with listening(tmp_path / "other.sock") as other:

        def answer() -> None:
            connection, _ = other.accept()
            with closing(connection):
                connection.recv(1)
                connection.sendall(said)

        with beside(answer), Asking(configured(tmp_path), str(tmp_path / "other.sock")) as asking:
            asking.await_refusal()
            assert "" == asking.name


def test_an_agent_at_a_port_is_no_witness(tmp_path: Path) -> None:
    with Asking(configured(tmp_path), "http://127.0.0.1:7635") as asking:
        assert "http://127.0.0.1:7635 is not a Unix socket, and only a Unix socket proves a process" == asking.why
        asking.look(1e12)
        assert ["witness.missing"] == asking.told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_socket_gets_no_secret(tmp_path: Path) -> None:
    place = tmp_path / "theirs.sock"
    tmp_path.chmod(0o777)
    with listening(place) as theirs:
        os.chown(place, 1234, -1)
        with Asking(configured(tmp_path), str(place)) as asking:
            assert "who can answer what they like" in asking.why
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.accept()


def test_a_life_is_known_by_each_of_its_incarnations_and_shown_by_its_secret_alone() -> None:
    life = OwnLife.begin(Random(1))
    assert life.name == life_of(f"{life.name}0000") == life_of(f"{life.name}ffff")
    assert life == OwnLife.shown_by(life.secret)
    assert life.name != OwnLife.shown_by("0" * 32).name
    assert life.secret not in repr(life)


@pytest.mark.parametrize("secret", [None, 7, "", "0" * 31, "0" * 33, "g" * 32, "A" * 32, "\u0661" * 32])
def test_what_is_no_secret_is_refused_without_being_repeated(secret: object) -> None:
    with pytest.raises(ConfigError, match="32 hexadecimal digits, and this is something else"):
        OwnLife.shown_by(secret)
