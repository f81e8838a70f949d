"""The rules of the NELI paper ("Non-exclusive leader induction in highly available systems"), and its settings.

| section of the paper | rule | where |
| --- | --- | --- |
| Protocol definition | messages without key and value to all M, continually | `rules/neli.txt`: broadcast |
| Protocol definition | none dries up; one leads always; two overlap under `available` | `sim/test_consumer_scenes.py` |
| Protocol definition | V, of size M, of receipt times; M never changes | `rules/neli.txt`: vector, contract |
| Protocol definition | leader of M_i while V_i is newer than now - T | `rules/neli.txt`: leader |
| Protocol definition | role j is filled by partition j mod size(M); roles come and go | `core/test_keyspace.py` |
| Protocol definition | T is greater than the session timeout | `test_threshold_` |
| Protocol definition, guidelines | sessions; sharing a topic | `test_advice_` |
| Topic reuse | groups that share a topic divide their frequency | `test_reuse_` |
| Topic reuse | the messages of other groups count | `rules/neli.txt`: reuse |
| Exclusivity of role assignment | broker times, T + e, grace | `rules/neli.txt`: exclusive |
| Exclusivity of role assignment | the steps 1 to 5 | `sim/test_consumer_scenes.py` |

`rules/neli.txt` also has this project's own rules: terms, the group's confirmation, giving back, the end.
"""

from typing import Any

import pytest

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.protocols.consumer_group.settings import NeliSettings
from neli_router.protocols.protocol import TICK, Notice
from tests.protocols.consumer_group.stage import LAYOUT, begun, neli_settings


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
        # The other groups may all stop, and then the group's own messages must be enough.
        "beat=12 (with groups=12) must be above 0 and at most a third of T=30, or one lost message would look "
        "like a lost partition: lower beat to 0.833333 or raise threshold to 36": {"threshold": 30.0, "groups": 12},
    }.items(),
    ids=["greater than the session", "room for a lost message", "exclusive, with e less than the session", "reuse"],
)
def test_threshold_that_breaks_the_promise_is_refused(told: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        neli_settings(**told)
    assert (problem,) == caught.value.problems


def advice(**told: Any) -> list[object]:
    """The advice that a member with these settings logs in its first step, and never again."""
    machine = begun("neli", **{"session": 6.0, **told})
    effects = machine.step(TICK, 0.0)
    assert "group.advice" not in str(machine.step(TICK, 1.0))
    return [one.fields["found"] for one in effects if isinstance(one, Notice)]


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
def test_advice_is_a_warning_and_no_error(told: dict[str, Any], found: str) -> None:
    assert found in advice(**told)
    assert [] == advice()


def test_reuse_of_a_topic_divides_the_frequency_and_the_default_one_as_far_as_t_allows() -> None:
    assert [1.0, 2.0] == [neli_settings(threshold=30.0, beat=1.0, groups=n).beat_every for n in (1, 2)]
    assert [5.0, 10.0, 10.0] == [neli_settings(threshold=30.0, beat=None, groups=n).beat_every for n in (1, 2, 9)]


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
