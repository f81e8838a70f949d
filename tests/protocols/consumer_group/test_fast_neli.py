"""Fast NELI: the behaviour that goNELI documents, without the faults in its source, and its settings.

| documented by goNELI | rules of `rules/fast_neli.txt` that begin with |
| --- | --- |
| Barrier: LeaderAcquired, LeaderRevoked, LeaderFenced | acquired, fenced, contract |
| "again receive a heartbeat, allowing it to resume the leader role" | resumes |
| the owner publishes heartbeats, others do not; the heartbeat's form | heartbeats |
| Pulse answers immediately if it leads; only fatal errors leave it | contract has the machine's half |
| Background runs a task while its member leads | like Pulse: the calls are the member's |
| Close, and Await of the end | contract |
| Configuration: names and defaults | `test_settings_` here |

The rules that begin with `fault` show faults in goNELI's source that this machine does not have.
"""

import pytest

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.protocols.consumer_group.events import Given
from neli_router.protocols.consumer_group.fast_neli import HEARTBEATS_MAX, FastNeliMachine
from neli_router.protocols.consumer_group.settings import FastNeliSettings
from neli_router.protocols.protocol import TICK
from tests.protocols.consumer_group.stage import LAYOUT, STARTS, begun


def test_heartbeats_that_are_remembered_have_a_bound() -> None:
    machine = begun("fast-neli")
    assert isinstance(machine, FastNeliMachine)
    machine.step(Given([1]), 0.0)
    for number in range(HEARTBEATS_MAX + 10):
        machine.step(TICK, 0.25 + number / 4)
    assert HEARTBEATS_MAX == len(machine._sent)


def test_settings_have_gonelis_names_and_defaults() -> None:
    settings = FastNeliSettings(name="a", **STARTS["goneli"])
    assert (0.1, 5.0, 15.0) == (settings.min_poll_interval, settings.heartbeat_timeout, settings.session_timeout)


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
