"""The referee's eyes: it must see what is wrong, and report nothing where nothing is wrong.

"a 5 acts 1.0-2.0"      process a notes that it may act for partition 0 under term 5 from 1.0 to 2.0
"a 5 done 1.5"          process a notes at 1.5 that it is done with partition 0
"a 5 lost 1.5"          process a notes at 1.5 that it found its lease lost
"""

from pathlib import Path

import pytest

from neli_router.lab.referee import CLOCK_ERROR, Life, Verdict, in_true_time
from neli_router.lab.referee import judged as judged_lives
from neli_router.status.notes import Acts, Done, Failed, Halted, LeasesLost, Note, Notebook, NoteReader, Woke


def judged(script: str) -> Verdict:
    lives: dict[str, Life] = {}
    for line in script.strip().splitlines():
        process, term, kind, time = line.split()
        terms = {0: int(term)}
        since, _, until = time.partition("-")
        note: Note = Acts(float(since), float(until), terms) if kind == "acts" else _ENDS[kind](float(since), terms)
        lives.setdefault(process, Life(process)).hear(note)
    return judged_lives(lives.values())


_ENDS: dict[str, type[Done | LeasesLost]] = {"done": Done, "lost": LeasesLost}


def test_takeovers_and_handovers_are_counted() -> None:
    verdict = judged("a 5 acts 1.0-2.0\na 5 acts 1.5-2.5\nb 9 acts 2.6-3.0")
    assert ([], 3, 0, 1) == (verdict.faults, verdict.acts, verdict.handovers, verdict.takeovers)
    assert {0: {"a", "b"}} == verdict.processes
    verdict = judged("a 5 acts 1.0-2.0\na 5 done 1.2\nb 9 acts 1.3-2.3")
    assert ([], 1, 0) == (verdict.faults, verdict.handovers, verdict.takeovers)


def test_a_killed_process_acts_no_more_whatever_it_was_allowed() -> None:
    """A witness certified its death. A successor that began before the kill still overlaps with it."""
    for began_at, overlaps in ((1.6, 0), (1.4, 1)):
        killed, heir = Life("a", killed_at=1.5), Life("b")
        killed.hear(Acts(1.0, 2.0, {0: 5}))
        heir.hear(Acts(began_at, 3.0, {0: 9}))
        assert overlaps == len(judged_lives([killed, heir]).overlaps)


def test_two_who_may_act_at_once_overlap_in_whatever_order_the_notes_are_read() -> None:
    verdict = judged("c 12 acts 6.0-7.0\nb 9 acts 1.5-1.6\na 5 acts 1.0-2.0")
    found = "a under 5 from 1.000000 to 2.000000 and b under 9 from 1.500000 to 1.600000, 100.000 ms"
    assert [f"partition 0: {found}"] == [str(overlap) for overlap in verdict.overlaps]


OVERLAPS = {
    "for as long as both may": ("a 5 acts 1.0-2.0\nb 9 acts 1.75-3.0", ["ab"]),
    "a short act hides nothing": ("a 5 acts 1.0-9.0\nb 7 acts 2.0-3.0\nc 9 acts 4.0-5.0", ["ab", "ac"]),
    "one that comes back under another term is another owner": ("a 5 acts 1.0-2.0\na 9 acts 1.9-3.0", ["aa"]),
    "what two readings of one clock may differ by": (f"a 5 acts 1.0-2.0\nb 9 acts {2 - CLOCK_ERROR / 2}-3.0", []),
    "more than two readings may differ by": (f"a 5 acts 1.0-2.0\nb 9 acts {2 - CLOCK_ERROR * 2}-3.0", ["ab"]),
    "one that was found lost early may act until its end": ("a 5 acts 1.0-2.0\na 5 lost 1.2\nb 9 acts 1.5-2.5", ["ab"]),
    "within another's, however short": (
        f"a 5 acts 1.0-2.0\nb 9 acts 1.5-2.5\nb 9 done {1.5 + CLOCK_ERROR / 4}",
        ["ab"],
    ),
}


@pytest.mark.parametrize("case", OVERLAPS)
def test_an_overlap_is_seen(case: str) -> None:
    script, expected = OVERLAPS[case]
    assert expected == [one.first.process + one.second.process for one in judged(script).overlaps]


@pytest.mark.parametrize(
    ("script", "regressions", "relapses"),
    [
        *((f"a 5 acts 1.0-2.0\n{later} acts 3.0-4.0", 1, 0) for later in ("b 4", "b 5", "a 4")),
        ("a 5 acts 1.0-2.0\na 5 acts 3.0-4.0", 0, 0),  # It was fenced for a while, and continues under its term.
        ("a 5 acts 1.0-2.0\na 5 done 1.5\na 5 acts 1.6-2.1", 0, 1),
        ("a 5 acts 1.0-2.0\na 5 done 1.5\na 5 acts 2.1-3.0", 0, 0),  # Its lease ended before it sent the Handover.
    ],
)
def test_a_term_that_goes_back_and_an_act_after_its_end_are_found(script: str, regressions: int, relapses: int) -> None:
    verdict = judged(script)
    found = (len(verdict.regressions), len(verdict.relapses), len(verdict.faults))
    assert (regressions, relapses, regressions + relapses) == found


def test_an_old_term_that_acts_again_after_a_newer_one_has_gone_back() -> None:
    found = "a term went back from b under 9 from 3.000000 to 4.000000 to a under 5 from 5.000000 to 6.000000"
    assert [f"partition 0: {found}"] == judged("a 5 acts 1.0-2.0\nb 9 acts 3.0-4.0\na 5 acts 5.0-6.0").faults


def test_notes_are_read_as_they_were_written_and_only_once(tmp_path: Path) -> None:
    terms = {0: 2**53 - 1, 7: 1}
    notes: list[Note] = [
        Acts(0.1 + 0.2, 12345.678901234567, terms),
        Done(3.5, {7: 1}),
        Halted(12.25, 85, "no Beat of this member came back for 0.5 s"),
        Woke(12.25, 1.5, ""),
        Acts(12.5, 12.75, terms),
        Acts(12.5, 13.0, {0: 2**53 - 1}),
    ]
    reader = NoteReader(tmp_path / "notes")
    assert [] == list(reader.fresh())
    notebook = Notebook(tmp_path / "notes")
    notebook.write(notes[0])
    assert notes[:1] == list(reader.fresh())
    for note in notes[1:]:
        notebook.write(note)
    assert notes[1:] == list(reader.fresh())


def test_notes_by_a_clock_that_was_bent_are_judged_in_true_time() -> None:
    for by_a_fast_clock, expected in (
        (Acts(10.5, 21.0, {0: 5}), Acts(10.0, 20.0, {0: 5})),
        (LeasesLost(21.0, {0: 5}), LeasesLost(20.0, {0: 5})),
        (Halted(21.0, 1, "missed"), Halted(20.0, 1, "missed")),
        (Woke(42.0, 2.1, ""), Woke(40.0, 2.0, "")),
        (Failed("no port"), Failed("no port")),
    ):
        assert expected == in_true_time(by_a_fast_clock, 1.05)


def test_a_line_that_its_writer_did_not_live_to_finish_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    notebook, notes = Notebook(path), [Acts(1.0, 2.0, {0: 5}), Acts(1.5, 2.5, {0: 7})]
    notebook.write(notes[0])
    whole = len(path.read_bytes())
    notebook.write(notes[1])
    written = path.read_bytes()
    for length in range(len(written) - whole):
        path.write_bytes(written[: whole + length])
        reader = NoteReader(path)
        assert notes[:1] == list(reader.fresh())
        path.write_bytes(written)
        assert notes[1:] == list(reader.fresh())
