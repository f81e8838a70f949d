"""Accusations: which member accuses which, and when. A lease is 10 s here, a stagger half a second.

A member has heard itself since 0 at the earliest: each second it hears a Beat of its own, which takes a quarter of a
second to come back.
"""

from math import inf

import pytest

from neli_router.core.keyspace import Layout
from neli_router.protocols.induction.suspicion import POWERLESS_LEASES, Look, Suspicion
from neli_router.protocols.protocol import BEATS_PER_LEASE, STAGGER_RANKS, Settings

SETTINGS = Settings(name="m", layout=Layout(), lease=10.0)
ME = "m"
BEAT = 10.0 / BEATS_PER_LEASE


def hearing(*, until: float) -> Suspicion:
    """A member that has heard itself from 0 to `until`, without a break."""
    suspicion = Suspicion(SETTINGS, ME)
    now = 0.0
    while now <= until:
        suspicion.lapse(now)
        suspicion.hear(now - 0.25, now)
        now += 1.0
    return suspicion


def accused(suspicion: Suspicion, now: float, **heard: float) -> list[str]:
    """The members that `m` accuses at `now`. Keywords: the members in join order, and when they were last heard."""
    suspicion.lapse(now)
    return suspects(suspicion, heard, now)


def suspects(suspicion: Suspicion, heard: dict[str, float], now: float) -> list[str]:
    return suspicion.look(heard, heard, as_of=now, now=now, at_tip=True).accused


def deadline(suspicion: Suspicion, heard: dict[str, float]) -> float:
    """When `m` should look, if it does not know enough to accuse now."""
    return suspicion.look(heard, heard, as_of=-inf, now=-inf, at_tip=False).again_at


@pytest.mark.parametrize(
    ("until", "q", "now", "whom"),
    [(9.0, -100.0, 9.75, []), (9.0, -100.0, 10.0, ["q"]), (19.0, 10.0, 19.75, []), (19.0, 10.0, 20.0, ["q"])],
)
def test_an_accusation_takes_a_whole_lease_of_hearing_oneself_and_of_silence(
    until: float, q: float, now: float, whom: list[str]
) -> None:
    assert whom == accused(hearing(until=until), now, m=until, q=q)


@pytest.mark.parametrize(("gap", "whom"), [(4.75, ["q"]), (5.0, [])])
def test_half_a_lease_since_the_last_beat_came_back_starts_the_lease_anew(gap: float, whom: list[str]) -> None:
    suspicion = hearing(until=8.0)  # The last Beat was sent at 7.75.
    suspicion.lapse(8.0 + gap)
    suspicion.hear(8.0 + gap - 0.25, 8.0 + gap)
    assert whom == accused(suspicion, 15.0, m=15.0, q=0.0)


def test_a_member_that_never_heard_itself_accuses_none() -> None:
    suspicion = Suspicion(SETTINGS, ME)
    assert [] == accused(suspicion, 1000.0, m=-inf, q=0.0)
    assert inf == deadline(suspicion, {"m": 0.0, "q": 0.0})


def test_one_whose_last_beat_was_sent_a_lease_ago_does_not_hear_itself_but_beats_out_of_order_deafen_nobody() -> None:
    suspicion = hearing(until=8.0)
    suspicion.hear(8.0, 12.0)
    suspicion.lapse(16.75)  # Half a lease after it came back ends at 17.
    assert ["q"] == accused(suspicion, 16.75, m=16.0, q=0.0)
    suspicion.hear(8.5, 16.75)
    suspicion.lapse(18.5)
    assert inf == deadline(suspicion, {"m": 18.0, "q": 0.0})
    suspicion = hearing(until=9.0)
    suspicion.hear(3.0, 9.0)  # An old Beat that was appended twice.
    assert ["q"] == accused(suspicion, 13.5, m=9.0, q=-100.0)


def powerless_from(round_trip: float, *, until: float = 300.0, stops_at: float = inf) -> float:
    """When a member that beats slightly less than once a second is first powerless; `inf` if not by `until`."""
    suspicion, now, back = Suspicion(SETTINGS, ME), 0.0, 0.0
    while now < until:
        now += 0.25
        suspicion.lapse(now)
        while back + round_trip <= now and back < stops_at:
            suspicion.hear(back, now)
            back += BEAT
        if suspicion.is_powerless(now):
            return now
    return inf


def test_a_member_whose_beats_come_back_too_late_is_powerless_after_several_leases() -> None:
    assert [inf] * 4 == [powerless_from(round_trip) for round_trip in (0.1, 3.0, 5.0, 8.0)]
    for round_trip in (8.75, 9.5, 10.0, 25.0):
        first = next(now / 4 for now in range(1000) if now / 4 >= round_trip)
        assert first + 10.0 * POWERLESS_LEASES == powerless_from(round_trip)
    assert inf == powerless_from(9.5, stops_at=30.0), "one that hears nothing is cut off"


def test_a_member_is_powerless_no_more_once_it_heard_itself_for_a_lease_and_not_after_an_outage() -> None:
    suspicion = Suspicion(SETTINGS, ME)
    for second in range(100):
        suspicion.lapse(float(second))
        suspicion.hear(second - 9.5, float(second))
    assert suspicion.is_powerless(99.0)
    for second in range(100, 109):
        suspicion.lapse(float(second))
        suspicion.hear(second - 0.25, float(second))
        assert suspicion.is_powerless(float(second))
    suspicion.lapse(110.0)
    assert not suspicion.is_powerless(110.0)
    suspicion = hearing(until=30.0)
    for second in range(31, 330):
        suspicion.lapse(float(second))
        if second >= 300:
            suspicion.hear(second - 0.25, float(second))
        assert not suspicion.is_powerless(float(second))


def test_all_that_are_silent_are_accused_at_once_but_never_oneself() -> None:
    assert [] == accused(hearing(until=30.0), 30.0, m=0.0)
    assert ["p", "q"] == accused(hearing(until=30.0), 30.0, p=1.0, m=30.0, q=2.0, r=29.0)
    suspicion = hearing(until=30.0)
    assert ["p"] == accused(suspicion, 20.0, m=20.0, p=10.0, q=11.0)
    assert ["q"] == accused(suspicion, 21.0, m=21.0, p=10.0, q=11.0), "the silence of one delays no other accusation"


@pytest.mark.parametrize(
    ("before_me", "later"), [(0, 0.0), (1, 0.5), (2, 1.0), (STAGGER_RANKS, 2.0), (STAGGER_RANKS + 1, 2.0), (50, 2.0)]
)
def test_survivors_take_turns_in_join_order(before_me: int, later: float) -> None:
    heard = {**{f"s{number}": 40.0 for number in range(before_me)}, ME: 40.0, "q": 30.0}
    suspicion = hearing(until=39.0)
    assert before_me == suspicion.rank(heard, heard, 40.0)
    others = {member: at for member, at in heard.items() if member != ME}
    assert before_me == suspicion.rank(others, others, 40.0), "who has no seat comes last"
    assert [] == suspects(suspicion, heard, 40.0 + later - 0.25)
    assert ["q"] == suspects(suspicion, heard, 40.0 + later)


def test_an_accusation_that_had_no_effect_is_repeated_after_half_a_lease_or_a_new_silence() -> None:
    suspicion = hearing(until=30.0)
    assert ["q"] == accused(suspicion, 20.0, m=20.0, q=0.0)
    assert [] == accused(suspicion, 24.75, m=24.0, q=0.0)
    assert ["q"] == accused(suspicion, 25.0, m=25.0, q=0.0)
    suspicion = hearing(until=40.0)
    assert ["q"] == accused(suspicion, 20.0, m=20.0, q=10.0)
    assert [] == accused(suspicion, 30.5, m=30.0, q=21.0)
    assert 31.0 == deadline(suspicion, {"q": 21.0, "m": 30.0})
    assert ["q"] == accused(suspicion, 31.0, m=31.0, q=21.0)


def test_one_that_went_away_is_accused_when_its_grace_is_over_and_has_no_turn() -> None:
    for grace in (3.0, 30.0):
        heard, away = {"q": 20.0, "m": 20.0 + grace}, {"q": grace}
        suspicion = hearing(until=20.0 + grace)
        for now, whom in ((20.0 + grace - 0.25, []), (20.0 + grace, ["q"])):
            look = suspicion.look(heard, heard, away, as_of=now, now=now, at_tip=True)
            assert whom == look.accused
            assert whom or 20.0 + grace == look.again_at
        assert 0 == suspicion.rank(heard, heard, 21.0, away)


DEADLINES: dict[str, tuple[dict[str, float], float]] = {
    "alone": ({"m": 5.0}, inf),
    "a lease after the last of q": ({"q": 3.0, "m": 5.0}, 13.0),
    "not before a lease of hearing": ({"q": -7.0, "m": 5.0}, 10.0),
    "the longest silent": ({"p": 2.0, "q": 3.0, "m": 5.0}, 12.0),
    "not myself": ({"m": 1.0, "q": 3.0}, 13.0),
}


@pytest.mark.parametrize(("heard", "at"), DEADLINES.values(), ids=DEADLINES)
def test_the_deadline_is_when_the_first_can_be_accused(heard: dict[str, float], at: float) -> None:
    assert at == deadline(hearing(until=5.0), heard)


def test_the_deadline_is_a_repetition_a_silence_or_ones_turn_and_a_look_that_knows_too_little_asks_once() -> None:
    suspicion = hearing(until=30.0)
    accused(suspicion, 20.0, p=10.0, m=20.0)
    assert 25.0 == deadline(suspicion, {"p": 10.0, "m": 20.0})
    assert 24.0 == deadline(suspicion, {"p": 10.0, "q": 14.0, "m": 20.0})
    suspicion, heard = hearing(until=30.0), {"q": 20.0, "s": 29.0, "m": 30.0}
    assert [] == suspicion.look(["s", "m", "q"], heard, as_of=30.0, now=30.0, at_tip=True).accused
    assert 30.5 == deadline(suspicion, heard)
    suspicion, heard = hearing(until=30.0), {"q": 20.0, "m": 30.0}
    assert Look([], 30.0) == suspicion.look(heard, heard, as_of=29.75, now=30.25, at_tip=False)
    assert Look([], inf, is_too_old=True) == suspicion.look(heard, heard, as_of=29.75, now=30.25, at_tip=True)
    assert Look([], inf) == suspicion.look(heard, heard, as_of=29.75, now=30.5, at_tip=True)
    assert Look(["q"], 35.0) == suspicion.look(heard, heard, as_of=30.0, now=30.5, at_tip=True)
