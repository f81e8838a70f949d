"""The audit: small histories whose truth is known exactly, and simulated groups whose referee knows it.

In the small histories, a lease is 6 s, the group has four partitions, its base is 1000, and incarnations are single
letters.
"""

from collections.abc import Sequence
from math import isnan

import pytest
from msgspec.structs import replace

from neli_router.drivers.ledgers.base import Entry
from neli_router.errors import LedgerUnusable
from neli_router.lab.moves import history_of
from neli_router.protocols.induction.digest import difference
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Beat, Certify, Drain, Handover, Leave, Load, Record, encode
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.protocols.protocol import wait_for
from neli_router.status.audit import Audit, LeadingGap
from neli_router.status.notes import Span as ActedSpan
from tests.support.audited import START, audited, entries, simulated, written
from tests.support.records import expire, folded, genesis, join

LEASE = 6.0
WAIT = wait_for(LEASE)


def beats(by: str, *times: float) -> list[tuple[str, float]]:
    return [(by, time) for time in times]


ALICE_DIES: list[Record | tuple[str, float]] = [
    *(genesis(), join("a", "alice", at=1), ("a", 0.0), ("a", 1.0), join("b", "bob", at=4), ("b", 1.5)),
    *(Handover(by="a", terms={1: 1001}), Handover(by="a", terms={3: 1001})),
    *(("a", 2.0), ("b", 2.5), ("a", 3.0), ("b", 3.5)),
    *(("b", 4.5), ("b", 5.5), ("b", 6.5), ("b", 7.5), ("b", 8.5), ("b", 9.5)),
    *(expire("b", "a", 10), ("b", 10.5)),
]
"""The last Beat of alice was sent at 3.0 and is at offset 10; bob expires alice at offset 18, and waits until just
after 9."""


def of(*records: Record | tuple[str, float], notes: Sequence[ActedSpan] = ()) -> Audit:
    return audited(entries(written(*records)), notes)


def kinds(found: Audit, severity: str = "broken") -> list[str]:
    return [finding.kind for finding in found.findings if finding.severity == severity]


def test_members_tenures_and_moves_are_told_by_name_and_moves_beside_the_least() -> None:
    found = of(*ALICE_DIES)
    assert [("alice", "expire"), ("bob", "")] == [(life.name, life.ending) for life in found.lives]
    assert ["expire", "", "handover", ""] == [tenure.ending for tenure in found.tenures][:4]
    assert [(0, 0, 0), (2, 2, 2), (2, 2, 2)] == [(plan.moved, plan.planned, plan.least) for plan in found.plans]
    assert (4, 0) == (found.moved, found.needless)
    assert [True, True] == [0 <= seconds <= 1.0 for seconds in found.handovers]  # From the plan to the record.
    # A process gets back what it had under its own name, and load may call for more than the fewest moves.
    found = of(genesis(), join("a", "alice", at=1), ("a", 0.0), join("b", "alice", at=3), ("b", 1.0))
    assert (0, ["replaced", ""]) == (found.moved, [life.ending for life in found.lives])
    plan = of(*ALICE_DIES[:12], Load(by="x", loads={0: 90.0, 2: 70.0, 1: 1.0, 3: 1.0}), ("a", 4.0)).plans[-1]
    assert (0, 2) == (plan.least, plan.planned)


def test_a_takeover_lasts_from_the_death_to_the_end_of_the_wait_and_gaps_are_found() -> None:
    found = of(*ALICE_DIES)
    (takeover,) = found.takeovers
    # It beat every second and died somewhere between 3.0 and 4.0. The wait is counted from the Beat at 3.0, but the
    # Expire came even later: between 9.5 and 10.5.
    assert ("alice", 2, 3.5, 10.0) == (takeover.member, takeover.partitions, takeover.died, takeover.led)
    assert takeover.seconds == pytest.approx(6.5)
    assert takeover.error == pytest.approx(1.0, abs=0.01)
    # A member that expires it earlier still has to wait, unless the guarantee is only `available`.
    sooner = ("b", 4.5), expire("b", "a", 10), ("b", 5.5)
    (takeover,) = of(*ALICE_DIES[:12], *sooner, ("b", 10.5)).takeovers
    assert takeover.led == pytest.approx(3.0 + WAIT)
    (takeover,) = of(genesis(guarantee="available"), *ALICE_DIES[1:12], *sooner).takeovers
    assert 5.0 == takeover.led
    # As the founder, alice had to wait until just after 6, and died before; bob was handed 1 and 3, without a wait.
    assert [LeadingGap(0.0, 1.5, (1, 3)), LeadingGap(0.0, 10.0, (0, 2))] == found.gaps
    assert (1 - (2 * 1.5 + 2 * 10.0) / (4 * 10.5), 1.0) == pytest.approx((found.led, found.owned))
    found = of(genesis(), join("a", at=1), *beats("a", 0.0, 1.0, 2.0), Leave(by="a"))
    assert [] == [gap for gap in found.gaps if gap.until >= found.until and gap.since > 0]
    assert "note" == found.verdict
    begun: list[Record | tuple[str, float]] = [genesis(), join("a", at=1), *beats("a", *map(float, range(10)))]
    found = of(*begun)
    assert [LeadingGap(0.0, WAIT, (0, 1, 2, 3))] == found.gaps
    assert 1.0 == found.owned
    found = of(*begun, *beats("a", 20.0, 21.0))
    assert [(0.0, WAIT), (15.0, 20.0)] == [(gap.since, gap.until) for gap in found.gaps]
    assert ["notes", "silence"] == kinds(found, "note")


def test_a_member_that_joins_again_and_again_flaps_and_the_balance_leaves_out_the_drained() -> None:
    records: list[Record | tuple[str, float]] = [genesis(), join("z", "zoe", at=1), ("z", 0.0)]
    for place, incarnation in enumerate("abcd"):
        records += [join(incarnation, "alice", at=len(records)), (incarnation, 1.0 + place), ("z", 1.5 + place)]
    found = of(*records)
    assert ("flapping", "warning") == (kinds(found, "warning")[0], found.verdict)
    assert [1.0, 2.0, 1.5, 1.0, 1.0] == [ratio for _, ratio in of(*ALICE_DIES).balance]
    drained = Drain(by="x", name="alice"), Handover(by="a", terms={0: 1001}), ("a", 4.0)
    assert 0.75 == of(*ALICE_DIES[:12], *drained).balance[-1][1]


def test_beats_after_its_end_show_that_the_expired_was_alive_and_void_records_are_counted() -> None:
    late = Beat(by="a", sent_at=11.0, at=10, digest="0" * 16)
    found = audited(entries([*written(*ALICE_DIES), late]))
    assert (["alive", "notes"], {"beat": 1}) == (kinds(found, "note"), found.void)
    history = [*entries(written(*ALICE_DIES)), Entry(90, b"junk"), Entry(91, encode(expire("b", "a", 10)))]
    found = audited(history)
    assert ({"expire": 1}, 1) == (found.void, found.kinds["unreadable"])


ALICE_IS_KILLED = [*ALICE_DIES[:12], Certify(by="b", incarnation="a"), *beats("b", 4.5, 5.5)]
"""The last Beat of alice was sent at 3.0, and the certificate is between the Beats of bob at 3.5 and at 4.5."""


def test_a_certificate_owes_no_wait_tells_when_it_died_and_only_a_later_beat_proves_it_false() -> None:
    found = of(*ALICE_IS_KILLED)
    (takeover,) = found.takeovers
    assert [("alice", "certify"), ("bob", "")] == [(life.name, life.ending) for life in found.lives]
    assert ("alice", 2, 4.0, 4.0) == (takeover.member, takeover.partitions, takeover.died, takeover.led)
    # If its witness waited, it may have died right after its last Beat; and the record's time is known to a second.
    assert takeover.error == pytest.approx(1.5, abs=0.01)
    # A certificate that came late says no more than the silence before it.
    late = ("b", 4.5), ("b", 5.5), Certify(by="b", incarnation="a"), ("b", 6.5)
    (takeover,) = of(*ALICE_DIES[:12], *late).takeovers
    assert (3.5, 6.0) == (takeover.died, takeover.led)
    on_its_way, later = (Beat(by="a", sent_at=sent_at, at=10, digest="0" * 16) for sent_at in (4.2, 5.0))
    found = audited(entries([*written(*ALICE_IS_KILLED), on_its_way]))
    assert ([], {"beat": 1}) == (kinds(found), found.void)
    assert [] == kinds(audited(entries([*written(*ALICE_IS_KILLED[:13]), later])))
    found = audited(entries([*written(*ALICE_IS_KILLED), later]))
    assert ("broken", ["certificate"]) == (found.verdict, kinds(found))
    assert "alice was certified dead at offset 12 and wrote a Beat 499 ms later" in found.findings[0].text


def test_records_that_no_sound_ledger_holds_are_proof_of_what_went_wrong() -> None:
    def found(*more: Record) -> Audit:
        return audited(entries([*written(*ALICE_DIES), *more]))

    def bob(at: int) -> Beat:
        return Beat(by="b", sent_at=11.0, at=at, digest="0" * 16)

    # Its writer had read past the first Genesis, or beyond the place of its Beat: records were lost.
    refounded = found(genesis("x", at=15))
    assert (["genesis"], "broken") == (kinds(refounded), refounded.verdict)
    assert ["rewound"] == kinds(found(bob(500)))
    race = written(genesis(), genesis("b"), *ALICE_DIES[1:2], ("a", 1.0))
    assert [] == kinds(audited(entries(race)))  # A second Genesis in the race to found the group proves nothing.
    other = found(bob(len(ALICE_DIES)))
    assert (["digest"], True) == (kinds(other), "bob computed another table" in other.findings[0].text)
    lacking = entries(written(*ALICE_DIES))
    del lacking[7]  # A Handover.
    assert {"digest"} == set(kinds(audited(lacking)))
    many = found(*[Beat(by="b", sent_at=11.0 + it, at=9000, digest="0" * 16) for it in range(20)])
    assert (6, "and 15 more of this kind") == (len(kinds(many)), many.findings[5].text)


def test_a_term_that_goes_down_is_a_broken_promise() -> None:
    """No fold produces one. A snapshot that does comes from another ledger, or from a faulty member."""
    state = folded(*written(*ALICE_DIES)[:6])
    forged = replace(state, terms=(1001, 9000, 1001, 1001), digest=0)
    forged = replace(forged, digest=difference(State(), forged))
    later = [*written(*ALICE_DIES)[6:], snapshot("b", forged)]
    assert "term" in kinds(audited(entries(later, first=6)))


def test_a_trimmed_ledger_is_audited_from_its_first_whole_snapshot_or_refused() -> None:
    records = written(*ALICE_DIES)
    state = folded(*records[:8])
    later = [*records[8:], snapshot("b", state)]
    whole, trimmed = audited(entries(records)), audited(entries(later, first=8))
    assert 8 == trimmed.first
    assert {(it.partition, it.term, it.member) for it in whole.tenures if it.last is None or it.last >= 8} == {
        (it.partition, it.term, it.member) for it in trimmed.tenures
    }
    assert (2, None) == (trimmed.moved, trimmed.to_wall)
    # Notes from before the oldest snapshot are not compared with it.
    found = audited(entries([*records[12:], snapshot("b", folded(*records[:12]))], first=12), SOUND)
    assert ([], True) == (kinds(found), found.noted_whole)
    history = entries(records)
    for refused, why in (
        ([*history, history[3]], "sort the copy by offset"),
        ([Entry(1, b"junk")], "there is no Genesis"),
        (history[8:], "it begins at offset 8"),
    ):
        with pytest.raises(LedgerUnusable, match=why):
            audited(refused)
    assert 0.001 == whole.wall(whole.since)
    kept = [entry._replace(time=50_000.0 + place) for place, entry in enumerate(history)]
    assert 50_002.0 == audited(kept).wall(0.0)


def acted(process: str, partition: int, term: int, since: float, until: float, *, again: bool = False) -> ActedSpan:
    return ActedSpan(process, partition, term, since, until, again)


SOUND = [
    *(acted("alice.1", partition, 1001, 0.1, 9.0) for partition in (0, 2)),
    *(acted("alice.1", partition, 1001, 0.1, 1.2) for partition in (1, 3)),
    *(acted("bob.1", partition, term, 1.6, 14.0) for partition, term in ((1, 1006), (3, 1007))),
    *(acted("bob.1", partition, 1018, 10.2, 14.0) for partition in (0, 2)),
]


def test_notes_that_fit_are_sound_and_those_of_all_members_tell_better_when_all_was_led() -> None:
    found = of(*ALICE_DIES, notes=SOUND)
    assert ([], True, []) == (found.overlaps, found.noted_whole, list(found.findings))
    assert (3.5, 10.2) == (found.takeovers[0].died, found.takeovers[0].led)
    found = of(*ALICE_DIES, notes=SOUND[:4])
    assert (False, ["notes"], 10.0) == (found.noted_whole, kinds(found, "note"), found.takeovers[0].led)
    # A member that takes over and dies before its next Beat has led what it took over, if only for a moment.
    late = [acted("alice.1", 0, 1001, 3.8, 9.0), *SOUND[1:]]
    found = of(*ALICE_DIES, notes=late)
    assert pytest.approx(3.8) == found.takeovers[0].died
    assert found.tenures[0].led_until > found.tenures[0].led_from == 3.8


def test_an_overlap_in_the_notes_is_a_broken_promise_unless_all_was_only_available_or_its_writer_certified() -> None:
    notes = [*SOUND[:-1], acted("bob.1", 2, 1018, 8.9, 14.0)]
    found = of(*ALICE_DIES, notes=notes)
    assert [(2, "alice.1", "bob.1")] == [(it.partition, it.first.process, it.second.process) for it in found.overlaps]
    assert found.overlaps[0].seconds == pytest.approx(0.1)
    assert (["overlap"], "broken") == (kinds(found), found.verdict)
    found = of(genesis(guarantee="available"), *ALICE_DIES[1:], notes=notes)
    assert (1, ["overlap"], "note") == (len(found.overlaps), kinds(found, "note"), found.verdict)
    certified = [*SOUND[:4], acted("bob.1", 1, 1006, 1.6, 14.0), acted("bob.1", 0, 1012, 4.5, 14.0)]
    assert [] == of(*ALICE_IS_KILLED, notes=certified).overlaps
    found = of(*ALICE_IS_KILLED, notes=[*certified, acted("alice.1", 0, 1001, 9.5, 11.0)])
    assert [(0, "bob.1", "alice.1")] == [(it.partition, it.first.process, it.second.process) for it in found.overlaps]
    assert "broken" == found.verdict


def test_on_several_clocks_an_overlap_that_their_error_explains_is_none() -> None:
    def far(record: Record) -> Record:
        if not isinstance(record, Beat) or record.by != "b":
            return record
        return replace(record, sent_at=record.sent_at + 500)

    history = [far(record) for record in written(*ALICE_DIES)]
    notes = [
        it if it.process == "alice.1" else acted(it.process, it.partition, it.term, it.since + 500, it.until + 500)
        for it in SOUND
    ]
    short = [*notes[:-1], acted("bob.1", 2, 1018, 508.9, 514.0)]
    long = [*notes[:-1], acted("bob.1", 2, 1018, 505.0, 514.0)]
    assert 0.5 <= audited(entries(history), notes).error <= 0.6
    assert ([], 1) == (audited(entries(history), short).overlaps, len(audited(entries(history), long).overlaps))


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        pytest.param([*SOUND, acted("bob.1", 1, 1017, 15.0, 16.0)], ["unowned"], id="a term that no member was given"),
        pytest.param([*SOUND, acted("old.1", 1, 12, -9.0, -8.0)], [], id="a term from before the annals"),
        pytest.param([*SOUND, acted("bob.1", 0, 1001, 0.0, 0.05)], ["unowned"] * 2, id="one term of two processes"),
        pytest.param([*SOUND, acted("alice.1", 1, 1001, 1.4, 1.5, again=True)], ["again"], id="again after the end"),
        pytest.param(
            [*SOUND[:2], *SOUND[3:], acted("alice.1", 1, 1001, 14.5, 15.0)], ["term"], id="a lower term after a higher"
        ),
    ],
)
def test_notes_are_judged_by_the_terms_that_members_were_given(notes: list[ActedSpan], expected: list[str]) -> None:
    assert expected == kinds(of(*ALICE_DIES, notes=notes))


@pytest.mark.parametrize("seed", range(1, 5))
def test_members_terms_tenures_and_moves_are_the_referees(seed: int) -> None:
    run = simulated(seed, weather="fair" if seed % 2 else "foul")
    found, history = audited(run.entries, drift=run.options.drift), history_of(run.entries)
    expected: set[tuple[int, int, str, int]] = set()
    members: set[tuple[str, str]] = set()
    for state in run.states.values():
        members |= {(seat.incarnation, seat.name) for seat in state.seats.values()}
        for partition, (owner, term, began) in enumerate(zip(state.owners, state.terms, state.began, strict=True)):
            if owner is not None:
                expected.add((partition, term, owner, began))
    assert expected == {(it.partition, it.term, it.incarnation, it.first) for it in found.tenures}
    assert members == {(life.incarnation, life.name) for life in found.lives}
    assert (history.moves, history.state) == (found.moved, found.state)
    assert ([], 0) == (kinds(found), found.needless)
    assert not any(isnan(it.since) or isnan(it.until) for it in found.tenures)


@pytest.mark.parametrize("seed", range(30, 33))
def test_takeovers_of_one_host_are_timed_to_within_a_beat(seed: int) -> None:
    """The simulator knows when a process was killed. On its own, a member that died is expired, or replaced."""
    run = simulated(seed, weather="fair", one_clock=True)
    found = audited(run.entries, drift=run.options.drift, one_clock=True)
    deaths = {incarnation: START + at for incarnation, at in run.deaths.items()}
    timed = [(it, deaths[it.incarnation]) for it in found.takeovers if it.incarnation in deaths]
    assert [] == [(it, died) for it, died in timed if abs(it.died - died) > found.beat]
