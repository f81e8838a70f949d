"""Lines in a ledger that no member wrote: real members on a real ledger go on, and none acts for longer than it may.

One group of three lives through all of it: each test writes its lines, and looks at the members once they have read
them. A member that ended, or that changed its incarnation, was stopped or expired by a line.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from neli_router import config as configuration
from neli_router.clock import host_clock
from neli_router.config import Config
from neli_router.induction.digest import difference
from neli_router.induction.fold import State
from neli_router.induction.records import Beat, Drain, Join, Record, encode
from neli_router.induction.snapshots import digest_text, snapshot
from neli_router.keyspace import Layout
from neli_router.member.member import Member
from tests.support.waiting import until

LEASE = 5.0
"""Long enough for a busy machine: here, a member that is expired was expired by a line."""

NAMES = ("a", "b", "c")


@dataclass
class Attacked:
    """A group of three members, and the hand of one who may write to its ledger."""

    config: Config
    members: list[Member] = field(default_factory=list)

    def join(self, name: str) -> Member:
        member = Member(dataclasses.replace(self.config, name=name))
        self.members.append(member)
        return member

    @property
    def state(self) -> State:
        return self.members[0].state

    def write(self, lines: Sequence[Record | bytes]) -> None:
        """Append `lines`, and wait until every member has read them."""
        ledger = configuration.open(self.config)
        try:
            ledger.append([line if isinstance(line, bytes) else encode(line) for line in lines])
            tip = ledger.tip()
        finally:
            ledger.close()
        until(lambda: all(member.closed or member.state.at >= tip for member in self.members))

    def incarnations(self) -> list[str]:
        return [member.incarnation for member in self.members]

    def forged(self, **fields: object) -> list[Record | bytes]:
        """A Beat in the name of each member, as it would write one but for `fields`."""
        state = self.state
        honest = Beat(by="", sent_at=host_clock(), at=state.at, digest=digest_text(state.digest))
        return [replace(honest, **{"by": by, **fields}) for by in self.incarnations()]


@pytest.fixture(name="group", scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    file = tmp_path_factory.mktemp("forged") / "ledger.db"
    attacked = Attacked(Config(f"sqlite://{file}", lease=LEASE, beat=0.25, layout=Layout(slots=64, partitions=8)))
    for name in NAMES:
        attacked.join(name)
    until(lambda: len(attacked.state.seats) == len(NAMES) and attacked.state.owners == attacked.state.targets)
    yield attacked
    for member in attacked.members:
        member.close()


def nobody(at: int) -> list[Record | bytes]:
    """The lines of strangers that once stopped every member, and every restart."""
    return [Beat(by="nobody", sent_at=0.0, at=at + 10**9, digest="f" * 16)]


def genesis(state: State) -> Record:
    assert state.genesis is not None
    return replace(state.genesis, by="nobody", at=10**9)


LINES: dict[str, Callable[[Attacked], Sequence[Record | bytes]]] = {
    "a beat by nobody that had read further": lambda group: nobody(group.state.at),
    "a genesis by nobody that had read further": lambda group: [genesis(group.state)],
    "a beat by nobody with another digest": lambda group: [
        Beat(by="nobody", sent_at=0.0, at=group.state.at, digest="f" * 16)
    ],
    "a beat in each name that had read further": lambda group: group.forged(at=10**12),
    "a beat in each name with another digest": lambda group: group.forged(digest="f" * 16),
    "a beat in each name from the future": lambda group: group.forged(sent_at=host_clock() + 99_999.0),
    "2,000 drains of nobody": lambda group: [Drain(by="op", name=f"nobody {i}") for i in range(2000)],
    "5,000 lines of a kilobyte that are no records": lambda group: [b"x" * 1024] * 5000,
    "a name that is a command": lambda group: [encode(Drain(by="op", name="x")).replace(b'"x"', b'"\\u001b[2J"')],
}


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_a_line_that_no_member_wrote_stops_nobody_and_lengthens_no_lease(
    group: Attacked, lines: Callable[[Attacked], Sequence[Record | bytes]]
) -> None:
    before, owners, terms = group.incarnations(), group.state.owners, group.state.terms
    group.write(lines(group))
    read_to = group.state.at
    # Two Beats of each later, all has had its effect: a look at the evidence is done within one.
    until(lambda: all(at > read_to + 2 * len(NAMES) for at in group.state.last_beats.values()))
    assert [None] * len(NAMES) == [member.error for member in group.members]
    assert (before, owners, terms) == (group.incarnations(), group.state.owners, group.state.terms)
    now = host_clock()
    assert all(member.standing.until <= now + LEASE for member in group.members)
    led = [partition for member in group.members for partition in member.led]
    assert len(led) == len(set(led))


def test_joins_of_nobody_stop_nobody_nor_one_that_starts_after_all_of_it(group: Attacked) -> None:
    """What the phantoms are given, they lose when nothing was heard of them for a lease."""
    before = group.incarnations()
    at = group.state.at
    group.write([Join(by=f"phantom {i}", name=f"nobody {i}", versions=(1, 1), at=at) for i in range(300)])
    assert (before, [None] * 3) == (group.incarnations(), [member.error for member in group.members])
    late = group.join("late")  # It reads all of it before this returns, and would raise what stops it.
    until(lambda: late.state.at >= group.state.at)
    assert [None] * 4 == [member.error for member in group.members]


def test_a_newcomer_believes_no_snapshot_that_says_there_is_nobody(group: Attacked) -> None:
    """With such a table it would not wait, own everything by its own fold, and act beside all others."""
    nobody_owns = (None,) * len(group.state.owners)
    empty = replace(group.state, seats={}, last_beats={}, owners=nobody_owns, targets=nobody_owns)
    false = replace(empty, digest=difference(State(), empty))
    members = group.members[: len(NAMES)]
    group.write([snapshot("nobody", false)])
    newest = group.join("newest")
    until(lambda: newest.incarnation in newest.state.seats)
    assert set(NAMES) <= {seat.name for seat in newest.state.seats.values()}
    assert [None] * len(NAMES) == [member.error for member in members]
    assert not set(newest.led) & {partition for member in members for partition in member.led}
