"""The rules of the NELI paper ("Non-exclusive leader induction in highly available systems"), one test for each.

| section of the paper | rule | tests that begin with |
| --- | --- | --- |
| Protocol definition | messages without key and value to all M, continually | `test_broadcast_` |
| Protocol definition | none dries up; one leads always; two overlap under `available` | `sim/test_consumer_scenes.py` |
| Protocol definition | V, of size M, of receipt times; M never changes | `test_vector_`; `test_contract` |
| Protocol definition | leader of M_i while V_i is newer than now - T | `test_leader_` |
| Protocol definition | role j is filled by partition j mod size(M); roles come and go | `test_roles_` |
| Protocol definition | T is greater than the session timeout | `test_threshold_` |
| Protocol definition, guidelines | sessions; sharing a topic | `test_advice_` |
| Topic reuse | groups that share a topic divide their frequency; others' messages count | `test_reuse_` |
| Exclusivity of role assignment | broker times, T + e, grace | `test_exclusive_` |
| Exclusivity of role assignment | the steps 1 to 5 | `sim/test_consumer_scenes.py` |

Then follow this project's own rules: terms, the group's confirmation, giving back, the end. `test_contract` has the
rules that Fast NELI shares.
"""

import pytest

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError, LedgerRewound
from neli_router.protocols.consumer_group.events import BrokerAway, BrokerBack, Confirmed, GiveBack, LeaveGroup
from neli_router.protocols.consumer_group.settings import NeliSettings
from neli_router.protocols.protocol import Acquired, Close, Fenced, Notice, Revoked, Stopped
from tests.protocols.consumer_group.scenes import (
    AVAILABLE,
    LAYOUT,
    NeliScene,
    available,
    available_leader,
    exclusive,
    exclusive_leader,
    fenced,
    neli_settings,
)

# Protocol definition


def test_broadcast_every_member_sends_an_empty_message_to_all_partitions_continually() -> None:
    """This includes partitions that are not its own, whether or not it was given any."""
    scene = available()
    for _ in range(4):
        scene.step(max(0.0, scene.machine.deadline))
    empty = dict.fromkeys(range(4))
    assert [(0.0, empty), (1.0, empty), (2.0, empty), (3.0, empty)] == scene.published


def test_vector_has_an_element_for_each_partition_and_takes_the_time_of_each_receipt() -> None:
    """The paper's zero stands for "never": it must not count as a time near the clock's own zero."""
    scene = available()
    never = float("-inf")
    assert [never] * 4 == scene.machine.vector
    scene.given(0.0, 1, 2)
    scene.message(3.0, 1)
    scene.message(5.0, 2)
    assert [never, 3.0, 5.0, never] == scene.machine.vector


def test_leader_of_a_partition_while_its_element_is_newer_than_t_ago() -> None:
    """Leading depends on time, not on a stored flag: the answers end even while a thread hangs and no step is taken.
    When the machine is stepped, a leader that was cut off ends, although the broker cannot report the loss to it.
    """
    scene = available()
    assert [] == scene.message(0.0, 3), "the broker gave it to another, and the message comes late from a buffer"
    scene.offset = 8
    assert [] == scene.given(0.0, 1)
    assert [] == scene.leads(0.0)
    assert [Acquired({1: 10})] == scene.message(2.0, 1)
    assert ([1], []) == (scene.leads(31.9), scene.leads(32.0))
    assert 32.0 == scene.machine.standing.end(1, 10)
    assert [] == scene.step(31.9)
    assert 32.0 == scene.machine.deadline
    (loss,) = scene.step(32.0)
    assert Fenced({1: 10}, "no message of the partition counts that is younger than T=30 s") == loss


def test_leader_of_several_partitions_loses_each_in_its_own_time() -> None:
    scene = available()
    scene.given(0.0, 0, 1)
    scene.message(1.0, 0, 1)
    scene.message(5.0, 1)
    assert [0] == fenced(scene.step(31.0))
    assert [1] == fenced(scene.step(35.0))


def test_leader_again_when_messages_come_again_under_a_new_term() -> None:
    scene = available_leader(1)
    assert [Fenced, Acquired] == [type(effect) for effect in scene.message(40.0, 1)]
    assert {1: 11} == scene.machine.leading


@pytest.mark.parametrize(
    ("problem", "told"),
    {
        "T=10 must be greater than session=10, or a leader that is cut off ends before the broker gives its "
        "partitions to another: raise threshold above 10 or lower session to under 10": {"threshold": 10.0},
        "beat=11 (with groups=1) must be above 0 and at most a third of T=30, or one lost message would look "
        "like a lost partition: lower beat to 10 or raise threshold to 33": {"threshold": 30.0, "beat": 11.0},
        "T=9.5 plus e=0.5 must be less than session=10, or a member can lead a partition that the broker gave "
        "to another: lower threshold to under 9.5 or raise session above 10": {
            "guarantee": "exclusive",
            "threshold": 9.5,
            "clock_error": 0.5,
        },
    }.items(),
    ids=["greater than the session", "room for a lost message", "exclusive, with e less than the session"],
)
def test_threshold_that_breaks_the_promise_is_refused(told: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        neli_settings(**told)
    assert (problem,) == caught.value.problems


def advice(**told: object) -> list[object]:
    """The advice that a member with these settings logs in its first step."""
    scene = NeliScene(neli_settings(**{"threshold": 30.0, "session": 6.0, **told}))
    assert [] == scene.step(0.0)
    found = [notice.fields["found"] for notice in scene.advice]
    scene.step(1.0)
    assert len(found) == len(scene.advice), "advice comes once"
    return found


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"session": 0.5}, "sessions this short were seen to flap"),
        ({"session": 5.0}, "brokers refuse so short a session by default"),
        ({"session": 10.0}, "a member that dies is missed for a session"),
        ({"groups": 2}, "the topic is shared"),
    ],
    ids=str,
)
def test_advice_is_a_warning_and_no_error(told: dict[str, object], found: str) -> None:
    assert found in advice(**told)
    assert [] == advice()


# Topic reuse for independent role-process assignments


def test_reuse_of_a_topic_divides_the_frequency_and_the_default_one_as_far_as_t_allows() -> None:
    assert [1.0, 2.0] == [neli_settings(threshold=30.0, beat=1.0, groups=n).beat_every for n in (1, 2)]
    assert [5.0, 10.0, 10.0] == [neli_settings(threshold=30.0, beat=None, groups=n).beat_every for n in (1, 2, 9)]


def test_reuse_that_leaves_too_few_messages_is_refused() -> None:
    """The other groups may all stop, and then the group's own messages must be enough."""
    with pytest.raises(
        ConfigError, match=r"beat=12 \(with groups=12\) must be .* a third of T=30.*: lower beat to 0\."
    ):
        neli_settings(threshold=30.0, beat=1.0, groups=12)


def test_reuse_counts_messages_of_any_member_and_group_with_any_content() -> None:
    scene = available_leader(1)
    scene.message(20.0, 1, body=b"of another group")
    assert [1] == scene.leads(49.0)


# Exclusivity of role assignment


def test_exclusive_counts_from_the_brokers_time_brought_to_this_hosts_clock_and_never_from_later_than_receipt() -> None:
    scene = exclusive()
    scene.given(0.0, 1)
    scene.message(10.0, 1, age=1.5)
    assert 8.5 == scene.machine.vector[1]
    assert ([1], []) == (scene.leads(12.4), scene.leads(12.5))
    scene.message(11.0, 1, age=-0.5)  # The broker's clock is ahead by no more than e.
    assert 11.0 == scene.machine.vector[1]


def test_exclusive_counts_nothing_while_the_clocks_are_further_apart_than_e() -> None:
    """A message cannot be more than e from the future: the bound e does not hold, and so neither does any promise."""
    scene = exclusive()
    scene.given(0.0, 1)
    (notice,) = scene.message(10.0, 1, age=-0.75)
    assert (
        Notice(
            "neli.clocks_apart", {"apart": 0.75, "clock_error": 0.5, "remedy": "keep the clocks of all hosts in step"}
        )
        == notice
    )
    assert [] == scene.message(11.0, 1, age=-0.75)  # Reported once per session.
    assert [] == scene.leads(11.0)


def test_exclusive_needs_a_topic_with_the_brokers_times() -> None:
    scene = exclusive()
    scene.given(0.0, 1)
    (end,) = scene.message(1.0, 1, age=None)
    assert isinstance(end, Stopped)
    assert isinstance(end.error, ConfigError)
    assert "set message.timestamp.type=LogAppendTime on the topic" in str(end.error)


def test_exclusive_new_leader_waits_for_a_grace_of_t_and_e() -> None:
    """The broker may give a partition away before the session is over, without notifying the old leader."""
    scene = exclusive()
    scene.given(0.0, 1)
    assert [] == scene.message(4.0, 1)
    assert [] == scene.step(4.4)
    assert [] == scene.leads(4.4)
    assert [Acquired({1: 10})] == scene.step(4.5)


# Terms


def test_a_term_is_above_term_base_by_the_offset_of_the_message_that_began_it() -> None:
    """The group's earlier terms were at most 1000."""
    for offset, term in ((0, 1001), (9, 1010)):
        scene = NeliScene(neli_settings(term_base=1000))
        scene.given(0.0, 1)
        assert [Acquired({1: term})] == scene.message(1.0, 1, offset=offset)
        scene.message(2.0, 1)
        assert {1: term} == scene.machine.tenures(2.0)


def unconfirmed() -> NeliScene:
    """It was given partition 1 at 0, heard it at 1, and asked the group, which has not answered."""
    scene = NeliScene(AVAILABLE, confirms=False)
    scene.given(0.0, 1)
    assert [] == scene.message(1.0, 1)
    return scene


def test_nothing_is_led_before_the_group_has_confirmed_what_the_message_said_and_a_lost_question_is_repeated() -> None:
    """A consumer that the group has forgotten may still fetch. Each beat asks again."""
    scene = unconfirmed()
    scene.message(1.5, 1)
    assert ([{1: 9}], []) == (scene.asked, scene.leads(1.5))
    scene.step(1.75, BrokerBack())  # The next broadcast is due at 2.75.
    assert 2.0 == scene.machine.deadline
    scene.step(2.0)
    assert [{1: 9}] * 2 == scene.asked
    assert [Acquired({1: 10})] == scene.confirmed(2.5)


def test_a_question_whose_message_is_too_old_is_not_asked_again_and_its_answer_begins_nothing() -> None:
    scene = unconfirmed()
    scene.step(30.0)
    questions = len(scene.asked)
    scene.step(31.0)
    scene.step(40.0)
    assert questions == len(scene.asked)
    assert [] == scene.confirmed(41.0)
    scene.message(42.0, 1)
    assert [Acquired({1: 11})] == scene.confirmed(42.0)


def test_an_answer_that_comes_after_a_loss_begins_nothing() -> None:
    """Otherwise a zombie would begin after its successor has begun, and both would have the same term."""
    scene = unconfirmed()
    scene.lost(2.0, 1)
    assert [] == scene.confirmed(2.5)
    scene.given(3.0, 1)
    scene.message(4.0, 1)
    assert [] == scene.step(4.5, Confirmed({1: 9}))  # The answer to the older question.
    assert [Acquired({1: 11})] == scene.confirmed(5.0)


def test_a_partition_that_was_away_and_came_back_has_a_new_term() -> None:
    """Another member may have had it meanwhile, under a term above the old one."""
    scene = available_leader(1)
    scene.asked_back(2.0, 1)
    scene.given(3.0, 1)
    assert {1: 10} == scene.machine.tenures(3.0)
    assert [Acquired({1: 11})] == scene.message(4.0, 1)


def test_an_offset_that_is_not_above_the_last_ends_the_member() -> None:
    """The topic was recreated, or lost messages: terms would fall."""
    scene = NeliScene(neli_settings(term_base=1000))
    scene.given(0.0, 1)
    scene.message(1.0, 1)
    loss, end = scene.message(2.0, 1, offset=3)
    assert [1] == fenced([loss])
    assert isinstance(end, Stopped)
    assert isinstance(end.error, LedgerRewound)
    assert "start all members of the group with a term_base of at least 1010" == end.error.remedy


# Giving back


def test_available_gives_back_at_once_and_leads_on_until_t_has_passed() -> None:
    """The old one leads until the new one begins; then it gets Revoked, because it gave the partition back in order."""
    scene = available_leader(1)
    assert [GiveBack([1])] == scene.asked_back(2.0, 1)
    assert [1] == scene.leads(30.9)
    assert [Revoked({1: 10})] == scene.step(31.0)


def test_available_leads_on_when_the_broker_took_a_partition_and_is_fenced_when_t_has_passed() -> None:
    scene = available_leader(1)
    assert [] == scene.lost(2.0, 1)
    assert [1] == fenced(scene.step(31.0))


def test_what_is_not_led_is_given_back_or_left_at_once() -> None:
    """The partition was in its grace, or not even known: the broker waits for an answer all the same."""
    scene, closing = exclusive(), exclusive()
    for one in (scene, closing):
        one.given(0.0, 1)
        one.message(4.0, 1)
    assert [GiveBack([3]), GiveBack([1])] == scene.asked_back(4.25, 1, 3)
    assert [LeaveGroup(), Stopped(None)] == closing.step(4.25, Close())
    assert [] == closing.leads(4.5)


# The end


def test_available_member_that_closes_leaves_at_once_and_leads_on_until_t_has_passed() -> None:
    scene = available_leader(1)
    assert [LeaveGroup()] == scene.step(2.0, Close())
    assert 31.0 == scene.machine.deadline
    assert [Revoked({1: 10}), Stopped(None)] == scene.step(31.0)


def test_an_outage_says_why_a_leader_ended_and_its_end_is_followed_by_a_broadcast() -> None:
    scene = exclusive_leader(1)
    scene.step(5.0, BrokerAway())
    (loss,) = scene.step(8.0)
    assert isinstance(loss, Fenced)
    assert loss.reason.endswith("while the broker could not be reached")
    before = len(scene.published)
    scene.step(8.25, BrokerBack())
    assert before + 1 == len(scene.published)
    scene.message(9.0, 1)
    assert ([1], False) == (scene.leads(9.0), "could not be reached" in str(scene.step(20.0)))


def test_settings_name_all_their_problems_at_once_after_those_that_leave_nothing_to_be_said() -> None:
    with pytest.raises(ConfigError) as caught:
        NeliSettings(name="", layout=Layout(), term_base=-1, drain_timeout=-1.0)
    assert 3 == len(caught.value.problems)
    for told, wanted in (({"guarantee": "both"}, "choose"), ({"groups": 0}, "at least 1")):
        with pytest.raises(ConfigError, match=wanted):
            neli_settings(**told)


def test_settings_without_times_are_sound_under_both_guarantees() -> None:
    """T is two sessions, or half a session."""
    times = [NeliSettings(name="a", layout=LAYOUT, guarantee=guarantee) for guarantee in ("available", "exclusive")]
    assert [12.0, 3.0] == [settings.t for settings in times]
