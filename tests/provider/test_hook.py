"""The hook on a real agent and on ledgers, with connections as users write them."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from airflow.providers.common.compat.sdk import AirflowException, Connection

from airflow_provider.hooks import _changes as changes
from airflow_provider.hooks._changes import Away, Batch
from airflow_provider.hooks.neli import NeliHook, _with_password
from neli_router.agent import Client
from neli_router.agent.client.calls import Call
from neli_router.agent.wire import OwnerView
from neli_router.core.keyspace import Layout
from neli_router.drivers.open import open_ledger
from neli_router.errors import BadKey, ConfigError, GroupMismatch, NoAgent, NoOwner
from tests.provider.conftest import member
from tests.support.agents.running import PARTITIONS, PATIENCE, TOKEN, Running
from tests.support.given import spelled
from tests.support.waiting import until

pytestmark = pytest.mark.airflow

Answer = TypeVar("Answer")


def play(story: Callable[[NeliHook], Awaitable[Answer]], conn_id: str = "neli_default") -> Answer:
    async def told() -> Answer:
        async with asyncio.timeout(PATIENCE), NeliHook(conn_id) as hook:
            return await story(hook)

    return asyncio.run(told())


@pytest.fixture(name="a")
def _a(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a connection to an agent "a", which the test starts; "its_ledger" is a connection to that agent's
    ledger."""
    monkeypatch.setenv("AIRFLOW_CONN_A", spelled(address=f"{tmp_path}/a.sock"))
    monkeypatch.setenv("AIRFLOW_CONN_ITS_LEDGER", spelled(address=f"sqlite://{tmp_path}/ledger.db"))
    return "a"


@pytest.mark.parametrize("conn_id", ["neli_default", "ledger"])
def test_it_names_owners_by_key_and_by_role(neli_default: str, ledger: str, conn_id: str) -> None:
    with NeliHook(conn_id) as hook:
        assert ["a"] * 4 == [
            hook.owner("EURUSD").name,
            hook.owner(b"\xff").name,
            hook.owner_of_role("nightly").name,
            hook.owner_of_role(3).name,
        ]
        layout = hook.layout(wanted=Layout(partitions=PARTITIONS))
        views = hook.owners(["EURUSD", "GBPUSD"])
        with pytest.raises(GroupMismatch, match=f"partitions=16.*against.*partitions={PARTITIONS}"):
            hook.layout(wanted=Layout(partitions=16))
    assert PARTITIONS == layout.partitions
    assert [layout.partition("EURUSD"), layout.partition("GBPUSD")] == [view.partition for view in views]
    assert [layout.slot("EURUSD"), layout.slot("GBPUSD")] == [view.slot for view in views]
    assert all(view.term > 0 for view in views)

    async def story(hook: NeliHook) -> None:
        assert "a" == (await hook.aowner("EURUSD")).name == (await hook.aowner_of_role("nightly")).name
        assert ["a", "a"] == [view.name for view in await hook.aowners(["EURUSD", "GBPUSD"])]
        assert PARTITIONS == (await hook.alayout()).partitions

    play(story, conn_id)


def test_one_request_says_who_leads_whether_that_is_here_and_what_the_layout_is(
    neli_default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    call = Client.call

    def counted(client: Client, question: Call[Any], **options: Any) -> Any:
        asked.append(question.target)
        return call(client, question, **options)

    monkeypatch.setattr(Client, "call", counted)
    with NeliHook() as hook:
        found = hook.leader("nightly", wanted=Layout(partitions=PARTITIONS))
        assert ("a", "a", True) == (found.owner.name, found.member, found.may_act)
        assert ["/v1/leader?key=nightly"] == asked
        # A name that does not fit into an address is asked for by its partition.
        assert Layout(partitions=PARTITIONS).partition("€" * 8000) == hook.leader("€" * 8000).owner.partition
        with pytest.raises(GroupMismatch, match="partitions=16"):
            hook.leader("nightly", wanted=Layout(partitions=16))


def test_it_knows_what_this_host_leads(neli_default: str) -> None:
    with NeliHook() as hook:
        assert ("a", True) == (hook.member(), hook.leads("nightly", within=PATIENCE))
        lease = hook.lease("nightly")
        assert lease is not None
        assert hook.owner_of_role("nightly").term == lease.term
        with hook.leading("nightly", timeout=PATIENCE) as held:
            held.check()
        with hook.share([0, 1], timeout=PATIENCE) as share:
            assert {0, 1} == set(share.terms)
        assert list(range(hook.layout().partitions)) == hook.led()
        with pytest.raises(BadKey, match="may mean a key or a partition"):
            hook.leads("0")

    async def story(hook: NeliHook) -> None:
        assert ("a", True) == (await hook.amember(), await hook.aleads("nightly", within=PATIENCE))
        assert await hook.aleads("€" * 8000)  # It does not fit into an address.
        async with hook.aleading("nightly", timeout=PATIENCE) as lease:
            lease.check()
        assert list(range((await hook.alayout()).partitions)) == await hook.aled()

    play(story)


def test_a_ledger_knows_no_host_and_so_none_that_may_act(ledger: str) -> None:
    with NeliHook(ledger) as hook:
        found = hook.leader("nightly")
        assert ("a", None, False) == (found.owner.name, found.member, found.may_act)
        for ask in (hook.member, lambda: hook.leads("nightly"), lambda: hook.leading("nightly"), hook.share):
            with pytest.raises(
                ConfigError, match="'ledger' is to a ledger, which does not know this host: give it the"
            ):
                ask()

    async def story(hook: NeliHook) -> None:
        with pytest.raises(ConfigError, match="a lease was wanted"):
            await hook.aleads("nightly")

    play(story, ledger)


async def next_of(news: AsyncIterator[Batch | Away]) -> Batch:
    batch = await anext(news)
    assert not isinstance(batch, Away), batch.error
    return batch


async def until_known(news: AsyncIterator[Batch | Away], holds: Callable[[dict[int, OwnerView]], bool]) -> None:
    """Follow `news` until the known owners satisfy `holds`."""
    known: dict[int, OwnerView] = {}
    async for one in news:
        known = {} if isinstance(one, Away) else known | dict(one)
        if holds(known):
            return


@pytest.mark.parametrize("conn_id", ["a", "its_ledger"])
def test_changes_begin_with_all_owners_and_a_slow_follower_hears_of_the_newest(
    a: str, tmp_path: Path, conn_id: str
) -> None:
    async def story(hook: NeliHook) -> None:
        async with aclosing(hook.changes()) as prompt, aclosing(hook.changes()) as slow:
            first = await next_of(prompt)
            assert list(range(PARTITIONS)) == sorted(first) == sorted(await next_of(slow))
            assert {"a"} == {view.name for view in first.values()}
            with ExitStack() as life:
                await asyncio.to_thread(life.enter_context, member(tmp_path, "b"))
                moved = await next_of(prompt)
                assert {"b"} >= {view.name for view in moved.values()} - {None}
                assert all(view.term > first[partition].term for partition, view in moved.items() if view.name)
                role = (await asyncio.to_thread(until, lambda: roles_of("b", here)))[0]
                assert not await asyncio.to_thread(here.leads, role, within=0.1)
                waiting = asyncio.create_task(asyncio.to_thread(here.leads, role, within=PATIENCE))
                await asyncio.sleep(0)  # It asks while the other still leads.
            assert await waiting
            await asyncio.to_thread(until, lambda: len(roles_of("a", hook)) == PARTITIONS)
            newest = await next_of(slow)
            assert {"a", None} >= {view.name for view in newest.values()}
            assert newest[role].term > first[role].term

    with member(tmp_path, "a"), NeliHook(a) as here:
        play(story, conn_id)


def roles_of(name: str, hook: NeliHook) -> list[int]:
    with suppress(NoOwner):  # Between two owners.
        return [role for role in range(PARTITIONS) if hook.owner_of_role(role).name == name]
    return []


@pytest.mark.parametrize(
    ("conn_id", "kind", "found"),
    [("a", NoAgent, "there is no socket"), ("its_ledger", NoOwner, "no member has made the ledger sqlite:")],
)
@pytest.mark.usefixtures("a")
def test_changes_outlive_the_agent_and_the_ledger(tmp_path: Path, conn_id: str, kind: type, found: str) -> None:
    async def story(hook: NeliHook) -> None:
        async with aclosing(hook.changes()) as news:
            away = await anext(news)
            assert isinstance(away, Away)
            assert (kind, True) == (type(away.error), found in str(away.error))
            for _ in range(2):
                with ExitStack() as life:
                    await asyncio.to_thread(life.enter_context, member(tmp_path, "a"))
                    await until_known(news, lambda known: ["a"] * PARTITIONS == [view.name for view in known.values()])
                await until_known(news, lambda known: {None} >= {view.name for view in known.values()})

    play(story, conn_id)


def test_an_agent_that_hangs_is_away(a: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "SILENCE_MAX", 0.2)
    go_on = threading.Event()

    async def story() -> None:
        with member(tmp_path, "a") as agent:
            try:
                async with NeliHook(a, timeout=0.5) as hook, aclosing(hook.changes()) as news:
                    while isinstance(await anext(news), Away):  # A busy machine may take half a second to answer.
                        pass
                    agent.loop.call_soon_threadsafe(go_on.wait, PATIENCE)
                    while not isinstance(away := await anext(news), Away):
                        pass
                    assert "it did not answer in time" == away.error.found
            finally:
                go_on.set()

    asyncio.run(story())


def owner_and_partitions(hook: NeliHook) -> tuple[str | None, int] | None:
    with suppress(NoOwner):
        return hook.owner_of_role("nightly").name, hook.layout().partitions
    return None


@pytest.mark.postgresql
def test_owners_are_read_from_a_store(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{database}?group=jobs"
    monkeypatch.setenv("AIRFLOW_CONN_OWNERS", spelled(ownership=url))
    with member(tmp_path, "a", ownership=url), NeliHook("owners") as hook:
        # If the machine keeps a member from running, the store forgets its owners until it runs again.
        assert ("a", PARTITIONS) == until(lambda: owner_and_partitions(hook))
        with pytest.raises(ConfigError, match="a lease was wanted"):
            hook.leads("nightly")


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ("", "airflow connections add odd --conn-type neli"),
        (spelled("http"), "of the type 'neli' was wanted, but 'odd' is of the type 'http'"),
        (spelled(adress="unix:/run/a.sock"), "has 'adress', which it has no use for: there is address, ownership"),
        (spelled(address=7), "address must be text, got a int"),
        (spelled(address="sqlite:/a.db", ownership="redis://localhost/jobs"), "address and ownership are both given"),
        (spelled(address="sqlite:///var/a.db", host="localhost"), "leave the host empty, or the address"),
        (spelled(address="mysql://localhost/jobs"), "mysql is not a known kind of ledger"),
        (spelled(address="unix:relative.sock"), "an agent's address is unix:/path/agent.sock"),
        (spelled(ownership="http://localhost/jobs"), "is not an address in Redis"),
        (spelled(password="x" * 5), "the agent's token holds 5 characters"),
        (json.dumps({"conn_type": "neli", "extra": "[1]"}), "its extra is not JSON of the form"),
    ],
)
def test_a_connection_that_is_not_there_or_makes_no_sense_says_why(
    monkeypatch: pytest.MonkeyPatch, connection: str, expected: str
) -> None:
    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_ODD", connection)
    with NeliHook("odd") as hook:
        with pytest.raises((AirflowException, ConfigError)) as caught:
            hook.owner("EURUSD")
        assert (False, str(caught.value)) == hook.test_connection()
    assert expected in str(caught.value)
    for story in (first_change, lambda hook: hook.aowner("EURUSD")):
        with pytest.raises(type(caught.value), match=re.escape(str(caught.value))):
            play(story, "odd")


async def first_change(hook: NeliHook) -> object:
    async with aclosing(hook.changes()) as news:
        return await anext(news)


def test_an_agent_is_found_by_its_port_or_by_default(agent: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = agent.place
    monkeypatch.setenv("AIRFLOW_CONN_HTTP", spelled(host=host, port=port, password=TOKEN))
    monkeypatch.setenv("AIRFLOW_CONN_PLAIN", "neli://")  # The default is the agent of this host.
    monkeypatch.setenv("NELI_AGENT", agent.options.socket or "")
    for conn_id in ("http", "plain"):
        with NeliHook(conn_id) as hook:
            assert "a" == hook.owner("EURUSD").name
            assert TOKEN not in f"{vars(hook)}"
    wrong = f"{TOKEN}-of-another"
    monkeypatch.setenv("AIRFLOW_CONN_HTTP", spelled(host=host, port=port, password=wrong))
    works, said = NeliHook("http").test_connection()
    assert (False, True, False) == (works, "it knows another one" in said, wrong in said)


def test_login_and_password_of_a_connection_are_those_of_its_ledger() -> None:
    connection = Connection(conn_id="ledger", conn_type="neli", login="me", password="p" + "@ss", extra=None)
    for address, expected in {
        "redis://localhost:6379/jobs": "redis://me:p%40ss@localhost:6379/jobs",
        "redis://other:word@localhost:6379/jobs": "redis://other:word@localhost:6379/jobs",
        "kafka://one:9092,two:9092/jobs": "kafka://me:p%40ss@one:9092,two:9092/jobs",
        "sqlite:///var/lib/ledger.db": "sqlite:///var/lib/ledger.db",
    }.items():
        assert expected == _with_password(address, connection)


def test_the_test_of_a_connection_says_what_answers(agent: Running, neli_default: str, ledger: str) -> None:
    assert (True, f"The agent a answers. Its group has 1 members and {PARTITIONS} partitions. It leads 8 of them.") == (
        NeliHook().test_connection()
    )
    works, said = NeliHook(ledger).test_connection()
    assert works
    assert "1 members, which own 8 of 8 partitions. Leases need an agent." in said


@pytest.mark.usefixtures("a")
def test_an_agent_that_is_away_says_how_to_start_one_and_a_group_without_a_member_has_no_owners(tmp_path: Path) -> None:
    with NeliHook("away") as hook:
        for ask in (lambda: hook.owner("EURUSD"), lambda: hook.leads(3)):
            with pytest.raises(NoAgent, match="there is no socket: start one with `neli agent`"):
                ask()
    assert not NeliHook("away").test_connection()[0]
    open_ledger(f"sqlite://{tmp_path}/ledger.db", create=True, patience=1.0).close()
    with NeliHook("its_ledger") as hook, pytest.raises(NoOwner, match="no member ever joined"):
        hook.owner("EURUSD")
    assert {} == play(first_change, "its_ledger")
