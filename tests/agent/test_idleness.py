"""An agent whose clients are gone hands over to one that has some, and takes its share back with the next client."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from neli_router.agent import Client
from neli_router.agent.server.server import Agent
from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.errors import ConfigError
from tests.support.agents.running import PARTITIONS, PATIENCE, STEADY, Running, configured, running
from tests.support.waiting import until

IDLE_AFTER = 0.5


def started(stack: ExitStack, folder: Path, name: str) -> Running:
    options = AgentOptions(f"{folder}/{name}.sock", idle_after=IDLE_AFTER)
    one = stack.enter_context(running(configured(folder, name, lease=STEADY), options))
    one.await_ready()
    return one


def leads_all(agent: Running) -> bool:
    return len(agent.agent.member.led) == PARTITIONS


def test_partitions_go_where_somebody_works_and_come_back_with_the_next_client(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        a, b = (started(stack, tmp_path, name) for name in "ab")
        until(lambda: a.agent.member.state.weights == {"a": 0, "b": 0}, "both agents to be idle")
        worker = stack.enter_context(Client(a.options.socket, timeout=PATIENCE))
        with worker.share(timeout=PATIENCE):
            until(lambda: leads_all(a), "the agent with a client to have everything")
            b.stop()
            b.join()
            b = started(stack, tmp_path, "b")
            assert {"b": 0} == b.agent.member.state.weights
            until(lambda: leads_all(a))
            # The first share began with the first partitions that came. Perhaps none of them will move.
            with worker.share(timeout=PATIENCE) as whole:
                assert PARTITIONS == len(whole.terms)
                driver = stack.enter_context(Client(b.options.socket, timeout=PATIENCE))
                taken = pool.submit(lambda: stack.enter_context(driver.share(timeout=PATIENCE)))
                assert whole.ending.wait(PATIENCE)
        assert taken.result(PATIENCE).terms
        until(lambda: leads_all(b), "the agent without a client to be idle")


def test_without_the_option_a_weight_of_0_is_the_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neli_router.agent.server.idleness.LOOK_EVERY", 0.01)
    with running(configured(tmp_path, lease=1.0), AgentOptions(f"{tmp_path}/a.sock")) as agent:
        agent.await_ready()
        member = agent.agent.member
        member.operator.weigh("a", 0, timeout=PATIENCE)
        with Client(agent.options.socket, timeout=PATIENCE) as client, client.leading(3):
            began_at = member.state.at
            until(lambda: member.state.at > began_at + 5, "some heartbeats")
            assert {"a": 0} == member.state.weights


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="idle_after=0 must be a number of seconds above 0"):
        AgentOptions("a.sock", idle_after=0)
    peers = Config("peers://127.0.0.1:7801,127.0.0.1:7802/jobs", protocol="term")
    with pytest.raises(ConfigError, match="needs a group with a ledger: with 'term' a member has no weight"):
        Agent(peers, AgentOptions("a.sock", idle_after=60))
