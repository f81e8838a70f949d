"""The explorer of borrowed groups: its twins, its calm, and the rule on what programs believe."""

from collections.abc import Iterator

import pytest

from neli_router.belief import Belief
from neli_router.sim.consumers.miniature import ConsumerBounds, ConsumerMiniature, broken_consumer_rule, twin
from neli_router.sim.consumers.options import BorrowedProtocol
from neli_router.sim.consumers.steps import ConsumerMiniatures, next_in_calm

KINDS = {
    "exclusive": ConsumerBounds("neli"),
    "available": ConsumerBounds("neli", guarantee="available"),
    "fast": ConsumerBounds("fast-neli"),
    "zombies": ConsumerBounds("fast-neli", zombies=True),
    "two partitions": ConsumerBounds("neli", partitions=2, apart=2),
}


def in_calm(bounds: ConsumerBounds) -> Iterator[ConsumerMiniature]:
    """The first world, and what follows on it as long as nothing fails."""
    world: ConsumerMiniature | None = ConsumerMiniatures(bounds).first()
    while world is not None:
        yield world
        world = next_in_calm(world, bounds)


@pytest.mark.parametrize("protocol", ["neli", "fast-neli"])
def test_a_twin_shares_nothing_that_changes(protocol: BorrowedProtocol) -> None:
    machine = ConsumerBounds(protocol).machine("m0", 0, 0)
    other = twin(machine)
    for one, two in ((machine, other), (machine._belief, other._belief)):
        for name, value in vars(one).items():
            changes = isinstance(value, dict | list | set | Belief)
            assert changes != (vars(two)[name] is value), name


@pytest.mark.parametrize("bounds", KINDS.values(), ids=KINDS)
def test_a_group_in_calm_settles_and_a_program_that_believes_more_than_its_machine_breaks_a_rule(
    bounds: ConsumerBounds,
) -> None:
    *_, world = in_calm(bounds)
    partitions = range(bounds.partitions)
    assert all(1 == sum(place.acts[partition] is not None for place in world.places) for partition in partitions)
    assert broken_consumer_rule(world, bounds) is None
    idle = tuple(place._replace(acts=(None,) * bounds.partitions) for place in world.places)
    broken = broken_consumer_rule(world._replace(places=idle), bounds)
    assert broken is not None
    assert broken.startswith("belief is within tenure: the program of m")
