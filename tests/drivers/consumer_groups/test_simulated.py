"""The simulated group behind the port: checks that the contract cannot apply to all drivers."""

from contextlib import closing

from neli_router.protocols.consumer_group.events import Confirmed, Lost
from tests.drivers.consumer_groups.simulated import SimulatedGroup
from tests.support.taking import Taking, until

ALL = {0, 1, 2, 3}
SESSION = 6.0


def test_a_pause_longer_than_the_session_loses_everything() -> None:
    """See `test_kafka.py`: a question that was asked after the pause has no answer before the loss."""
    group = SimulatedGroup("cooperative", partitions=4, session=SESSION, patience=60.0, deaf=True, sparse=False)
    with closing(group.join()) as subscription, closing(group.join()) as heir:
        paused, other = Taking(subscription), Taking(heir)
        until(lambda: paused.has and other.has and paused.has | other.has == ALL, paused, other)
        had = set(paused.has)
        subscription.freeze(2 * SESSION)
        until(lambda: other.has == ALL, other)
        subscription.wait(2 * SESSION)
        subscription.confirm(dict.fromkeys(had, 0))
        until(lambda: paused.of(Lost), paused, other)
        assert had == set(paused.of(Lost)[0].partitions)
        assert [] == paused.of(Confirmed)
