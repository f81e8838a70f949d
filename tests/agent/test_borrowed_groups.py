"""Agents of groups that live in a consumer group of a real Kafka, and publish owners to a real Redis: as processes.

The agents' commands, pages and metrics show what the broker provides; what such a protocol cannot do is refused in
words.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from click.testing import Result

from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.core.exit_codes import EXIT_DONE, EXIT_REFUSED
from neli_router.core.keyspace import Layout
from neli_router.drivers.open import owners_at
from neli_router.drivers.owners.base import Card, Claim
from neli_router.errors import GroupMismatch, LedgerUnusable
from tests.support.agents.processes import AgentProcess
from tests.support.agents.running import over_unix, running
from tests.support.commands import neli
from tests.support.waiting import until

PARTITIONS = 4
LEASE = 5.0
NOWHERE = Config("kafka://127.0.0.1:1/jobs", protocol="neli", layout=Layout(64, PARTITIONS))
WISHES = {
    "load": {"loads": {"0": 1.0}},
    "witness": {"ledger": "kafka://localhost/jobs", "member": "c", "secret": 32 * "0"},
}


class BorrowingAgent(AgentProcess):
    """An agent that is asked over its socket, and by commands."""

    def get(self, path: str) -> httpx.Response:
        with over_unix(str(self.socket)) as client:
            return client.get(path)

    @property
    def shown(self) -> dict[str, int]:
        """Each member on its page, and how many partitions it owns there."""
        status = self.get("/v1/status").json()
        return {member["name"]: member["partitions"] for member in status["members"]}

    def ask(self, *command: str) -> Result:
        return neli(*command, "--agent", self.address)

    def metric(self, name: str) -> float | None:
        lines = dict(line.rsplit(" ", 1) for line in self.get("/metrics").text.splitlines() if line[:1] != "#")
        return float(lines[name]) if name in lines else None


@pytest.fixture(name="start")
def _start(kafka: str, redis: str, tmp_path: Path) -> Iterator[Any]:
    group = f"group-{uuid4().hex}"
    with ExitStack() as stack:

        def start(name: str, protocol: str, partitions: int = PARTITIONS) -> BorrowingAgent:
            options: dict[str, Any] = {
                "ledger": f"kafka://{kafka}/{group}",
                "ownership": f"{redis}/{group}",
                "protocol": protocol,
                "layout": {"partitions": partitions, "slots": 64},
                "address": f"{name}:1",
                "lease": LEASE,
            }
            return stack.enter_context(BorrowingAgent(name, tmp_path, **options))

        yield start


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.process
def test_a_killed_agent_vanishes_from_the_others_page_which_takes_over_under_higher_terms(start: Any) -> None:
    a, b = start("a", "fast-neli"), start("b", "fast-neli")
    until(lambda: {"a": 2, "b": 2} == a.shown == b.shown, "two members with two partitions each")
    until(lambda: a.get("/ready").status_code == 200, "its readiness")

    # Its commands and its numbers.
    owners = [json.loads(line) for line in a.ask("table", "--output", "json").output.splitlines()]
    assert {"a": 2, "b": 2} == {name: [one["owner"] for one in owners].count(name) for name in "ab"}
    lines = a.ask("owner", *(f"--partition={i}" for i in range(4)), "--output=json").output.splitlines()
    told = [json.loads(line) for line in lines]
    assert [(one["name"], one["address"]) for one in told] == [(one["owner"], f"{one['owner']}:1") for one in owners]
    rows = sorted(row.split()[:5] for row in a.ask("members").output.splitlines()[1:])
    assert [["a", "a:1", "-", "1", "2"], ["b", "b:1", "-", "1", "2"]] == rows
    assert (2, 4, 4) == tuple(a.metric(f"neli_{name}") for name in ("members", "partitions", "partitions_owned"))
    assert a.metric("neli_records_total") is None
    status = a.get("/v1/status").json()
    assert ("fast-neli", "kafka", "redis") == (status["protocol"], status["table"]["address"][:5], status["store"][:5])

    # A program on its host leads, for no longer than the member itself may.
    mine = next(one["partition"] for one in owners if one["owner"] == "a")
    lease = a.get(f"/v1/lease?partition={mine}").json()
    assert lease["leads"]
    assert 0 < lease["remaining"] <= LEASE

    # The limits of such a group.
    with over_unix(str(a.socket)) as client:
        for wish, body in WISHES.items():
            refused = client.post(f"/v1/{wish}", json=body)
            assert (409, "BeyondProtocol") == (refused.status_code, refused.json()["kind"])
    said = a.ask("drain", "b", "--yes")
    assert EXIT_REFUSED == said.exit_code
    assert "its broker shares the partitions out, and it takes no wishes: stop a member to empty it" in said.stderr

    # A death.
    terms = {one["partition"]: one["term"] for one in owners}
    b.kill()
    until(lambda: a.shown in ({"a": 2}, {"a": 4}), "the dead one to be gone")
    until(lambda: {"a": 4} == a.shown, "the heir to have all")
    heirs = [json.loads(line) for line in a.ask("table", "--output", "json").output.splitlines()]
    assert all(one["term"] > terms[one["partition"]] for one in heirs if owners[one["partition"]]["owner"] == "b")
    assert "b was expired by the store of owners" in a.ask("events").output
    until(lambda: 4 == a.metric("neli_partitions_led"), "the heir to lead all")
    assert 1 == a.metric("neli_expired_members_total")

    assert EXIT_DONE == a.leave()


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.process
def test_a_member_that_the_broker_gives_nothing_is_on_the_page_and_leaves_it_at_once(start: Any) -> None:
    agents = {name: start(name, "neli", partitions=1) for name in "ab"}
    until(lambda: [0, 1] == sorted(agents["a"].shown.values()), "one member more than there are partitions")
    (leader, idle) = sorted(agents, key=agents["a"].shown.get, reverse=True)
    until(lambda: agents[idle].get("/ready").status_code == 200, "the readiness of a member that stands by")
    assert agents[idle].metric("neli_lease_left_seconds") is None  # An alert on 0 would fire for it permanently.
    assert EXIT_DONE == agents[idle].leave()
    until(lambda: idle not in agents[leader].shown, "it to be gone")
    assert f"{idle} left" in agents[leader].ask("events").output


def test_an_agent_that_reaches_neither_broker_nor_store_says_so_and_refuses_wishes_all_the_same(tmp_path: Path) -> None:
    config = replace(NOWHERE, name="a", ownership="redis://127.0.0.1:1/jobs")
    with running(config, AgentOptions(socket=f"{tmp_path}/agent.sock")) as agent, agent.client() as client:
        until(lambda: "the broker is out of reach" in client.get("/ready").json().get("found", ""), "the reason")
        assert (200, "reading") == ((answer := client.get("/health")).status_code, answer.json()["member"])
        owner = client.get("/v1/owner", params={"partition": 0})
        assert (503, "StaleTable") == (owner.status_code, owner.json()["kind"])
        status = client.get("/v1/status").json()
        assert ([], 0, "redis://127.0.0.1:1/jobs") == (status["members"], status["table"]["slots"], status["store"])
        assert status["why"].startswith("the table of owners ")
        assert 409 == client.post("/v1/drain", json={"name": "b"}).status_code
        assert "neli_ledger_available 0.0" in client.get("/metrics").text


@pytest.mark.redis
def test_an_agent_whose_store_of_owners_cannot_be_used_does_not_join(redis: str, tmp_path: Path) -> None:
    taken = f"{redis}/{uuid4().hex}"
    with closing(owners_at(taken).open()) as owners:
        owners.publish(Layout(64, 2 * PARTITIONS), Claim("life", Card("z", "z:1"), 60.0, {0: 1}, {}))
    locked = redis.replace("redis://", "redis://:a-wrong-password@")
    for ownership, kind, words in (
        (taken, GroupMismatch, "unequal: partitions"),
        (f"{locked}/x", LedgerUnusable, "user"),
    ):
        config, options = replace(NOWHERE, ownership=ownership), AgentOptions(socket=f"{tmp_path}/agent.sock")
        with pytest.raises(kind, match=words), running(config, options):
            pytest.fail("it started")
