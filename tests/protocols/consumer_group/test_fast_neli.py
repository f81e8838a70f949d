"""Fast NELI: the behaviour that goNELI documents, without the faults in its source.

| documented by goNELI | tests |
| --- | --- |
| Barrier: LeaderAcquired, LeaderRevoked, LeaderFenced | `test_acquired_`, `test_fenced_`, `test_contract` |
| "again receive a heartbeat, allowing it to resume the leader role" | `test_resumes_` |
| the owner publishes heartbeats, others do not; the heartbeat's form | `test_heartbeats_` |
| Pulse answers immediately if it leads; only fatal errors leave it | `test_contract` has the machine's half |
| Background runs a task while its member leads | like Pulse: the calls are the member's |
| Close, and Await of the end | `test_contract` |
| Configuration: names and defaults | `test_settings_` |

The tests that begin with `test_fault_` show faults in goNELI's source that this machine does not have.
"""

import pytest

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.protocols.consumer_group.events import GiveBack
from neli_router.protocols.consumer_group.fast_neli import HEARTBEATS_MAX
from neli_router.protocols.consumer_group.settings import FastNeliSettings
from neli_router.protocols.protocol import Acquired, Fenced, Revoked
from tests.protocols.consumer_group.scenes import LAYOUT, WALL, FastScene, fenced
from tests.protocols.consumer_group.scenes import fast_leader as leader

GONELI = FastNeliSettings(name="a", layout=Layout(slots=16, partitions=1), goneli=True)


# Barrier


def test_acquired_when_a_heartbeat_that_was_sent_since_the_assignment_comes_back() -> None:
    """Each partition at its own time."""
    scene = FastScene()
    assert [] == scene.given(0.0, 1, 3)
    assert ([1, 3], []) == (list(scene.published[0][1]), scene.leads(0.0))  # An assignment alone does not make it lead.
    assert [Acquired({1: 10, 3: 10})] == scene.returns(0.125)
    scene.given(1.0, 2)
    assert [Acquired({2: 11})] == scene.returns(1.1)
    assert {1: 10, 2: 11, 3: 10} == scene.machine.leading


def test_acquired_is_not_for_a_heartbeat_of_an_earlier_assignment() -> None:
    scene = leader(1)
    scene.lost(1.0, 1)
    scene.given(1.0, 1)
    assert [] == scene.returns(1.1, sent=-2)
    assert [Acquired({1: 12})] == scene.returns(1.2)


def test_fenced_after_a_heartbeat_timeout_without_a_heartbeat_and_the_broker_need_not_wait() -> None:
    """ "Blocking in the Barrier callback will not prevent a new leader from being elected." """
    scene = leader(1)
    assert [] == scene.step(4.9)
    (loss,) = scene.step(5.0)
    assert Fenced({1: 10}, "no heartbeat of this member came back that was sent within 5 s") == loss
    assert [GiveBack([1])] == scene.asked_back(5.5, 1)
    assert [] == scene.lost(6.0, 1)  # It has stopped and has nothing left to finish.


def test_resumes_when_a_heartbeat_returns_while_it_is_still_the_assignee() -> None:
    """A later tenure has a higher term: another member may have led meanwhile."""
    scene, reassigned = leader(1), leader(1)
    for one in (scene, reassigned):
        one.step(5.0)
    reassigned.lost(5.0, 1)
    assert [Acquired({1: 11})] == scene.returns(5.1)
    assert [] == reassigned.returns(5.1)


def test_resumes_only_with_the_word_of_the_group() -> None:
    """A process wakes up after more than a session, and Kafka still lets it fetch its own messages."""
    scene = leader(1)
    scene.step(60.0)
    scene.confirms = False
    assert [] == scene.returns(60.1)
    assert [] == scene.leads(60.1)
    assert [] == scene.lost(60.2, 1)  # The group refused, and the consumer learns why.


# Heartbeats


def test_heartbeats_are_sent_by_owners_to_their_partitions_only_each_minimum_poll_interval() -> None:
    scene = FastScene()
    scene.step(0.0)
    scene.step(1.0)
    assert [] == scene.published
    scene.given(1.5, 2, 0)
    for _ in range(3):
        scene.step(scene.machine.deadline)
    assert [1.5, 1.6, pytest.approx(1.7), pytest.approx(1.8)] == [now for now, _ in scene.published]
    assert [[0, 2]] * 4 == [list(bodies) for _, bodies in scene.published]


def test_heartbeats_are_what_gonelis_are_and_never_alike() -> None:
    """Two heartbeats at one time, because two partitions were given one after another."""
    scene = leader(1)
    scene.step(0.5)
    assert [{1: b"1700000000000000000%a"}, {1: b"1700000000500000000%a"}] == [bodies for _, bodies in scene.published]
    scene = FastScene()
    scene.given(0.0, 1)
    scene.given(0.0, 2)
    (_, first), (_, second) = scene.published
    assert len({first[1], second[1]}) == 2


def test_heartbeats_that_are_remembered_have_a_bound() -> None:
    scene = leader(1)
    for number in range(HEARTBEATS_MAX + 10):
        scene.step(0.25 + number / 4)
    assert HEARTBEATS_MAX == len(scene.machine._sent)


def test_heartbeats_of_strangers_make_a_leader_ask_the_group_once_a_beat_and_cost_it_nothing() -> None:
    scene = leader(1)
    scene.step(1.0)
    assert [{1: 9}] == scene.asked
    for number in range(100):
        assert [] == scene.message(1.001 + number / 1000, 1, body=b"5%b")
    assert scene.asked in ([{1: 9}] * 2, [{1: 9}] * 3)
    scene.step(1.2)
    scene.returns(1.25)
    assert [1] == scene.leads(5.9)


def test_heartbeats_of_a_successor_end_a_zombie_that_the_group_does_not_confirm() -> None:
    """It still fetches and hears itself, but its own heartbeats no longer count."""
    scene = leader(1)
    scene.confirms = False
    scene.message(1.0, 1, body=b"5%b")
    for now in (1.0, 2.0, 3.0, 4.0):
        scene.step(now)
        scene.returns(now)
    assert [1] == fenced(scene.step(5.0))


# Configuration


def test_settings_have_gonelis_names_and_defaults() -> None:
    assert (0.1, 5.0, 15.0) == (GONELI.min_poll_interval, GONELI.heartbeat_timeout, GONELI.session_timeout)


@pytest.mark.parametrize(
    ("problem", "told"),
    {
        "heartbeat_timeout=5 must be at most a third of session=14, so that a leader that is cut off stops "
        "well before the broker gives its partitions away: lower it to 4.66667 or raise session to 15": {
            "heartbeat_timeout": 5.0,
            "session": 14.0,
        },
        "heartbeat_timeout=5 plus group_heartbeat=10 must be less than session=15, or two members can lead at "
        "once: lower group_heartbeat to under 10": {"group_heartbeat": 10.0},
        "min_poll_interval=2 must be above 0 and at most a third of heartbeat_timeout=5, or one lost heartbeat "
        "would look like silence: lower it to 1.66667 or raise heartbeat_timeout to 6": {"min_poll_interval": 2.0},
        "heartbeat_timeout=-1.0 must be a number of seconds: correct it": {"heartbeat_timeout": -1.0},
        "the name 'a%b' must have no %, which ends the time in a heartbeat: choose another": {"name": "a%b"},
        "goneli=True needs a layout of one partition, got 4: goNELI leads partition 0 and no other, so every "
        "role is its leader's": {"goneli": True},
        "session=20 must be three times heartbeat_timeout=5 with goneli=True, because goNELI knows no other: "
        "leave session out": {"goneli": True, "layout": Layout(slots=4, partitions=1), "session": 20.0},
    }.items(),
    ids=lambda value: "" if isinstance(value, str) else str(list(value)),
)
def test_settings_that_contradict_each_other_are_refused_in_words(told: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FastNeliSettings(**{"name": "a", "layout": LAYOUT, **told})  # type: ignore[arg-type]
    assert (problem,) == caught.value.problems


def test_settings_for_gonelis_groups_lead_partition_zero_of_any_topic_and_no_other() -> None:
    scene = FastScene(GONELI, partitions=3)
    scene.given(0.0, 0, 1, 2)
    assert [[0]] == [list(bodies) for _, bodies in scene.published]
    assert [] == scene.message(0.05, 2, body=b"5%a")
    assert [Acquired({0: 11})] == scene.returns(0.1)
    assert [GiveBack([1, 2]), Revoked({0: 11})] == scene.asked_back(1.0, 0, 1, 2)


# The faults of goNELI's source


def test_fault_wall_clock_arithmetic() -> None:
    """The wall clock is set an hour back and a day ahead: neither lengthens a tenure or ends it."""
    scene = leader(1)
    scene.step(1.0)
    scene.returns(1.1, wall=WALL - 3600)
    scene.step(2.0)
    scene.returns(2.1, wall=WALL + 86400)
    assert [1] == scene.leads(6.9)
    assert [] == scene.leads(7.0)


@pytest.mark.parametrize(
    "body",
    [None, b"", b"x", b"1%", b"%a", b"x%a", b"1700000000000000001%a", b"1700000000000000000%b", b"9" * 99 + b"%a"],
    ids=repr,
)
def test_fault_any_message_taken_for_ones_own_heartbeat(body: bytes | None) -> None:
    """The messages are from another writer, from a namesake, or not heartbeats at all."""
    scene = FastScene()
    scene.given(0.0, 1)
    assert [] == scene.message(0.5, 1, body=body)
    scene.returns(0.5)
    scene.message(4.0, 1, body=body)
    assert [1] == scene.leads(5.4)
    assert [] == scene.leads(5.5)


def test_fault_freshness_counted_from_receipt() -> None:
    """In goNELI, a heartbeat that waited in a buffer made a fenced leader lead again."""
    scene = leader(1)
    scene.step(1.0)
    assert [1] == fenced(scene.step(5.0))
    assert [] == scene.returns(6.0, sent=1)  # Sent at 1, received at 6.
    assert [] == scene.leads(6.0)


def test_fault_a_late_heartbeat_does_not_hide_the_silence_before_it() -> None:
    """A leader that was paused for longer than the timeout reports Fenced before it leads again."""
    scene = leader(1)
    scene.step(4.0)
    assert [Fenced, Acquired] == [type(effect) for effect in scene.returns(6.0)]
