"""The lock of the proofs: what makes a line stale, what a run must show, and what a sample finds."""

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from neli_router.lab.commands.proofs import PROFILES
from tests.proofs import __main__ as proving
from tests.proofs.catalogue import Proof, proofs
from tests.proofs.lock import Line, read, sample, stale, write
from tests.proofs.mutation import MUTANTS, PACKAGE
from tests.proofs.sources import modules_of, sources_hash, tree_hash

EXPLORE = Proof("neli explore --protocol induction --profile close")
GOSSIP = Proof("neli explore --protocol gossip --profile rivals")
MUTANT = Proof("pytest tests/protocols/electors/test_election.py", MUTANTS / "gossip_supports_outlive_a_life.patch")


def test_every_mutant_is_a_proof_and_what_catches_it_is_proved_of_the_shipped_code() -> None:
    catalogue = proofs()
    names = {proof.name for proof in catalogue}
    mutants = [proof for proof in catalogue if proof.patch is not None]
    assert len(names) == len(catalogue)
    assert len(list(MUTANTS.glob("*.patch"))) == len(mutants)
    assert {proof.command for proof in mutants if not proof.command.startswith("pytest ")} <= names


def test_only_the_full_profiles_have_bounds_that_are_not_proved() -> None:
    """A profile with one set of bounds is a proof."""
    for profiles in PROFILES.values():
        proved = {profile.bounds[0] for profile in profiles.values() if len(profile.bounds) == 1}
        assert {"full"} == {name for name, profile in profiles.items() if not {*profile.bounds} <= proved}


@pytest.mark.parametrize("patch", sorted(MUTANTS.glob("*.patch")), ids=lambda path: path.stem)
def test_a_mutant_still_applies(patch: Path) -> None:
    applied = subprocess.run(
        ["git", "apply", "--check", "--unidiff-zero", str(patch)],  # noqa: S607 - whichever git is there.
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (applied.returncode, applied.stderr)


def test_a_proof_depends_on_the_modules_that_it_imports_and_on_no_others() -> None:
    explored, gossip = modules_of(EXPLORE.command), modules_of(GOSSIP.command)
    assert {
        "neli_router.protocols.induction.fold",
        "neli_router.lab.sim.explore",
        "neli_router.lab.sim.induction.miniature",  # It declares the profiles.
        "neli_router.core.keyspace",
    } <= explored
    assert "neli_router.protocols.induction.machine" not in explored
    assert {"neli_router.protocols.gossip.election", "neli_router.lab.sim.gossip.miniature"} <= gossip
    assert "neli_router.protocols.induction.fold" not in gossip
    caught_by = modules_of(MUTANT.command)
    assert {"tests.protocols.electors.test_election", "neli_router.protocols.gossip.election"} <= caught_by
    assert sources_hash(MUTANT) != sources_hash(Proof(MUTANT.command))
    assert {"tests.quint.traces", "neli_router.protocols.induction.fold"} <= modules_of("quint --seeds 1")
    assert sources_hash(Proof("quint --seeds 1")) != sources_hash(Proof("quint --mutants no_wait --seeds 1"))


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("x = 1\n\n\ndef f():\n    'Another text.'\n    return x\n", False),
        ("# why\nx = 1\n'What x is.'\n\n\ndef f(): return x\n", False),
        ("x = 2\n\n\ndef f():\n    'A text.'\n    return x\n", True),
        ("x = 1\n\n\ndef f():\n    'A text.'\n    return 'x'\n", True),
    ],
)
def test_comments_docstrings_and_layout_make_no_proof_stale(changed: str, counts: bool) -> None:
    source = "x = 1\n\n\ndef f():\n    'A text.'\n    return x\n"
    assert counts == (tree_hash(ast.parse(source)) != tree_hash(ast.parse(changed)))


def test_a_line_is_stale_when_its_sources_are_others_or_it_was_never_written(tmp_path: Path) -> None:
    path = tmp_path / "proofs.lock"
    assert {} == read(path)
    fresh = Line(EXPLORE.name, sources_hash(EXPLORE), 3, "complete: 12 states, 34 steps")
    write([fresh, Line(GOSSIP.name, "0" * 16, 3, "complete: 1 states, 2 steps | or so")], path)
    assert [GOSSIP, MUTANT] == stale([EXPLORE, GOSSIP, MUTANT], read(path))
    assert fresh == read(path)[EXPLORE.name]
    assert "complete: 1 states, 2 steps | or so" == read(path)[GOSSIP.name].result


def test_samples_are_alike_in_size_and_come_to_every_proof() -> None:
    lines = {proof.name: Line(proof.name, "", seconds, "") for seconds, proof in enumerate(proofs())}
    drawn = [sample(proofs(), lines, str(commit), 2000.0) for commit in range(300)]
    assert drawn[0] == sample(proofs(), lines, "0", 2000.0)
    assert set(proofs()) == {proof for hand in drawn for proof in hand}
    costs = [sum(max(lines[proof.name].seconds, 1) for proof in hand) for hand in drawn]
    assert max(costs) - min(costs) <= len(lines)


def test_a_forged_line_is_found_when_its_proof_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    proof = Proof("neli explore --protocol neli --profile zombies --states 40")
    shown = proving.run(proof).result
    assert shown.startswith("as far as it came: ")
    forged = Line(proof.name, sources_hash(proof), 1, shown.replace("states", "worlds"))
    assert 1 == proving.repeat([proof], {proof.name: forged})
    assert f"FAIL {proof.name}\n  the lock says: {forged.result}\n  this run says: {shown}" in capsys.readouterr().out


def test_without_quint_the_proofs_of_the_model_are_left_out_and_no_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proving, "missing", lambda: "Quint needs node, which is not installed")
    assert [EXPLORE] == proving.runnable([EXPLORE, Proof("quint --seeds 1")])
    assert "1 proofs of the model are left out: Quint needs node, which is not installed\n" == capsys.readouterr().out


def test_a_mutant_counts_as_caught_only_by_a_failed_check_and_not_by_a_crash(tmp_path: Path) -> None:
    source = MUTANTS / "gossip_supports_outlive_a_life.patch"
    patch = tmp_path / "harmless.patch"
    shutil.copy(source, patch)
    caught = "pytest tests/protocols/electors/test_election.py -k test_a_new_life"
    assert proving.run(Proof(caught, patch)).result.startswith("caught by tests/protocols/electors/test_election.py::")
    assert "" == proving.run(Proof("pytest tests/protocols/electors/test_election.py -k no_such_test", patch)).result
    head, _, body = source.read_text(encoding="utf-8").partition("\n---\n")
    removed = [line for line in body.splitlines() if line.startswith("+") and not line.startswith("+++")]
    patch.write_text(head + "\n---\n" + body.replace(removed[0], "+        no_such_name()"), encoding="utf-8")
    assert "" == proving.run(Proof(caught, patch)).result
