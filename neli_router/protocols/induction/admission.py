"""Admission: how a member introduces itself, and when it is turned away.

the ledger has no Genesis ------> genesis()      the first one appended counts; the others compare theirs with it
other settings or another fold -> mismatch()     refused; the error names both sides
a seat is wanted ---------------> join()
a newer Join under my name -----> replaced()     the newer wins; the older does not come back to fight
a Certify of me while I live ---> miscertified() others lead what I led: its writer must be found before I come back
a member with my name lives ----> NameWatch      a newcomer gives up, unless it is configured to replace that member
my records return too late -----> Trial          a newcomer stays outside until they return soon

Two processes with the same name, each restarted whenever it ends, would replace each other forever. Each of them owes a
wait when it starts, so the partitions of that name would hardly ever be led. So a newcomer listens while it waits.

A member with the newcomer's name may have died a moment ago, and the newcomer may be its restart. The dead member's
last Beats may still be in flight. Each Beat says how far its writer had read. If the writer had read a record that was
appended after the newcomer started, the writer was alive after that. Two such Beats prove that the member lives; after
only one, it may still be shutting down.

A member whose records return too late leads for moments only. The others expire it, it joins again, and each time its
share of the partitions moves twice. So a newcomer to a group that has members is on trial while it waits:

    probe sent --returns within a lease less a beat--> soon since then --for as long as it must rest--> it may join
               '--later, or not by then--------------> late: the trial starts again

Below that bound a member can lead without a break, and above it, it cannot. A lower bound would keep a group from
forming on a ledger that is slow for all. A member that is expired again and again must show more each time: its probes
must all return soon for two leases, then four, and so on. A membership that lasts makes up for all that. One expiry
costs only the wait that every newcomer owes, because any process may be paused once. Where no member was heard lately,
a newcomer skips the trial: a slow leader is better than none.

A probe is a Beat of an incarnation that is not a member. So it is void in every fold, also in those of older releases.
It proves no lease, not even to its writer: tenure and suspicion count only Beats that were read as a member's. If a
ledger put a probe behind its writer's Join, it would count like any other Beat, and rightly: it was sent before it was
appended, and a member that expires its writer waits from when it read the last one. Its writer had not read its own
Join when it sent the probe, so under `available` the probe does not make a former owner stop.
"""

from math import inf

from msgspec.structs import replace

from neli_router.errors import GroupMismatch, Miscertified, NameTaken, Replaced
from neli_router.protocols.induction.beats import interval
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State
from neli_router.protocols.induction.records import BATCHES, BATCHES_SINCE, Beat, Certify, Genesis, Join
from neli_router.protocols.protocol import BASE_MAX, Notice, Settings

__all__ = [
    "REST_MAX",
    "NameWatch",
    "Trial",
    "genesis",
    "join",
    "miscertified",
    "mismatch",
    "replaced",
    "rest_after",
    "unknown_version",
]

PROOFS = 2
"""How many Beats prove that a member with the same name lives. If it were more, a newcomer's wait could end before the
last of them arrives."""

REST_MAX = 32
"""The longest rest of a member that was expired again and again, and the shortest membership that makes up for it, in
leases. A longer one brings a cured member back later; with a shorter one, a sick member moves partitions more often."""


def genesis(settings: Settings, by: str, base: int, at: int) -> Genesis:
    """The record that founds a group; `at` is how far the ledger was read without finding a Genesis.

    `base` is the wall clock. If the clocks were right, it is above every term of any earlier ledger.
    """
    return Genesis(
        by=by,
        layout=settings.layout,
        lease=settings.lease,
        guarantee=settings.guarantee,
        base=max(base, settings.term_base),
        version=FOLD_VERSIONS[1],
        at=at,
    )


def join(settings: Settings, by: str, state: State, witness: str, wall: int) -> Join:
    """The record that asks for a seat in the group of `state`. `witness` names the witness that watches this process;
    empty for none. `wall` is the wall clock in microseconds."""
    joining = Join(
        by=by,
        name=settings.name,
        address=settings.address,
        weight=settings.weight,
        zone=settings.zone,
        versions=FOLD_VERSIONS,
        at=state.at,
        witness=witness,
        floor=max(min(wall, BASE_MAX), settings.term_base),
    )
    if settings.grace and state.version >= BATCHES_SINCE:
        return replace(joining, v=BATCHES, grace=settings.grace)
    return joining


def mismatch(settings: Settings, state: State) -> GroupMismatch | None:
    """Why a member with `settings` may not take part in the group of `state`."""
    if state.genesis is None:
        return None
    if error := unknown_version(state):
        return error
    wanted, found = settings.layout, state.genesis.layout
    differences = [wanted.difference(found)] if wanted != found else []
    if settings.lease != state.genesis.lease:
        differences.append(f"lease {settings.lease:g} s here and {state.genesis.lease:g} s there")
    if settings.guarantee != state.genesis.guarantee:
        differences.append(f"guarantee {settings.guarantee!r} here and {state.genesis.guarantee!r} there")
    if settings.term_base > state.base:  # A fence would refuse its terms, or admit an older group's.
        differences.append(f"terms above {settings.term_base} here and above {state.base} there")
    if not differences:
        return None
    return GroupMismatch(
        "a group with this member's settings was wanted",
        f"the ledger records others since its genesis: {', '.join(differences)}",
        "start with the ledger's settings, which never change while it lives, or use a new ledger",
    )


def unknown_version(state: State) -> GroupMismatch | None:
    """Why this code cannot read the ledger of `state` any further."""
    oldest, newest = FOLD_VERSIONS
    if state.genesis is None or oldest <= state.version <= newest:
        return None
    remedy = "run a release of neli-router that knows that version"
    if state.version < oldest:
        remedy = (
            "stop all its members, which run an older release, delete the ledger by `neli group delete`, and start all "
            "of them with this release"
        )
    return GroupMismatch(
        f"a group with fold version {oldest} to {newest} was wanted",
        f"the ledger's group is at version {state.version}",
        remedy,
    )


class NameWatch:
    """A newcomer's check: does a live member have its name?"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._since = inf
        self._heard_of, self._proofs = "", 0

    def begin(self, at: int) -> None:
        """All records below `at` were read: everything that the ledger held when this process had started."""
        self._since, self._proofs = at, 0

    def read(self, beat: Beat, state: State) -> None:
        seat = state.seats.get(beat.by)
        if seat is None or seat.name != self._settings.name or beat.at <= self._since:
            return
        self._proofs = self._proofs + 1 if self._heard_of == beat.by else 1
        self._heard_of = beat.by

    def verdict(self, state: State) -> NameTaken | Notice | None:
        """Called when the newcomer is about to join: why it must not, or which member it replaces."""
        seat = state.seats.get(self._heard_of)
        if seat is None or self._proofs < PROOFS or not state.is_member(seat.incarnation):
            return None
        if self._settings.replace:
            return Notice(
                "member.replaces", {"name": seat.name, "address": seat.address, "incarnation": seat.incarnation}
            )
        where = f", at {seat.address}" if seat.address else f", and gave no address (incarnation {seat.incarnation})"
        return NameTaken(
            f"the name {seat.name!r} was wanted for this member",
            f"a member that lives has it{where}",
            "give each process a name of its own, or stop that one; replace=True, or --replace, takes the name from it",
        )


class Trial:
    """One process's trial, which outlives its incarnations. `now` never goes back."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._lease = settings, settings.lease
        self.among(0)
        self._member_since = inf
        self.expiries = 0
        """How often this process was expired without a membership that lasted."""
        self.round_trip = 0.0
        """How long the latest probe took, or is taking if it is late."""
        self.begin()

    def among(self, members: int) -> None:
        """The group has this many members."""
        self._soon = self._lease - interval(self._settings, members)

    def begin(self) -> None:
        """A new incarnation begins."""
        self._sent_at, self._is_out, self._soon_since = -inf, False, inf

    def joined(self, now: float) -> None:
        self._member_since = now

    def expired(self, now: float) -> None:
        if now >= self._member_since + REST_MAX * self._lease:
            self.expiries = 0
        self.expiries += 1

    @property
    def rest(self) -> int:
        """For how many leases all probes must return soon."""
        return rest_after(self.expiries)

    @property
    def due(self) -> float:
        """When to send the next probe."""
        return self._sent_at + self._lease

    @property
    def passed_at(self) -> float:
        """When the trial ends well, unless a probe is late until then; `inf` if the latest was."""
        return self._soon_since + self.rest * self._lease

    def sent(self, sent_at: float) -> None:
        """A probe was sent that says this time."""
        self._sent_at, self._is_out = sent_at, True

    def came_back(self, sent_at: float, now: float) -> None:
        """A probe that was sent at `sent_at` came back."""
        self._is_out &= sent_at < self._sent_at
        self._judge(sent_at, now)

    def lapse(self, now: float) -> None:
        """Let time pass: a probe may be late before it comes back."""
        if self._is_out and now >= self._sent_at + self._soon:
            self._judge(self._sent_at, now)

    def _judge(self, sent_at: float, now: float) -> None:
        self.round_trip = now - sent_at
        self._soon_since = min(self._soon_since, sent_at) if self.round_trip < self._soon else inf


def rest_after(expiries: int) -> int:
    """For how many leases a member rests that was expired this often without a membership that lasted."""
    return 0 if expiries < 2 else min(2 ** (expiries - 1), REST_MAX)


def replaced(settings: Settings, address: str) -> Replaced:
    """Why this member must end: a process at `address` took its name."""
    where = f" from {address}" if address else ""
    return Replaced(
        f"this member was to be the only one called {settings.name!r}",
        f"a newer process joined under that name{where}",
        "give each process a name of its own, or let this one rest: the newer has its partitions",
    )


def miscertified(settings: Settings, state: State, record: Certify) -> Miscertified:
    """Why this member must end: `record` says that its process has ended, and others take over immediately."""
    seat = state.seats.get(record.by)
    writer = repr(record.by) if seat is None else f"the member {seat.name!r}{seat.address and f' at {seat.address}'}"
    return Miscertified(
        f"a certificate of the death of {settings.name!r} was to be written only after its process had ended",
        f"this process lives, and {writer} certified that {record.incarnation} is dead",
        "keep the ledger and find out why; until then start this member with witness='none'",
    )
