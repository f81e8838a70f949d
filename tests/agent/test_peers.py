"""Agents of a group without a broker: what they show and refuse, and how an operator moves their leaders."""

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from neli_router.agent.wire import PeersView, PeerView
from neli_router.commands.lookups import unled, why_of
from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.drivers.peers.kept import KeptMemory
from tests.member.test_peer_footing import PARTITIONS, Listed
from tests.support import commands
from tests.support.agents.running import TOKEN, Running, over_unix, running
from tests.support.servers.process import free_udp_ports
from tests.support.tools import output_of, tool
from tests.support.waiting import until

LEASE = 6.0
"""A shorter one ends while other tests take all cores."""

LAYOUT = Layout(slots=64, partitions=PARTITIONS)
OPTIONS: dict[str, Any] = {"protocol": "term", "lease": LEASE, "beat": 0.5, "layout": LAYOUT}
"""Tests wait for news, which comes with a beat: so the beat is short."""


def neli(*words: str) -> tuple[int, str]:
    """The exit code and the output."""
    result = commands.neli(*words)
    return result.exit_code, result.output


def doctor(peers: list[str], *words: str, protocol: str = "term") -> tuple[int, str]:
    code, said = neli("doctor", "--peers", ",".join(peers), "--group", "jobs", "--protocol", protocol, *words)
    return code, " ".join(said.split())


def key_in(folder: Path, content: str) -> str:
    path = folder / "key"
    path.write_text(content)
    path.chmod(0o600)
    return str(path)


class Group:
    """Agents of m0, m1 and so on, at the places of one list."""

    def __init__(
        self, folder: Path, stack: ExitStack, *, count: int = 3, has_port: bool = False, **options: Any
    ) -> None:
        listed = Listed(folder)
        self.folder, self.places = folder, listed.places
        self.agents: list[Running] = []
        for i in range(count):
            here = {"ledger": listed.address(i), "name": f"m{i}", "address": f"10.0.0.{i}:9"}
            config = Config.of({**OPTIONS, **here, **options})
            port: dict[str, Any] = {"listen": "127.0.0.1:0", "token": TOKEN} if has_port and i == 0 else {}
            self.agents.append(stack.enter_context(running(config, AgentOptions(socket=self.socket(i), **port))))

    def socket(self, i: int) -> str:
        return f"{self.folder}/{i}.sock"

    def shares(self) -> list[int]:
        return [len(one.agent.member.led) for one in self.agents]

    def await_even(self) -> None:
        until(lambda: [2, 2, 2] == self.shares(), "an even share")

    def await_well(self, count: int) -> None:
        """Wait until `count` peers answer and each partition has a leader, as the first agent sees it."""

        def is_well() -> bool:
            view = self.ask("/v1/peers")
            return bool(view["alive"] == count and not view["unled"])

        until(is_well, "a group that is well")

    def leave(self, i: int) -> None:
        self.agents[i].agent.member.engine.ask_close()

    def get(self, path: str, of: int = 0) -> httpx.Response:
        with over_unix(self.socket(of)) as client:
            return client.get(path)

    def ask(self, path: str, of: int = 0) -> Any:
        return self.get(path, of).json()

    def say(self, *words: str, of: int = 0) -> tuple[int, str]:
        return neli(*words, "--agent", self.socket(of))

    def doctor(self) -> str:
        return doctor(self.places, "--me", self.places[0], "--socket", self.socket(0))[1]


@pytest.fixture(name="stack")
def _stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(name="one_group", scope="module")
def _one_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(tmp_path_factory.mktemp("peers"), stack)


@pytest.fixture(name="group")
def _group(one_group: Group) -> Group:
    """Three healthy agents that lead two partitions each. Tests leave them that way, or wait until they are."""
    one_group.await_even()
    one_group.await_well(3)
    return one_group


def test_agents_among_peers_answer_for_what_they_lead_and_for_what_they_believe_that_others_lead(group: Group) -> None:
    led = group.agents[0].agent.member.led
    mine, other = next(iter(led)), next(i for i in range(PARTITIONS) if i not in led)
    assert 200 == group.get("/ready").status_code
    owner = group.ask(f"/v1/owner?partition={mine}")
    assert ("m0", led[mine], False) == (owner["name"], owner["term"], owner["believed"])
    place = other % 3
    until(lambda: f"m{place}" == group.ask(f"/v1/owner?partition={other}")["name"], "its name")
    owner = group.ask(f"/v1/owner?partition={other}")
    expected = (True, group.places[place], f"10.0.0.{place}:9")
    assert expected == (owner["believed"], owner["peer"], owner["address"])
    assert group.agents[place].agent.member.led[other] == owner["term"]
    keys = [f"customer-{i}" for i in range(20)]
    with over_unix(group.socket(0)) as client:
        found = client.post("/v1/owners", json={"keys": keys}).json()["owners"]
        with client.stream("GET", f"/v1/watch?partition={other}") as stream:
            first = next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert {"m0": False, "m1": True, "m2": True} == {one["name"]: one["believed"] for one in found}
    assert owner["name"] == json.loads(first.removeprefix("data:"))["name"]
    status = group.ask("/v1/status")
    assert ("term", "member", 2) == (status["protocol"], status["member"], status["led"])
    assert "neli_partitions_led 2.0" in group.get("/metrics").text

    code = "import os; print(os.environ['NELI_ROLE'], os.environ['NELI_TERM'])"
    run = neli("run", "--agent", group.socket(0), "--partition", str(mine), "--", sys.executable, "-c", code)
    assert 0 == run[0], run
    refused, said = group.say("pin", "1", "m0", "--yes")
    assert (5, True) == (refused, "such wishes are not recorded" in said)


def test_an_operator_names_a_leader_and_rebalances(group: Group) -> None:
    code, said = group.say("rebalance", "--to", group.places[2])
    assert (0, True) == (code, f"asked that {group.places[2]} leads all partitions" in said)
    until(lambda: [0, 0, 6] == group.shares(), "all led by one")
    code, said = group.say("rebalance", "--output", "json", of=2)
    assert "m2" == json.loads(said)["member"]  # And how many it leads by now: some may have moved already.
    group.await_even()
    code, said = group.say("rebalance", "--partition", "3")
    assert (2, True) == (code, "name it with --to HOST:PORT" in said)


def test_an_agent_is_drained_passes_on_what_it_leads_and_gets_it_back(group: Group) -> None:
    code, said = group.say("drain", "m1", "--yes")
    assert (2, True) == (code, "Ask the other member's agent" in said)
    code, said = group.say("drain", "m0", "--dry-run")
    assert (0, True) == (code, "2 partitions would move:" in said)
    assert 0 == group.ask("/v1/status")["shed"]
    code, said = group.say("drain", group.places[0], "--yes")
    assert (0, True) == (code, "also after a restart, this member leads only while no other" in said)
    until(lambda: [0, 3, 3] == group.shares(), "the drained one to lead nothing")

    def shedding() -> list[tuple[str, int, bool]]:
        return [(one["name"], one["shed"], one["drained"]) for one in group.ask("/v1/peers", 1)["peers"]]

    until(lambda: [("m0", 6, True), ("m1", 0, False), ("m2", 0, False)] == shedding(), "another agent to know of it")
    row = group.say("peers", of=1)[1].splitlines()[1]
    assert row.split()[4:7] == ["all", "m0", "10.0.0.0:9"]
    assert row.endswith("it is drained: it leads only while no other peer can")
    assert PARTITIONS == group.ask("/v1/status")["shed"]
    assert "its member m0 leads 6 partitions only while no other peer can" in group.doctor()
    expected = "Its peers give back what it is preferred for, one partition after another, within some seconds.\n"
    assert expected == group.say("drain", "m0", "--undo")[1]
    group.await_even()
    until(lambda: ("m0", 0, False) == shedding()[0], "another agent to know of that, too")
    assert "It was not drained.\n" == group.say("drain", "m0", "--undo")[1]
    found = json.loads(group.say("drain", "m0", "--undo", "--output", "json")[1])
    assert (True, []) == (found["done"], found["moves"])


def test_doctor_fails_when_the_agent_at_the_socket_runs_another_list_or_is_another_peer(group: Group) -> None:
    places, at = group.places, ("--socket", group.socket(0))
    code, said = doctor(places, "--me", places[0], *at)
    assert (0, False) == (code, "another process listens there" in said)  # It is the agent itself.
    (port,) = free_udp_ports(1)
    code, said = doctor([*places[:2], f"127.0.0.1:{port}"], "--me", f"127.0.0.1:{port}", *at)
    theirs = f"this is the agent of peers://{','.join(places)}/jobs"
    expected = f"FAIL agent the agent at {group.socket(0)} serves another group: {theirs}, and this configuration is of"
    assert (1, True) == (code, expected in said)
    assert "-> name another socket with --socket" in said
    assert "voters" not in said
    code, said = doctor(places, "--me", places[1], *at)
    assert (1, True) == (code, f"0.sock is {places[0]}, and not {places[1]}" in said)


def test_commands_show_peers_their_leaders_and_who_is_gone(stack: ExitStack, tmp_path: Path) -> None:
    group = Group(tmp_path, stack)
    group.await_even()
    group.await_well(3)
    places, say = group.places, group.say

    code, said = say("peers")
    assert (0, ["here", "alive", "alive"]) == (code, [line.split()[1] for line in said.splitlines()[1:]])
    assert (0, "PEER") == (say("members")[0], say("members")[1].split()[0])
    code, said = say("table")
    assert (0, PARTITIONS) == (code, len(said.splitlines()) - 1)
    assert {f"m{i}" for i in range(3)}.isdisjoint(said.split())
    assert set(places) <= set(said.split())
    assert f"{places[1]} leads" in say("events")[1]
    code, said = say("owner", *(f"customer-{i}" for i in range(20)))
    assert (0, {False, True}) == (code, {" believed  customer-" in line for line in said.splitlines()})
    assert all((" believed " in line) is not line.startswith("m0 ") for line in said.splitlines())
    assert "ok voters all 3 peers answer, and there is a leader; term " in group.doctor()
    until(lambda: "neli_peers_alive 3.0" in group.get("/metrics").text, "answers of all")
    assert "" == output_of(tool("promtool"), "check", "metrics", given=group.get("/metrics").content).strip()

    group.leave(2)
    group.await_well(2)
    said = group.doctor()
    assert "WARN voters 2 of 3 peers answer, this one included: the group bears fewer failures now" in said
    assert f"{places[2]} is silent: it is down, or cut off" in said
    assert "append" not in said
    code, said = say("peers")
    assert (0, True) == (code, "silent" in said and "it is down, or cut off" in said)
    assert f"{places[2]} is silent (nothing is heard of it)" in say("events")[1]

    group.leave(1)
    until(lambda: group.ask("/v1/peers")["alive"] == 1, "the end of the majority")
    minority = "1 of 3 peers answer, this one included, and it takes 2 to elect a leader"
    code, said = say("peers")
    assert (3, True) == (code, minority in said)
    until(lambda: "no longer leads" in say("events")[1], "the end of its own leads")
    assert f"FAIL voters {minority}" in group.doctor()
    assert minority == group.ask("/v1/status")["why"]
    assert "to move" not in say("drain", "m0")[1]


def test_a_single_peer_shows_its_list_and_refuses_a_hopeless_heir(stack: ExitStack, tmp_path: Path) -> None:
    group = Group(tmp_path, stack, count=1, replicas=2)
    answers: list[tuple[int, str]] = []

    def shows_them() -> bool:
        answer = group.get("/v1/peers")
        answers.append((answer.status_code, answer.json().get("kind", "")))
        return answer.status_code == httpx.codes.OK

    until(shows_them, "the peers")
    # Before the member listens, the agent must not claim that its members do not elect.
    assert {(200, "")} == set(answers) - {(503, "NotReady")}
    one, other, third = group.places
    code, said = group.say("rebalance", "--to", third, "--partition", "0")
    assert (5, True) == (code, f"it is no replica of partition 0, which {one}, {other} elect: name one" in said)
    until(lambda: group.ask("/v1/peers")["peers"][1]["state"] == "silent", "the silence of the others")
    code, said = group.say("rebalance", "--to", other)
    assert (5, True) == (code, f"Error: {other} was to lead, but it has been silent for " in said)
    assert f" s: start it, or name another of {one}" in said
    code, said = group.say("drain", "m0", "--yes")
    assert (0, False) == (code, "to move" in said or "Each goes to" in said)


@pytest.mark.redis
def test_with_a_store_of_owners_the_reasons_of_changes_are_shown(redis: str, stack: ExitStack, tmp_path: Path) -> None:
    group = Group(tmp_path, stack, ownership=f"{redis}/{uuid4().hex}")

    def printed(*words: str) -> str:
        return group.say(*words)[1]

    group.await_even()
    until(lambda: {"m0", "m1", "m2"} <= set(printed("table").split()), "owners in the store")
    assert ["PARTITION", "OWNER", "TERM", "WHY"] == printed("table").split()[:4]
    # An agent has no reasons for leaders from before its start, and the store's come a moment later.
    until(lambda: all("support it" in row for row in printed("table").splitlines() if " m0 " in row), "its reasons")
    time.sleep(LEASE * 1.1)  # A move is merged into the event of a join less than a lease earlier.
    # A drain, because the log would name a departure as the reason if both arrived together.
    assert 0 == group.say("drain", "m2", "--yes", of=2)[0]
    until(lambda: [3, 3, 0] == group.shares(), "a takeover")
    until(lambda: f"leads more ({group.places[2]} ceded" in printed("events"), "an event with its reason")
    until(lambda: f"{group.places[2]} ceded" in printed("table"), "a table with it")
    assert "believed" not in printed("owner", "customer-7")


def test_a_member_that_nothing_prefers_may_be_elected_after_a_drain(stack: ExitStack, tmp_path: Path) -> None:
    group = Group(tmp_path, stack, count=1, policy="random")
    until(lambda: group.get("/v1/peers").status_code == httpx.codes.OK, "the peers")
    assert 0 == group.say("drain", "m0", "--yes")[0]
    until(lambda: PARTITIONS == group.ask("/v1/status")["shed"], "the drain")
    assert "This member may be elected again" in group.say("drain", "m0", "--undo")[1]


def test_where_leaders_are_not_elected_nobody_can_be_named(agent: Running) -> None:
    beyond = "members do not elect among themselves: ask for the members"
    for command, words in ("rebalance", "choose the protocol 'term'"), ("peers", beyond):
        code, said = neli(command, "--agent", agent.options.socket or "")
        assert (5, True) == (code, words in said)


def test_partitions_without_a_leader_are_counted_and_a_peer_that_is_refused_says_why() -> None:
    assert ["1 partition has", "2 partitions have"] == [unled(PeersView([], 2, 3, 1, one)) for one in (1, 2)]
    assert "start all peers with the same" in str(why_of(PeerView("a:1", "refused", None, 0, "protocol")))


def test_doctor_says_of_a_list_a_port_a_key_and_votes_what_the_member_would_say(tmp_path: Path) -> None:
    places = Listed(tmp_path).places
    first = ("--me", places[0], "--state", str(tmp_path))
    said = doctor(places, *first)[1]
    assert "3 peers, and an address is known for each" in said
    assert f"this member is {places[0]}" in said
    assert "no key is named" in said
    assert "the port of this member is free" in said
    host, _, port = places[0].rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((host, int(port)))
        code, said = doctor(places, *first)
    assert (1, True) == (code, f"the place {places[0]} of this member was wanted, but ano" in said)

    state = tmp_path / "state0"
    words = ("--me", places[0], "--group", "jobs", "--state", str(state))
    code, said = doctor(places, *words, "--key-file", key_in(tmp_path, "too short"))
    assert (1, True) == (code, "holds 9 bytes, and a key has 16 at least" in said)
    assert f"{state} can be made" in said
    with closing(KeptMemory(state, group="jobs", me=places[0], mark=b"term 256 3")) as memory:
        memory.keep(b"")
    assert f"{state} can be written to" in doctor(places, *words)[1]
    code, said = doctor(places, *words, protocol="gossip")
    assert (1, True) == (code, "the file was written for another protocol, or for another number" in said)
    missing = ["a.invalid:1", "b.invalid:1", "c.invalid:1"]
    known = ("--key-file", key_in(tmp_path, "0" * 64), "--state", f"{tmp_path}/nowhere")
    said = doctor(missing, "--me", missing[0], *known)[1]
    assert "no address is known for a.invalid:1, b.invalid:1, c.invalid:1" in said
    assert "its name does not resolve" in said
    assert "nowhere can be made" in said
