"""The order in which peers stand: after a random wait, or by priority, so that leaders are spread over the peers.

    election time-out --> priority >= target? --yes--> stand
            ^                     | no
            '--- a beat later ----'  target -= 1

*At random*, as in BlazingMQ, it is unpredictable which peer leads which partition; often one peer leads most of them.
*By priority*, as Zeebe proposes, each partition has a primary, a secondary and so on: each peer has a priority for it,
from 1 to the number of replicas. A peer whose election time-out ends stands only if its priority has reached the
target. Otherwise it waits for another time-out and lowers its own target by 1. A failed round resets the target.

Zeebe's text leaves some cases open. This is what we do:

- *A secondary that waits for a dead primary.* The target is the best priority among all peers except the lost leader.
  So the secondary stands as soon as it misses the primary.
- *Later rounds as long as the first.* The first time-out is three missed heartbeats; the next ones are one beat each.
- *All stand together forever.* Each time-out has a random part, and a scout says yes only to a peer that stands above
  it.
- *A primary that returns.* The leader hands leadership back to it: see `preferred` in `term/elector.py`.
- *A host under load sheds partitions.* Its priority for them is LEAST, so it passes them to any other living peer,
  under the random policy, too. The target uses the assigned priorities, because no peer can know what another one was
  set to since. A peer that lowers its own priority stands later. No peer waits forever, because the target falls.

`assign` is the text's rule. The replicas of a partition are its primary and the peers that follow it in the list. The
text and its formula number partitions from 1. We count from 0, so its (partition - 1) is our partition.

Nothing here has state: a policy is a value, and the elector keeps the target.
"""

from dataclasses import dataclass
from random import Random

from neli_router.protocols.electors.settings import TermSettings

__all__ = ["DECAY", "JITTER_BEATS", "LEAST", "Priorities", "RandomWait", "assign", "electorate"]

DECAY = 1
"""The text's priorityDecay. A larger one would let two peers of neighbouring priorities stand together."""

LEAST = -1
"""Below every priority that a policy assigns: a peer that shed a partition leads it only while no other can."""

JITTER_BEATS = 0.5
"""The random part of a time-out, in beats. A larger one costs time in every takeover. With a much smaller one, peers of
equal priority would stand within one trip of a datagram from each other."""


@dataclass(frozen=True, slots=True)
class RandomWait:
    """The peer that draws the shortest wait stands first."""

    longest: float

    @property
    def priority(self) -> int:
        return 0  # All are equal: a scout then compares only ids.

    def target(self, lost: int | None) -> int:
        return 0

    def patience(self, rng: Random) -> float:
        return rng.uniform(0.0, self.longest)


@dataclass(frozen=True, slots=True)
class Priorities:
    """The peer with the best priority stands first. `row` has each peer's priority, and 0 if it is not a replica."""

    row: tuple[int, ...]
    me: int
    jitter: float

    @property
    def priority(self) -> int:
        return self.row[self.me]

    def target(self, lost: int | None) -> int:
        """The lowest priority with which a peer may stand, after the leader `lost` was missed."""
        return max((priority for peer, priority in enumerate(self.row) if peer != lost), default=0)

    def patience(self, rng: Random) -> float:
        return rng.uniform(0.0, self.jitter)


def electorate(settings: TermSettings, partition: int) -> tuple[tuple[int, ...], RandomWait | Priorities]:
    """The peers that elect the leader of `partition`, and their policy."""
    if settings.policy == "random":
        return tuple(range(settings.size)), RandomWait(settings.longest_wait)
    row = assign(partition, settings.size, settings.voters)
    replicas = tuple(peer for peer, priority in enumerate(row) if priority > 0)
    return replicas, Priorities(row, settings.me, JITTER_BEATS * settings.beat)


def assign(partition: int, size: int, factor: int) -> tuple[int, ...]:
    """Each peer's priority for `partition`, counted from 0; 0 for a peer that is not a replica of it."""
    primary = partition % size
    members = {(primary + i) % size for i in range(1, factor)}
    # The peers behind the primary in the list come first, then those before it, the nearest first. The text gives the
    # order only for some partitions. This order yields its table of partitions 3 and 6; plain rotation does not.
    others = [*sorted(i for i in members if i > primary), *sorted((i for i in members if i < primary), reverse=True)]
    best_first = partition // size % 2 == 0
    # Otherwise one peer would be the secondary wherever another is the primary, and inherit all of its partitions.
    priorities = range(factor - 1, 0, -1) if best_first else range(1, factor)
    row = [0] * size
    row[primary] = factor
    for member, priority in zip(others, priorities, strict=True):
        row[member] = priority
    return tuple(row)
