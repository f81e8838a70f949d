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
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from neli_router.agent.wire import PeersView, PeerView
from neli_router.cli import main
from neli_router.commands.peers import unled, why_of
from neli_router.config import Config
from neli_router.keyspace import Layout
from neli_router.member.member import Member
from neli_router.peers.kept import KeptMemory
from neli_router.settings.agent_options import AgentOptions
from tests.member.test_peer_footing import PARTITIONS, Listed
from tests.support.agents.running import Running, running
from tests.support.servers.process import free_udp_ports
from tests.support.tools import output_of, tool
from tests.support.waiting import PATIENCE, until

LEASE = 6.0
"""A shorter one ends while other tests take all cores."""

BEAT = 0.5
"""What is told comes with a beat, and tests wait for it."""


def neli(*words: str) -> Result:
    return CliRunner().invoke(main, words, env={"NELI_CONFIG": "", "NELI_AGENT": ""})


@pytest.fixture(name="listed")
def _listed(tmp_path: Path) -> Listed:
    return Listed(tmp_path)


@pytest.fixture(name="agents")
def _agents(listed: Listed, tmp_path: Path) -> Iterator[list[Running]]:
    with ExitStack() as stack:
        agents = []
        for i in range(3):
            layout = Layout(slots=64, partitions=PARTITIONS)
            config = Config(
                listed.address(i),
                protocol="term",
                name=f"m{i}",
                lease=LEASE,
                beat=BEAT,
                layout=layout,
                address=f"10.0.0.{i}:9",
            )
            agents.append(stack.enter_context(running(config, AgentOptions(socket=f"{tmp_path}/{i}.sock"))))
        until(lambda: [2, 2, 2] == shares(agents), "an even share")
        yield agents


def shares(agents: list[Running]) -> list[int]:
    return [len(one.agent.member.led) for one in agents]


def asked(folder: Path, path: str, of: int = 0) -> httpx.Response:
    with client_of(folder, of) as client:
        return client.get(path)


def client_of(folder: Path, of: int = 0) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=f"{folder}/{of}.sock")
    return httpx.Client(transport=transport, base_url="http://agent", timeout=PATIENCE)


def test_agents_among_peers_answer_for_what_they_lead_and_for_what_they_believe_that_others_lead(
    agents: list[Running], listed: Listed, tmp_path: Path
) -> None:
    led = agents[0].agent.member.led
    mine, other = next(iter(led)), next(i for i in range(PARTITIONS) if i not in led)
    assert 200 == asked(tmp_path, "/ready").status_code
    owner = asked(tmp_path, f"/v1/owner?role={mine}").json()
    assert ("m0", led[mine], False) == (owner["name"], owner["term"], owner["believed"])
    until(lambda: 0 == asked(tmp_path, "/v1/peers").json()["unled"], "leaders of all")
    leader = agents[other % 3].agent
    until(lambda: f"m{other % 3}" == asked(tmp_path, f"/v1/owner?role={other}").json()["name"], "its name")
    owner = asked(tmp_path, f"/v1/owner?role={other}").json()
    assert (True, listed.places[other % 3], f"10.0.0.{other % 3}:9") == (
        owner["believed"],
        owner["peer"],
        owner["address"],
    )
    assert leader.member.led[other] == owner["term"]
    keys = [f"customer-{i}" for i in range(20)]
    with client_of(tmp_path) as client:
        found = client.post("/v1/owners", json={"keys": keys}).json()["owners"]
        with client.stream("GET", f"/v1/watch?role={other}") as stream:
            first = next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert {"m0": False, "m1": True, "m2": True} == {one["name"]: one["believed"] for one in found}
    assert owner["name"] == json.loads(first.removeprefix("data:"))["name"]
    status = asked(tmp_path, "/v1/status").json()
    assert ("term", "member", 2) == (status["protocol"], status["member"], status["led"])
    assert "neli_partitions_led 2.0" in asked(tmp_path, "/metrics").text

    code = "import os; print(os.environ['NELI_ROLE'], os.environ['NELI_TERM'])"
    run = neli("run", "--agent", f"{tmp_path}/0.sock", "--role", str(mine), "--", sys.executable, "-c", code)
    assert 0 == run.exit_code, run.output

    result = neli("pin", "1", "m0", "--agent", f"{tmp_path}/0.sock", "--yes")
    assert (5, True) == (result.exit_code, "nobody writes down such a wish" in result.output)


def test_an_operator_names_a_leader_and_rebalances(agents: list[Running], listed: Listed, tmp_path: Path) -> None:
    def rebalance(i: int, *words: str) -> Result:
        return neli("rebalance", "--agent", f"{tmp_path}/{i}.sock", *words)

    result = rebalance(0, "--to", listed.places[2])
    assert (0, True) == (result.exit_code, f"asked that {listed.places[2]} leads all partitions" in result.output)
    rebalance(1, "--to", listed.places[2])
    until(lambda: [0, 0, 6] == shares(agents), "all led by one")
    said = json.loads(rebalance(2, "--output", "json").output)
    assert "m2" == said["member"]  # And how many it leads by now: some may have moved already.
    until(lambda: [2, 2, 2] == shares(agents), "an even share")

    result = rebalance(0, "--to", "elsewhere:1")
    assert (2, True) == (result.exit_code, "'elsewhere:1' is none of the peers" in result.output)
    result = rebalance(0, "--partition", "3")
    assert (2, True) == (result.exit_code, "name it by --to HOST:PORT" in result.output)


def test_a_peer_that_cannot_be_elected_is_refused_as_a_leader_and_as_an_heir(listed: Listed, tmp_path: Path) -> None:
    layout = Layout(slots=64, partitions=PARTITIONS)
    config = Config(listed.address(0), protocol="term", name="m0", lease=LEASE, beat=BEAT, layout=layout, replicas=2)
    with running(config, AgentOptions(socket=f"{tmp_path}/0.sock")):

        def say(*words: str) -> tuple[int, str]:
            result = neli(*words, "--agent", f"{tmp_path}/0.sock")
            return result.exit_code, result.output

        def state(i: int) -> str:
            answer = asked(tmp_path, "/v1/peers").json()
            return str(answer["peers"][i]["state"]) if "peers" in answer else ""

        until(lambda: state(1) != "", "a member that listens")
        code, said = say("rebalance", "--to", listed.places[2], "--partition", "0")
        one, other = listed.places[:2]
        assert (5, True) == (code, f"it is no replica of partition 0, which {one}, {other} elect: name one" in said)
        until(lambda: state(1) == "silent", "the silence of the others")
        code, said = say("rebalance", "--to", other)
        assert (5, True) == (code, f"Error: {other} was to lead, but it has been silent for " in said)
        assert f" s: start it, or name another of {one}" in said
        code, said = say("drain", "m0", "--yes")
        assert (0, False) == (code, "to move" in said or "Each goes to" in said)


def test_metrics_show_peers_elections_and_what_was_refused(
    agents: list[Running], listed: Listed, tmp_path: Path
) -> None:
    """A fourth process that has another key speaks from the place of a peer that left."""
    until(lambda: told(tmp_path)["neli_peers_alive"] == 3, "answers of all")
    until(lambda: told(tmp_path)["neli_partitions_unled"] == 0, "leaders of all")
    before = told(tmp_path)
    assert (3, 2) == (before["neli_peers"], before["neli_peers_majority"])
    assert before["neli_transitions_total{leader,elected}"] >= 2
    assert before["neli_datagrams_total{sent}"] > 0
    assert before["neli_datagrams_total{taken}"] > 0
    assert 0 == sum(value for name, value in before.items() if name == "neli_refused_datagrams_total{key}")
    assert "" == output_of(tool("promtool"), "check", "metrics", given=asked(tmp_path, "/metrics").content).strip()

    silent = f"neli_peer_alive{{{listed.places[2]}}}"
    assert 1 == before[silent]
    agents[2].agent.member.ask_close()
    until(lambda: sum(shares(agents[:2])) == PARTITIONS, "a takeover")
    until(lambda: told(tmp_path)[silent] == 0, "its silence")
    key = tmp_path / "key"
    key.write_text("0" * 64)
    key.chmod(0o600)
    stranger = f"{listed.address(2)}&key_file={key}"
    options: dict[str, Any] = {"lease": LEASE, "beat": BEAT, "layout": Layout(slots=64, partitions=PARTITIONS)}
    with Member(Config(stranger, protocol="term", name="m2", **options)):
        until(lambda: told(tmp_path)["neli_refused_datagrams_total{key}"] > 0, "a refusal")
        assert 0 == told(tmp_path)[silent]
    until(lambda: told(tmp_path)["neli_leader_changes_total"] > before["neli_leader_changes_total"], "a new leader")
    after = told(tmp_path)
    assert after["neli_term"] > before["neli_term"]
    assert 2 == after["neli_peers_alive"]
    until(lambda: told(tmp_path)["neli_partitions_unled"] == 0, "leaders of all")


def test_the_commands_show_peers_and_their_leaders_and_what_became_of_one_that_is_gone(
    agents: list[Running], listed: Listed, tmp_path: Path
) -> None:
    def say(*words: str) -> tuple[int, str]:
        result = neli(*words, "--agent", f"{tmp_path}/0.sock")
        return result.exit_code, result.output

    def settled(count: int) -> bool:
        view = asked(tmp_path, "/v1/peers").json()
        return bool(view["alive"] == count and not view["unled"])

    until(lambda: settled(3), "a group that is well")
    code, said = say("peers")
    assert (0, ["here", "alive", "alive"]) == (code, [line.split()[1] for line in said.splitlines()[1:]])
    assert (0, "PEER") == (say("members")[0], say("members")[1].split()[0])
    code, said = say("table")
    assert (0, PARTITIONS) == (code, len(said.splitlines()) - 1)
    assert {f"m{i}" for i in range(3)}.isdisjoint(said.split())
    assert set(listed.places) <= set(said.split())
    assert f"{listed.places[1]} leads" in say("events")[1]
    keys = [f"customer-{i}" for i in range(20)]
    code, said = say("owner", *keys)
    assert (0, {False, True}) == (code, {" believed  customer-" in line for line in said.splitlines()})
    assert all((" believed " in line) is not line.startswith("m0 ") for line in said.splitlines())

    def doctor() -> str:
        address = ("--ledger", listed.address(0), "--protocol", "term", "--socket", f"{tmp_path}/0.sock")
        return " ".join(neli("doctor", *address).output.split())

    assert "ok voters all 3 peers answer, and there is a leader; term " in doctor()
    agents[2].agent.member.ask_close()
    until(lambda: settled(2), "a takeover")
    said = doctor()
    assert "WARN voters 2 of 3 peers answer, this one included: the group bears fewer failures now" in said
    assert f"{listed.places[2]} is silent: it is down, or cut off" in said
    assert "append" not in said
    code, said = say("peers")
    assert (0, True) == (code, "silent" in said and "it is down, or cut off" in said)
    assert f"{listed.places[2]} is silent (nothing is heard of it)" in say("events")[1]

    agents[1].agent.member.ask_close()
    until(lambda: asked(tmp_path, "/v1/peers").json()["alive"] == 1, "the end of the majority")
    code, said = say("peers")
    assert (3, True) == (code, "1 of 3 peers answer, this one included, and it takes 2 to elect a leader" in said)
    until(lambda: "leads no more" in say("events")[1], "the end of its own leads")
    assert "FAIL voters 1 of 3 peers answer, this one included, and it takes 2 to elect a leader" in doctor()
    why = asked(tmp_path, "/v1/status").json()["why"]
    assert "1 of 3 peers answer, this one included, and it takes 2 to elect a leader" == why


@pytest.mark.redis
def test_with_a_store_of_owners_events_and_the_table_say_why_a_leader_changed(
    redis: str, listed: Listed, tmp_path: Path
) -> None:
    ownership, layout = f"{redis}/{uuid4().hex}", Layout(slots=64, partitions=PARTITIONS)

    def say(*words: str) -> str:
        return neli(*words, "--agent", f"{tmp_path}/0.sock").output

    with ExitStack() as stack:
        agents = []
        for i in range(3):
            config = Config(
                listed.address(i),
                protocol="term",
                name=f"m{i}",
                lease=LEASE,
                beat=BEAT,
                layout=layout,
                ownership=ownership,
            )
            agents.append(stack.enter_context(running(config, AgentOptions(socket=f"{tmp_path}/{i}.sock"))))
        until(lambda: [2, 2, 2] == shares(agents), "an even share")
        until(lambda: {"m0", "m1", "m2"} <= set(say("table").split()), "owners in the store")
        assert ["PARTITION", "OWNER", "TERM", "WHY"] == say("table").split()[:4]
        # Of those that it found leading when it came, it has not heard why; nor, for a moment, of what the store tells.
        until(
            lambda: all("support it" in line for line in say("table").splitlines() if " m0 " in line),
            "reasons of its own partitions",
        )
        time.sleep(LEASE * 1.1)  # What moves within a lease of a coming is told as a part of that.
        # It is drained, and does not leave: its leaving would be reason enough, if the store tells both at once.
        assert 0 == neli("drain", "m2", "--yes", "--agent", f"{tmp_path}/2.sock").exit_code
        until(lambda: [3, 3, 0] == shares(agents), "a takeover")
        until(lambda: f"leads more ({listed.places[2]} ceded" in say("events"), "an event with its reason")
        until(lambda: f"{listed.places[2]} ceded" in say("table"), "a table with it")
        assert "believed" not in say("owner", "customer-7")


def told(folder: Path) -> dict[str, float]:
    """The metrics, with the values of their labels: role before reason."""
    found = {}
    for family in text_string_to_metric_families(asked(folder, "/metrics").text):
        for sample in family.samples:
            labels = ",".join(text for _, text in sorted(sample.labels.items(), reverse=True))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_an_agent_is_drained_passes_on_what_it_leads_and_gets_it_back(
    agents: list[Running], listed: Listed, tmp_path: Path
) -> None:
    def drain(verb: str, name: str, *words: str) -> Result:
        return neli(verb, name, "--agent", f"{tmp_path}/0.sock", *words)

    result = drain("drain", "m1", "--yes")
    assert (2, True) == (result.exit_code, "Ask the agent of the other" in result.output)
    result = drain("drain", "m0", "--dry-run")
    assert (0, True) == (result.exit_code, "2 partitions would move:" in result.output)
    assert 0 == asked(tmp_path, "/v1/status").json()["shed"]
    result = drain("drain", listed.places[0], "--yes")
    assert (0, True) == (
        result.exit_code,
        "also after a restart, this member leads only while no other" in result.output,
    )
    until(lambda: [0, 3, 3] == shares(agents), "the drained one to lead nothing")

    def shedding() -> list[tuple[str, int, bool]]:
        return [(one["name"], one["shed"], one["drained"]) for one in asked(tmp_path, "/v1/peers", 1).json()["peers"]]

    until(lambda: [("m0", 6, True), ("m1", 0, False), ("m2", 0, False)] == shedding(), "another agent to know of it")
    said = neli("peers", "--agent", f"{tmp_path}/1.sock").output.splitlines()[1]
    assert said.split()[4:7] == ["all", "m0", "10.0.0.0:9"]
    assert said.endswith("it is drained: it leads only while no other peer can")
    assert PARTITIONS == asked(tmp_path, "/v1/status").json()["shed"]
    words = ("--ledger", listed.address(0), "--protocol", "term", "--socket", f"{tmp_path}/0.sock")
    assert "its member m0 leads 6 partitions only while no other peer can" in " ".join(
        neli("doctor", *words).output.split()
    )
    said = drain("undrain", "m0").output
    assert "Its peers give back what it is preferred for, one partition after another, within some seconds.\n" == said
    until(lambda: [2, 2, 2] == shares(agents), "an even share")
    until(lambda: ("m0", 0, False) == shedding()[0], "another agent to know of that, too")
    assert "It was not drained.\n" == drain("undrain", "m0").output
    said = json.loads(drain("undrain", "m0", "--output", "json").output)
    assert (True, []) == (said["done"], said["moves"])
    agents[1].agent.member.ask_close()
    agents[2].agent.member.ask_close()
    until(
        lambda: {"here", "silent"} == {one["state"] for one in asked(tmp_path, "/v1/peers").json()["peers"]},
        "the silence of all others",
    )
    assert "to move" not in drain("drain", "m0").output


def test_an_agent_of_gossip_is_drained_and_another_leads_until_all_others_are_gone(
    listed: Listed, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        agents = []
        for i in range(3):
            layout = Layout(slots=64, partitions=PARTITIONS)
            config = Config(listed.address(i), protocol="gossip", name=f"m{i}", lease=LEASE, layout=layout)
            agents.append(stack.enter_context(running(config, AgentOptions(socket=f"{tmp_path}/{i}.sock"))))
        until(lambda: PARTITIONS in shares(agents), "a leader")
        first = shares(agents).index(PARTITIONS)

        def say(*words: str) -> Result:
            return neli(*words, "--agent", f"{tmp_path}/{first}.sock")

        result = say("drain", f"m{first}", "--yes")
        assert (0, True) == (result.exit_code, "also after a restart" in result.output)
        until(lambda: shares(agents)[first] == 0 and PARTITIONS in shares(agents), "another leader")
        second = shares(agents).index(PARTITIONS)
        third = 3 - first - second
        assert 0 == neli("drain", f"m{third}", "--yes", "--agent", f"{tmp_path}/{third}.sock").exit_code
        until(
            lambda: (
                [one["drained"] for one in asked(tmp_path, "/v1/peers", second).json()["peers"]]
                == [i != second for i in range(3)]
            ),
            "the leader to know who is drained",
        )
        assert PARTITIONS == shares(agents)[second]
        agents[second].agent.member.ask_close()
        until(lambda: PARTITIONS in (shares(agents)[first], shares(agents)[third]), "a drained leader")
        result = say("undrain", f"m{first}", "--yes")
        assert (0, True) == (result.exit_code, "This member may be elected again" in result.output)
        until(lambda: PARTITIONS == shares(agents)[first], "the one that is not drained")
        result = say("pin", "1", "m0", "--yes")
        assert (5, True) == (result.exit_code, "drain a member at its own agent" in result.output)


def test_of_agents_with_preferences_the_last_one_leads_only_what_no_other_can(listed: Listed, tmp_path: Path) -> None:
    with ExitStack() as stack:
        agents = []
        for i in range(3):
            config = Config(
                listed.address(i),
                protocol="term",
                name=f"m{i}",
                lease=LEASE,
                beat=BEAT,
                layout=Layout(slots=64, partitions=PARTITIONS),
                preferences=f"0-4: {listed.places[0]}; others,{listed.places[2]}",
            )
            agents.append(stack.enter_context(running(config, AgentOptions(socket=f"{tmp_path}/{i}.sock"))))
        until(lambda: [5, 0, 0] == [len(set(one.agent.member.led) - {5}) for one in agents], "what the rules say")
        until(lambda: 6 == sum(shares(agents)[:2]), "leaders of all, and not the last one")
        assert 0 == neli("drain", "m0", "--yes", "--agent", f"{tmp_path}/0.sock").exit_code
        until(lambda: 0 == shares(agents)[0] and 6 == sum(shares(agents)), "a takeover by the others")


def test_an_agent_that_has_just_started_is_asked_again_for_its_peers(listed: Listed, tmp_path: Path) -> None:
    said: list[tuple[int, str]] = []

    def shows_them() -> bool:
        answer = asked(tmp_path, "/v1/peers")
        said.append((answer.status_code, answer.json().get("kind", "")))
        return answer.status_code == httpx.codes.OK

    config = Config(listed.address(0), protocol="term", lease=LEASE, beat=BEAT)
    with running(config, AgentOptions(socket=f"{tmp_path}/0.sock")):
        until(shows_them, "the peers")
    # Before the member listens, it must not be said that its members do not elect.
    assert {(200, "")} == set(said) - {(503, "NotReady")}


def test_where_leaders_are_not_elected_nobody_can_be_named(tmp_path: Path) -> None:
    with running(Config(f"sqlite://{tmp_path}/ledger.db"), AgentOptions(socket=f"{tmp_path}/a.sock")):
        result = neli("rebalance", "--agent", f"{tmp_path}/a.sock")
        assert (5, True) == (result.exit_code, "choose the protocol 'term'" in result.output)
        result = neli("peers", "--agent", f"{tmp_path}/a.sock")
        assert (5, True) == (
            result.exit_code,
            "members do not elect among themselves: ask for the members" in result.output,
        )


@pytest.mark.parametrize("words", [("audit", "peers://a:1,b:1/x"), ("events", "--ledger", "peers://a:1,b:1/x")])
def test_peers_are_refused_as_a_ledger_that_could_be_read(words: tuple[str, ...]) -> None:
    result = neli(*words)
    assert (2, True) == (result.exit_code, "peers have none, and write nothing down" in result.output)


def test_flags_spell_the_address_of_a_list(listed: Listed, tmp_path: Path) -> None:
    peers = ",".join(listed.places)
    result = neli("doctor", "--peers", peers, "--me", listed.places[1], "--state", str(tmp_path), "--protocol", "term")
    for words in ("3 peers, and an address is known for each", f"this member is {listed.places[1]}", "no key is named"):
        assert words in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--me", "a:1"), "--me must come with --peers, which names all members: add it"),
        (("--peers", "a:1", "--ledger", "memory://x"), "--ledger and --peers both say where the group is: leave one"),
        (
            ("--peers", "127.0.0.1:1", "--group", "a/b", "--protocol", "term"),
            "--group must be the name of a group: 1 to",
        ),
        (("--peers", "127.0.0.1:1", "--me", "127.0.0.1:2", "--protocol", "term"), "--me is not in the list of peers"),
        (("--peers", "127.0.0.1:1", "--state", "here", "--protocol", "term"), "--state must be an absolute path"),
        (("--peers", "127.0.0.1", "--protocol", "term"), "peers were wanted as HOST:PORT,HOST:PORT, with ports from"),
        (("--peers", "a:1,b:1,c:1", "--protocol", "term", "--state", "/x"), "name its file with --key-file PATH; `op"),
        (("--peers", "a:1,b:1,c:1", "--protocol", "term", "--key-file", "/x"), "outlasts a restart with --state PATH"),
        (("--peers", "127.0.0.1:1"), "a list of peers is no ledger of induction: choose the protocol term or gossip"),
        (("--peers", "a:1,b:1,c:1", "--protocol", "term", "--state", "/x"), "peers on several hosts need a key"),
    ],
)
def test_a_wrong_list_is_refused_in_words_that_help(words: tuple[str, ...], expected: str) -> None:
    result = neli("agent", *words)
    assert (2, True) == (result.exit_code, expected in result.output)
    assert "ledger=" not in result.output
    assert "?" not in result.output


@pytest.mark.parametrize("protocol", ["term", "gossip"])
def test_an_elector_without_a_list_is_told_how_to_name_one(protocol: str) -> None:
    result = neli("agent", "--protocol", protocol)
    assert (2, 1) == (result.exit_code, result.output.count("Error:"))
    assert "no peers are named, among whom to elect: name them all, such as --peers a:7801,b" in result.output


def test_doctor_says_that_another_process_has_the_port_of_this_member(listed: Listed) -> None:
    words = ("doctor", "--peers", ",".join(listed.places), "--me", listed.places[0], "--protocol", "term")
    assert "the port of this member is free" in neli(*words).output
    host, _, port = listed.places[0].rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((host, int(port)))
        result = neli(*words)
    said = " ".join(result.output.split())
    assert (1, True) == (result.exit_code, f"the place {listed.places[0]} of this member was wanted, but ano" in said)


def test_doctor_does_not_take_the_port_of_the_agent_that_answers_for_another_process(
    agents: list[Running], listed: Listed, tmp_path: Path
) -> None:
    given = ("--me", listed.places[0], "--protocol", "term", "--socket", f"{tmp_path}/0.sock")
    result = neli("doctor", "--peers", ",".join(listed.places), *given)
    assert (0, False) == (result.exit_code, "another process listens there" in result.output)


def test_doctor_fails_when_the_agent_at_the_socket_runs_another_list_or_is_another_peer(
    agents: list[Running], listed: Listed, tmp_path: Path
) -> None:
    def doctor(peers: list[str], me: str) -> tuple[int, str]:
        given = ("--me", me, "--protocol", "term", "--socket", f"{tmp_path}/0.sock")
        result = neli("doctor", "--peers", ",".join(peers), *given)
        return result.exit_code, " ".join(result.output.split())

    alone, (port,) = ", ".join(listed.places), free_udp_ports(1)
    code, said = doctor([*listed.places[:2], f"127.0.0.1:{port}"], f"127.0.0.1:{port}")
    assert (1, True) == (code, f"FAIL agent the agent at {tmp_path}/0.sock runs another list of peers: {alone}" in said)
    assert "-> name this member's own with --socket" in said
    assert "voters" not in said
    code, said = doctor(listed.places, listed.places[1])
    assert (1, True) == (code, f"0.sock is {listed.places[0]}, and not {listed.places[1]}" in said)


def test_one_partition_without_a_leader_is_told_as_one() -> None:
    assert ["1 partition has", "2 partitions have"] == [unled(PeersView([], 2, 3, 1, one)) for one in (1, 2)]
    assert "start all peers with the same" in str(why_of(PeerView("a:1", "refused", None, 0, "protocol")))


def test_doctor_says_what_a_member_would_say_of_its_key_and_of_its_votes(listed: Listed, tmp_path: Path) -> None:
    key, state = tmp_path / "key", tmp_path / "state0"
    key.write_text("too short")
    key.chmod(0o600)
    given = ("--peers", ",".join(listed.places), "--me", listed.places[0], "--group", "jobs", "--state", str(state))
    result = neli("doctor", *given, "--protocol", "term", "--key-file", str(key))
    said = " ".join(result.output.split())
    assert (1, True) == (result.exit_code, "holds 9 bytes, and a key has 16 at least" in said)
    assert f"{state} can be made" in said
    with closing(KeptMemory(state, group="jobs", me=listed.places[0], mark=b"term 256 3")) as memory:
        memory.keep(b"")
    assert f"{state} can be written to" in " ".join(neli("doctor", *given, "--protocol", "term").output.split())
    result = neli("doctor", *given, "--protocol", "gossip")
    said = " ".join(result.output.split())
    assert (1, True) == (result.exit_code, "the file was written for another protocol, or for another number" in said)


def test_doctor_says_what_an_even_number_costs_and_which_name_nobody_knows(tmp_path: Path) -> None:
    places = [f"127.0.0.1:{port}" for port in (7801, 7802, 7803, 7804)]
    result = neli("doctor", "--peers", ",".join(places), "--me", places[0], "--protocol", "term")
    assert "4 peers need 3 for a majority, and bear 1 failure, as 3 do" in " ".join(result.output.split())
    key = tmp_path / "key"
    key.write_text("0" * 64)
    key.chmod(0o600)
    missing = ["a.invalid:1", "b.invalid:1", "c.invalid:1"]
    given = ("--key-file", str(key), "--state", f"{tmp_path}/nowhere", "--me", missing[0], "--protocol", "term")
    result = neli("doctor", "--peers", ",".join(missing), *given)
    said = " ".join(result.output.split())
    assert "no address is known for a.invalid:1, b.invalid:1, c.invalid:1" in said
    assert "its name does not resolve" in said
    assert "nowhere can be made" in said
