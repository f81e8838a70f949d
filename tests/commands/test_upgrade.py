"""`neli upgrade`: when it raises the group's fold version, and which members it names when it does not."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result

from neli_router import Config, Layout, Member
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import GroupMismatch
from neli_router.member.wishes import NEWEST
from neli_router.protocols.induction.records import Join, Upgrade, encode
from tests.support.commands import neli
from tests.support.records import genesis, join
from tests.support.waiting import until

LEASE = 2.0
OLD = NEWEST - 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The ledger of a group that a member of the older release founded."""
    append(tmp_path / "jobs.db", encode(genesis(version=OLD, layout=Layout(partitions=4), lease=LEASE)))
    return tmp_path / "jobs.db"


@pytest.fixture
def member(path: Path) -> Iterator[Member]:
    with Member(Config(f"sqlite://{path}", name="alice", lease=LEASE, layout=Layout(partitions=4))) as member:
        assert member.pulse(60.0)
        yield member


def append(path: Path, *payloads: bytes) -> None:
    with closing(SqliteLedger(path)) as ledger:
        ledger.append(payloads)


def older(name: str) -> Join:
    return join(name, address=f"{name}.example:7000", versions=(OLD, OLD))


def run(path: Path, *words: str) -> Result:
    return neli("upgrade", "--ledger", f"sqlite://{path}", *words, NELI_LEASE=str(LEASE))


def doctor(path: Path) -> tuple[str, str]:
    words = ("doctor", "--ledger", f"sqlite://{path}", "--layout-partitions", "4", "--output", "json")
    found = json.loads(neli(*words, "--socket", "/nowhere/agent.sock", NELI_LEASE=str(LEASE)).stdout)
    (version,) = (each for each in found if each["name"] == "version")
    return version["verdict"], f"{version['found']} -> {version['remedy']}"


def test_a_group_whose_members_all_know_the_version_gets_it_and_keeps_it(path: Path, member: Member) -> None:
    assert ("warning", True) == (doctor(path)[0], "and all members know" in doctor(path)[1])
    result = run(path, "--dry-run")
    told = f"The group's fold version is {OLD}, and all 1 members know {NEWEST}.\n"
    assert (0, told) == (result.exit_code, result.stdout)
    assert OLD == member.state.version
    result = run(path)
    assert (0, f"The group's fold version is {NEWEST} now; it was {OLD}.\n") == (result.exit_code, result.stdout)
    until(lambda: member.state.version == NEWEST)
    assert member.pulse(60.0)
    result = run(path, "--output", "json")
    shown = {"ledger": f"sqlite:{path}", "version": NEWEST, "wanted": NEWEST, "members": 1, "behind": []}
    assert (0, shown) == (result.exit_code, json.loads(result.stdout))
    assert "fine" == doctor(path)[0]


def test_members_that_lack_the_version_are_named_and_nothing_changes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neli_router.commands.upgrade.WATCH_LEASES", 0.01)
    append(path, encode(older("bob")), encode(older("eve")), encode(join("ann", versions=(OLD, NEWEST))))
    for words in ((), ("--dry-run",)):
        result = run(path, *words)
        rows = [line.split() for line in result.stdout.splitlines()]
        wanted = [["NAME", "ADDRESS", "KNOWS"], *([it, f"{it}.example:7000", str(OLD)] for it in ("bob", "eve"))]
        assert (5, wanted) == (result.exit_code, rows)
        why = f"2 of 3 members do not know it: bob at bob.example:7000 (knows {OLD}), eve at"
        assert f"an upgrade to fold version {NEWEST} was wanted, but {why}" in result.stderr
    result = run(path, "--dry-run", "--output", "json")
    bob = {"name": "bob", "address": "bob.example:7000", "oldest": OLD, "newest": OLD}
    shown = json.loads(result.stdout)
    assert (5, OLD, bob) == (result.exit_code, shown["version"], shown["behind"][0])
    verdict, found = doctor(path)
    assert ("warning", True) == (verdict, f"do not know {NEWEST}: bob (knows {OLD}), eve (knows {OLD})" in found)


def test_a_member_that_is_dead_holds_nothing_back(path: Path, member: Member) -> None:
    append(path, encode(older("bob")))
    result = run(path)
    assert (0, True) == (result.exit_code, "Waiting 5 s" in result.stderr), result.stderr
    assert NEWEST == until(lambda: member.state.version == NEWEST and member.state.version)


def test_a_ledger_without_a_group_or_without_members_is_refused(path: Path, tmp_path: Path) -> None:
    SqliteLedger(tmp_path / "new.db").close()
    for ledger, code, said in (
        (path, 5, "the group has no member: start its members"),
        (tmp_path / "new.db", 5, "the ledger has none yet"),
        (tmp_path / "typo.db", 1, "there is no such file"),
    ):
        result = run(ledger)
        assert (code, True) == (result.exit_code, said in result.stderr), result.stderr
    result = neli("upgrade", "--ledger", "peers://127.0.0.1:7801,127.0.0.1:7802/jobs", NELI_PROTOCOL="term")
    assert (5, True) == (result.exit_code, "an upgrade was wanted" in result.stderr), result.stderr


def test_a_newer_group_is_refused_by_every_part_of_this_release(path: Path) -> None:
    newer = NEWEST + 1
    append(path, encode(join("a", versions=(OLD, newer))), encode(Upgrade(by="op", version=newer)))
    said = f"a group with fold version {OLD} to {NEWEST} was wanted, but the ledger's group is at version {newer}"
    result = run(path)
    assert (5, True) == (result.exit_code, said in result.stderr), result.stderr
    with pytest.raises(GroupMismatch, match=f"{said}: run a release of neli-router that knows that version"):
        Member(Config(f"sqlite://{path}", name="bob", lease=LEASE, layout=Layout(partitions=4)))
    address = f"sqlite://{path}"
    for words in (("members", "--ledger", address), ("owner", "--ledger", address, "key"), ("audit", address)):
        assert said in neli(*words).stderr, words
