"""Who stands first: after a wait that is drawn, or by priority, so that leaders are spread over the peers.

    election time-out --> priority >= target? --yes--> stand
            ^                     | no
            '--- a beat later ----'  target -= 1

*At random*, as BlazingMQ has it, nobody can tell who leads which partition; often one peer leads most. *By priority*,
as Zeebe proposes, each partition has a primary, a secondary and so on: each peer has a priority for it, from 1 to the
number of replicas. A peer whose election time-out ends stands only if its priority has reached the target. Else it
waits for another time-out and lowers its own target by 1. After a failed round the target is the first one again.

What Zeebe's text leaves open, and what is done here:

- *A secondary that waits in vain for a dead primary.* The target is the best priority among all but the leader that was
  lost. So the secondary stands as soon as it misses the primary.
- *Later rounds that are as long as the first.* The first time-out is three missed heartbeats; the next are one beat.
- *All stand together for ever.* Each time-out has a random part, and a scout says yes only to who stands above it.
- *A primary that returns* is given its leadership by the leader: see `preferred` in `term.py`.
- *Priorities by hand.* `preferences.py` has those that a user gives. A host under load sheds partitions: its priority
  for them is LEAST, so it passes them to any other that lives, also at random. The target looks at the assigned ones,
  for nobody can know what another was told since. A peer that lowers its own stands later. Nobody waits for it for
  ever, because the target falls.

`assign` is the text's rule. Replicas of a partition are its primary and those that follow it in the list of peers. The
text numbers partitions from 1, as its formula does. We count from 0, so its (partition - 1) is our partition.

Nothing here remembers anything: a policy is a value, and the elector keeps the target.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from neli_router.protocols.electors.settings import TermSettings

__all__ = ["DECAY", "LEAST", "Priorities", "RandomWait", "assign", "balanced", "electorate"]

DECAY = 1
"""The text's priorityDecay. More would let two peers of neighbouring priorities stand together."""

LEAST = -1
"""Below all that a policy assigns: a peer that shed a partition leads it only while no other can."""

JITTER_BEATS = 0.5
"""The random part of a time-out, in beats. More costs time in every takeover; much less, and peers of equal priority
would stand within one trip of a datagram from each other."""


@dataclass(frozen=True, slots=True)
class RandomWait:
    """Whoever draws the shortest wait stands first."""

    longest: float

    @property
    def priority(self) -> int:
        return 0  # All are alike: a scout then compares nothing but ids.

    def target(self, lost: int | None) -> int:
        return 0

    def patience(self, rng: Random) -> float:
        return rng.uniform(0.0, self.longest)


@dataclass(frozen=True, slots=True)
class Priorities:
    """The peer with the best priority stands first. `row` has each peer's, and 0 for one that is no replica."""

    row: tuple[int, ...]
    me: int
    jitter: float

    @property
    def priority(self) -> int:
        return self.row[self.me]

    def target(self, lost: int | None) -> int:
        """From which priority a peer may stand, when the leader `lost` was missed."""
        return max((priority for peer, priority in enumerate(self.row) if peer != lost), default=0)

    def patience(self, rng: Random) -> float:
        return rng.uniform(0.0, self.jitter)


def electorate(settings: TermSettings, partition: int) -> tuple[tuple[int, ...], RandomWait | Priorities]:
    """Who elects the leader of `partition`, and by which policy."""
    if settings.policy == "random":
        return tuple(range(settings.size)), RandomWait(settings.longest_wait)
    if settings.priorities is None:
        row = assign(partition, settings.size, settings.replicas or settings.size)
    else:
        row = settings.priorities[partition]
    replicas = tuple(peer for peer, priority in enumerate(row) if priority > 0)
    return replicas, Priorities(row, settings.me, JITTER_BEATS * settings.beat)


def assign(partition: int, size: int, factor: int) -> tuple[int, ...]:
    """Each peer's priority for `partition`, which is counted from 0; 0 for a peer that is no replica of it."""
    primary = partition % size
    members = {(primary + i) % size for i in range(1, factor)}
    # Those behind the primary in the list come first, and then those before it, the nearest first. The text names the
    # order only for some partitions. Its table of partitions 3 and 6 comes out in this one, and not in plain rotation.
    others = [*sorted(i for i in members if i > primary), *sorted((i for i in members if i < primary), reverse=True)]
    best_first = partition // size % 2 == 0
    # Else one peer would be the secondary wherever another is the primary, and inherit all of its partitions.
    priorities = range(factor - 1, 0, -1) if best_first else range(1, factor)
    row = [0] * size
    row[primary] = factor
    for member, priority in zip(others, priorities, strict=True):
        row[member] = priority
    return tuple(row)


def balanced(leaders: Sequence[int | None], nodes: int) -> bool:
    """The text's measure: no node leads more than ceil(partitions / nodes). `leaders` has one for each partition."""
    if None in leaders:
        return False  # Else a group that leads nothing would do best.
    most = -(-len(leaders) // nodes)
    return max(Counter(leaders).values(), default=0) <= most
