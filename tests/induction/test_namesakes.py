"""Two processes of one name: the newer wins, and the older does not come back to fight. A newcomer that hears the older
gives up, unless it was told to take its name.

older  joins --stopped------------------------------- goes on: reads its own Expire, then the newer one's Join
newer                    joins under the older's name
somebody         expires the older
"""

from collections.abc import Sequence
from math import inf
from random import Random

import pytest
from msgspec import structs

from neli_router.errors import NameTaken, Replaced
from neli_router.induction.events import Append, Effect, Read, Restart
from neli_router.induction.fold import State
from neli_router.induction.machine import Induction, Phase
from neli_router.induction.records import Leave, Record
from neli_router.keyspace import Layout
from neli_router.protocol import Notice, Settings, Stopped
from tests.support.records import beat, expire, folded, join

SETTINGS = Settings(name="twin", address="host:1", lease=1.0, layout=Layout(partitions=4))


def read(machine: Induction, now: float, records: Sequence[Record] = ()) -> list[Effect]:
    """Let `machine` read `records`, which stand where it has read to."""
    entries = list(enumerate(records, start=machine.state.at))
    return machine.step(Read(entries, inf if entries else 0.0), now)


def appended(effects: Sequence[Effect]) -> list[Record]:
    return [record for effect in effects if isinstance(effect, Append) for record in effect.records]


def member() -> Induction:
    """A member that founded its group, in which there is another one by now."""
    machine = Induction(SETTINGS, State(), 0.0, base=0, rng=Random(1))
    written = appended(read(machine, 0.0))
    while machine.phase is not Phase.MEMBER:
        written = appended(read(machine, 0.0, written))
    read(machine, 0.0, [*written, join("other", at=machine.state.at)])
    return machine


def expiry(machine: Induction) -> Record:
    return expire("other", machine.incarnation, machine.state.last_beats[machine.incarnation])


def kinds(effects: Sequence[Effect]) -> list[str]:
    return [type(record).__name__ for record in appended(effects)]


def successor(at: int, *, name: str = "twin") -> Record:
    return join("newer", name, address="host:2", at=at)


def assert_replaced(machine: Induction, effects: Sequence[Effect]) -> None:
    (stopped,) = (effect for effect in effects if isinstance(effect, Stopped))
    assert isinstance(stopped.error, Replaced)
    assert "from host:2" in str(stopped.error)
    assert [] == appended(effects)
    assert [] == [effect for now in (11.0, 12.0, 20.0) for effect in read(machine, now)]


def test_one_that_wakes_up_expired_and_succeeded_ends() -> None:
    machine = member()
    assert_replaced(machine, read(machine, 10.0, [expiry(machine), successor(machine.state.at + 1)]))


def test_one_that_was_about_to_return_when_its_successor_came_ends() -> None:
    machine = member()
    read(machine, 10.0, [expiry(machine)])
    read(machine, 11.5)
    assert Phase.JOINING is machine.phase
    assert_replaced(machine, read(machine, 11.6, [successor(machine.state.at)]))


def test_one_that_is_told_by_a_snapshot_ends() -> None:
    machine = member()
    state = folded(expiry(machine), successor(machine.state.at + 1), state=machine.state)
    assert_replaced(machine, machine.step(Restart(state), 10.0))


@pytest.mark.parametrize("records", [1, 2])
def test_one_that_was_merely_expired_returns(records: int) -> None:
    machine = member()
    read(machine, 10.0, [expiry(machine), successor(machine.state.at + 1, name="stranger")][:records])
    assert ["Join"] == kinds(read(machine, 11.5))


def test_one_that_never_had_the_name_takes_it_from_the_member_that_has() -> None:
    older = member()
    newer = newcomer(older)
    read(newer, 0.5, [expiry(older), successor(older.state.at + 1)])
    read(newer, 1.6, appended(read(newer, 1.5)))
    assert (Phase.MEMBER, None) == (newer.phase, newer.error)


# A newcomer that has the name of a member


def newcomer(older: Induction, *, replace: bool = False) -> Induction:
    """One that was started just now, has read all there is, and waits."""
    machine = Induction(structs.replace(SETTINGS, replace=replace), older.state, 0.0, base=0, rng=Random(2))
    read(machine, 0.0)
    assert Phase.WAITING is machine.phase
    return machine


def pair(*, beats: int, replace: bool = False) -> tuple[Induction, Induction]:
    """A member and a newcomer, which reads Beats of the older one, who had read as much as it has."""
    older = member()
    newer = newcomer(older, replace=replace)
    for number in range(beats):
        read(newer, 0.2 * (number + 1), [beat(older.incarnation, newer.state)])
    return older, newer


def test_one_that_hears_a_living_member_of_its_name_gives_up_and_says_where_that_is() -> None:
    _, newer = pair(beats=3)  # The first may have been in flight when the newcomer started.
    effects = read(newer, 1.5)
    (stopped,) = (effect for effect in effects if isinstance(effect, Stopped))
    assert isinstance(stopped.error, NameTaken)
    assert "the name 'twin' was wanted for this member, but a member that lives has it, at host:1" in str(stopped.error)
    assert [] == appended(effects)


def test_one_that_follows_a_dead_process_takes_its_place_whatever_is_still_on_the_way() -> None:
    """Of a supervisor that starts it again at once: the Beats of the dead one come while its successor waits."""
    older = member()
    newer = newcomer(older)
    start = newer.state
    for number in range(5):
        read(newer, 0.1 * number, [beat(older.incarnation, start)])
    assert ["Join"] == kinds(read(newer, 1.5))


def test_one_beat_proves_too_little_because_its_writer_may_be_ending() -> None:
    _, newer = pair(beats=2)
    assert ["Join"] == kinds(read(newer, 1.5))


def test_one_that_is_told_to_takes_the_name_and_says_so() -> None:
    older, newer = pair(beats=3, replace=True)
    effects = read(newer, 1.5)
    fields = {"name": "twin", "address": "host:1", "incarnation": older.incarnation}
    assert Notice("member.replaces", fields) in effects
    assert ["Join"] == kinds(effects)


def test_one_that_hears_its_namesake_leave_takes_its_place() -> None:
    older, newer = pair(beats=3)
    read(newer, 0.9, [Leave(by=older.incarnation)])
    effects = read(newer, 1.5)
    assert ["Join"] == kinds(effects)
    assert [] == [effect for effect in effects if isinstance(effect, Notice)]
