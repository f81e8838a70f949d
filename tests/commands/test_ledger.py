"""`neli ledger`: a copy says what its ledger says. The group that it founds has the same wishes, and higher terms."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result

from neli_router import Config, Layout, Member
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.protocols.induction.records import Drain, Leave, Load, Pin, Weigh, encode
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.status.inspection import Inspection
from tests.support.commands import neli
from tests.support.records import BASE, LAYOUT, genesis, join
from tests.support.waiting import PATIENCE

WISHES = (
    Drain(by="x", name="zoe"),
    Weigh(by="x", name="bob", weight=7),
    Pin(by="x", partition=2, name="bob"),
    Load(by="x", loads={0: 2.5, 3: 1.0}),
)
FOUNDED = genesis(lease=0.5)
ANNA = [encode(record) for record in (FOUNDED, *WISHES, join("a", "anna"), Leave(by="a"))]


def written(name: str, *payloads: bytes, trimmed_at: int = 0) -> str:
    """The address of a new ledger with these records. Its records below `trimmed_at` are dropped, after a snapshot."""
    with closing(SqliteLedger(name, create=True)) as ledger:
        if trimmed_at:
            ledger.append(payloads[:trimmed_at])
            ledger.append([encode(snapshot("x", Inspection(ledger).state))])
            ledger.trim(Inspection(ledger).state.at - 1)
        ledger.append(payloads[trimmed_at:])
    return f"sqlite:{name}"


def run(*words: str, given: bytes | None = None) -> Result:
    return neli("ledger", *words, given=given)


def summary(*words: str) -> dict[str, object]:
    told = run("inspect", "--output", "json", *words)
    assert 0 == told.exit_code, told.stderr
    return {key: value for key, value in json.loads(told.stdout).items() if key != "source"}


def exported(address: str, name: str = "copy.jsonl") -> Path:
    assert 0 == run("export", "--ledger", address, name).exit_code
    return Path(name)


@pytest.mark.parametrize("trimmed_at", [0, 5])
def test_a_copy_says_what_its_ledger_says(trimmed_at: int) -> None:
    strange = b"\xff no record", b'{"kind": "later",\n "by": "x"}', b'{"kind":"later","by":"x"}'
    ledger = written("a.db", *ANNA, *strange, trimmed_at=trimmed_at)
    told = summary("--ledger", ledger)
    assert (1, 2, 3) == (told["pins"], told["loads"], told["records"]["skipped"])  # type: ignore[index]
    assert told == summary("--copy", str(exported(ledger)))
    assert "drained  zoe" in run("inspect", "--ledger", ledger).stdout


def test_the_group_of_a_copy_is_founded_with_its_wishes_and_gives_higher_terms() -> None:
    copy = exported(written("a.db", *ANNA))
    assert 0 == run("import", str(copy), "--ledger", "sqlite:b.db").exit_code
    kept = ("slots", "partitions", "tags", "lease", "guarantee", "version", "pins", "drains", "weights", "loads")
    before, after = summary("--copy", str(copy)), summary("--ledger", "sqlite:b.db")
    assert {key: before[key] for key in kept} == {key: after[key] for key in kept}
    with closing(SqliteLedger("b.db")) as ledger:
        assert Inspection(ledger).state.base >= BASE + len(ANNA) + 1
    config = Config("sqlite:b.db", name="bob", layout=LAYOUT, lease=FOUNDED.lease)
    with Member(config) as member, member.leading(2, timeout=PATIENCE) as lease:
        assert lease.term > BASE + len(ANNA)


def test_terms_do_not_fall_although_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = exported(written("a.db", *ANNA))
    monkeypatch.setattr("neli_router.commands.ledger.time.time", lambda: 0.0)
    told = run("import", str(copy), "--ledger", "sqlite:b.db").stdout
    assert told.endswith(f"Its terms are above {BASE + int(str(summary('--copy', str(copy))['tip']))}.\n")


def test_another_number_of_partitions_leaves_what_names_partitions_behind() -> None:
    copy = exported(written("a.db", *ANNA))
    assert 0 == run("import", str(copy), "--partitions", "9", "--ledger", "sqlite:b.db").exit_code
    told = summary("--ledger", "sqlite:b.db")
    assert (9, 0, 0, ["zoe"]) == (told["partitions"], told["pins"], told["loads"], told["drains"])
    assert LAYOUT == Layout(int(str(told["slots"])), 4)


def test_nothing_is_imported_over_a_group_or_beside_one_that_may_live() -> None:
    copy, taken = exported(written("a.db", *ANNA)), written("b.db", encode(genesis()))
    told = run("import", str(copy), "--ledger", taken)
    assert (5, True) == (told.exit_code, "but it has one" in told.stderr)
    living = exported(written("c.db", *ANNA[:-1]), "living.jsonl")
    told = run("import", str(living), "--ledger", "sqlite:d.db")
    assert (5, True) == (told.exit_code, "ends with the members anna" in told.stderr)
    assert not Path("d.db").exists()
    assert 0 == run("import", str(living), "--yes", "--ledger", "sqlite:d.db").exit_code


def test_an_import_into_a_ledger_that_may_rewind_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = exported(written("a.db", *ANNA))
    assert not run("import", str(copy), "--ledger", "sqlite:b.db").stderr
    monkeypatch.setattr(SqliteLedger, "promises", frozenset())
    monkeypatch.setattr(SqliteLedger, "doubts", ("it has one replica",))
    told = run("import", str(copy), "--ledger", "sqlite:c.db")
    warning = "two members could lead at once (it has one replica): mend that"
    assert (0, True) == (told.exit_code, warning in told.stderr)
    monkeypatch.setenv("NELI_ACCEPT_REWINDS", "true")
    assert not run("import", str(copy), "--ledger", "sqlite:d.db").stderr


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda copy: b"", "it is empty"),
        (lambda copy: copy[:-1], "it ends after"),
        (lambda copy: [*copy, copy[-2]], "the checksum"),
        (lambda copy: [line.replace(b"anna", b"emma") for line in copy], "the checksum"),
        (lambda copy: [*copy[:3], *copy[4:]], "the checksum"),
        (lambda copy: [b"{}\n", *copy], "line 1 does not belong"),
        (lambda copy: [*copy[:2], b"\xff\n", *copy[2:]], "line 3 does not belong"),
        (lambda copy: [copy[0].replace(b'"v":1', b'"v":2'), *copy[1:]], "version 2"),
    ],
)
def test_a_copy_that_is_not_whole_is_refused(edit, why: str) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    copy = exported(written("a.db", *ANNA)).read_bytes().splitlines(keepends=True)
    told = run("import", "--ledger", "sqlite:b.db", given=b"".join(edit(copy)))
    assert (5, True, False) == (told.exit_code, why in told.stderr, Path("b.db").exists()), told.stderr


def test_an_export_that_fails_leaves_no_file() -> None:
    told = run("export", "--ledger", "sqlite:none.db", "copy.jsonl")
    assert (1, True, []) == (told.exit_code, "there is no such file" in told.stderr, [*Path().iterdir()])
