"""Several groups for the same roles: which of them answer, which are left out, and which share a host."""

import pickle
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.memory import MemoryLedger
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import (
    BadKey,
    Closed,
    ConfigError,
    GroupMismatch,
    LedgerUnavailable,
    LookupFailed,
    NoOwner,
    StaleTable,
)
from neli_router.router.groups import Groups, Leader, SharedHost, by_host
from neli_router.router.router import Router
from neli_router.router.table import Peer
from tests.support.groups import Flaky, Plights, flaky, genesis, join, log_of, named, refused_by, static, write

AWAY = LedgerUnavailable("a read was wanted", "the test cut the line", "heal it")


def test_each_group_gives_one_owner_in_the_order_of_the_groups() -> None:
    blue, green = static("anna"), static("gerd", "gina")
    groups = Groups({"blue": blue, "green": green})
    expected = [Leader("blue", blue.owner("key")), Leader("green", green.owner("key"))]
    assert expected == groups.owners("key") == groups.owners(b"key")
    assert (["blue", "green"], 2, {}) == (list(groups), len(groups), groups.errors)


def test_when_no_group_answers_the_error_says_why_for_each_and_one_reason_is_that_of_a_router() -> None:
    silent, closed = Router.static({}, Layout(slots=64, partitions=2)), static("b")
    closed.close()
    first = "give the table an owner for every partition"
    both = f"{first}; or look up before closing, or open another router"
    for other, kind, found, remedy in (
        (silent, NoOwner, "it was given none", first),
        (closed, LookupFailed, "this router was closed before", both),
    ):
        refused = refused_by(partial(Groups({"silent": silent, "other": other}).owners, "secret-key"))
        assert (kind, "owners of a key were wanted") == (type(refused), refused.wanted)
        assert f"(group silent: it was given none; group other: {found})" in refused.found
        assert remedy == refused.remedy
        assert "secret" not in str(refused)
    with pytest.raises(BadKey):  # This is the caller's mistake, not a group without an answer.
        Groups({"blue": static("a")}).owners(7)  # type: ignore[arg-type]


def test_each_group_has_a_max_age_of_its_own_and_heals_by_itself() -> None:
    logs = {"blue": log_of("anna"), "green": log_of("gerd")}
    ledgers: dict[str, list[Flaky]] = {"blue": [], "green": []}
    sources = {group: lambda group=group: flaky(logs[group], ledgers[group]) for group in logs}
    with Groups(sources, max_age={"blue": 1.0, "green": None}) as groups:
        assert {"blue": "anna", "green": "gerd"} == named(groups.owners("key"))
        blue = Plights(groups["blue"])
        for ledger in (*ledgers["blue"], *ledgers["green"]):
            ledger.failure = AWAY
        blue.await_one("stale")
        assert {"green": "gerd"} == named(groups.owners("key"))
        assert {"blue": StaleTable} == {group: type(error) for group, error in groups.errors.items()}
        for ledger in ledgers["blue"]:
            ledger.failure = None
        blue.await_one("none")
        assert {"blue": "anna", "green": "gerd"} == named(groups.owners("key"))


def test_a_group_whose_ledger_is_not_there_yet_comes_by_itself(tmp_path: Path) -> None:
    late = tmp_path / "late.db"
    with closing(SqliteLedger(tmp_path / "early.db")) as early:
        write(early, genesis(), join("anna"))
        sources = {"late": f"sqlite://{late}", "early": f"sqlite://{tmp_path / 'early.db'}"}
        with Groups(sources) as groups:
            assert {"early": "anna"} == named(groups.owners("key"))
            assert ["late"] == list(groups.errors)
            changes = Plights(groups["late"])
            with closing(SqliteLedger(late)) as ledger:
                write(ledger, genesis(), join("gerd"))
                changes.await_one("none")
                assert {"late": "gerd", "early": "anna"} == named(groups.owners("key"))


ROW = Layout(slots=64, partitions=4)


@pytest.mark.parametrize(
    ("routers", "expected"),
    [
        (
            {"blue": static("one:1", "two:1", "one:1", "two:1"), "green": static("one:9", "one:9", "three:9", "two:9")},
            [SharedHost("one", ("blue", "green"), (0,)), SharedHost("two", ("blue", "green"), (3,))],
        ),
        ({"blue": static("one:1", "two:1"), "green": static("three:1", "four:1")}, []),
        # Role 2 is partition 2 of four and partition 0 of two: both leaders are on `one`. No role has both on `two`.
        (
            {
                "blue": static("two:1", "three:1", "one:1", "three:1", layout=ROW),
                "green": static("one:1", "two:1", layout=Layout(slots=64, partitions=2)),
            },
            [SharedHost("one", ("blue", "green"), (0,))],
        ),
        (
            {"blue": static("one:1"), "green": static("two:1"), "red": static("one:2")},
            [SharedHost("one", ("blue", "red"), (0,))],
        ),
        ({"blue": static(""), "green": static("")}, []),  # A member without an address is not on any host.
    ],
)
def test_hosts_that_serve_a_role_twice_are_told(routers: dict[str, Router], expected: list[SharedHost]) -> None:
    assert expected == Groups(routers).shared_hosts()


def test_a_host_is_on_the_groups_that_have_a_leader_there() -> None:
    groups = Groups({"blue": static("one:1", "two:1"), "green": static("two:9", "three:9")})
    assert [["blue", "green"], ["green"], []] == [groups.groups_on(host) for host in ("two", "three", "four")]


def test_groups_that_hash_keys_differently_have_no_roles_in_common() -> None:
    groups = Groups({"blue": static("a"), "green": static("b", layout=Layout(slots=32, partitions=1))})
    with pytest.raises(GroupMismatch, match="blue and green"):
        groups.shared_hosts()


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("one:80", "one"),
        ("one", "one"),
        ("https://one.example:443/path", "one.example"),
        ("http://user@one:80", "one"),
        ("[::1]:80", "::1"),
        ("fe80::1", "fe80::1"),
        ("", ""),
    ],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host == by_host(Peer("a", address, 1, ""))


def test_groups_that_cannot_be_opened_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Groups({"blue": "memory://x", "green": "memory://x"}, max_age={"gren": 1.0})
    assert (
        "blue and green have one ledger, so they are one group: give each a ledger of its own",
        "max_age names 'gren', and there is no such group: there is blue, green",
    ) == caught.value.problems
    with pytest.raises(ConfigError, match="name one at least"):
        Groups({})
    with pytest.raises(StaleTable, match=r"group blue: .* group green: "):
        Groups({"blue": f"sqlite://{tmp_path}/1.db", "green": f"sqlite://{tmp_path}/2.db"}, timeout=0.2)


def test_it_can_be_reopened_not_pickled_and_closes_what_it_opened_and_nothing_else() -> None:
    log, given = log_of("anna"), static("a")
    groups = Groups({"blue": lambda: MemoryLedger(log), "green": given})
    groups.reopen()
    assert {"blue": "anna", "green": "a"} == named(groups.owners("key"))
    assert "<Groups blue: <Router of " in repr(groups)
    with pytest.raises(TypeError):
        pickle.dumps(groups)
    groups.close()
    groups.close()
    assert {"green": "a"} == named(groups.owners("key"))
    given.close()
    with pytest.raises(Closed):
        groups.owners("key")
