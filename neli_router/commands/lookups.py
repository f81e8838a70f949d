"""The look-up commands: the owner of a key, the members, the peers, the table, and each change.

    keys: arguments, or lines of standard input ---batches---> agent ---> a line for each, in their order
    table, members, peers: one moment of the group               or
    watch: the present owners, then each change                ledger, with --ledger

A ledger is read by a router, so nothing is written to it, and a plain installation is enough. A router knows owners,
terms and members. Only an agent knows the rest: leases, lags, targets, pins and loads.

A key may be any bytes. A line cannot hold a key that contains a newline. For such keys there is --null, which pairs
with `find -print0` and similar commands.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from msgspec import UNSET, UnsetType

from neli_router.commands.conventions import (
    agent_options,
    asking,
    close_with_reader,
    failed,
    key_of,
    ledger_option,
    output_option,
    partition_option,
    print_rows,
    print_views,
    reading,
    role_given,
    time_stamp,
)
from neli_router.commands.hook import ChangeHook, hook_options
from neli_router.core.closing import Closing
from neli_router.core.exit_codes import EXIT_NO_OWNER
from neli_router.core.keyspace import Key, Role
from neli_router.drivers.peers.outlook import too_few
from neli_router.errors import NoOwner, plain

if TYPE_CHECKING:
    from neli_router.agent.client.client import Client
    from neli_router.agent.wire import OwnerView, PeersView, PeerView
    from neli_router.router.router import Router
    from neli_router.router.table import Owner

__all__ = [
    "LedgerMemberLine",
    "OwnerLine",
    "PartitionLine",
    "members_command",
    "owner_command",
    "peers_command",
    "table_command",
    "unled",
    "watch_command",
    "why_of",
]

READ = 1 << 16
"""Bytes of standard input at a time."""

OLD_AFTER = 2.0
"""Answers older than this many seconds say so. An agent that can reach its ledger reads it twice a second."""

KEY_MAX = 1 << 19
"""Most bytes of one key from standard input: a longer key has no separator, and reading it would never end."""

BATCH = 1000
"""Keys from standard input in one request: few enough that answers flow while more keys are read."""

REMEDIES = {
    "group": "it has another group: start all peers with the same",
    "key": "it has another key, or none: give all peers the same key file",
    "lease": "it has other settings: start all peers with the same lease",
    "list": "it has another list of peers: start all with the same",
    "size": "it has a list with another number of peers: start all with the same",
    "protocol": "it has another protocol, or another number of partitions, replicas or first-class peers: start all "
    "peers with the same",
    "version": "it has a newer release: update this host",
    "replaced": "two processes run as this peer: end one",
}
"""Reason for a refusal -> what the operator should do."""


class OwnerLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of `owner --output json`. Has `key`, or hexadecimal `key_hex` if the key is not text, if one was given."""

    partition: int | None
    name: str | None
    address: str
    term: int
    key: str | None = None
    key_hex: str | None = None
    slot: int | None = None
    why: str = ""
    believed: bool = False
    peer: str = ""


class PartitionLine(msgspec.Struct, frozen=True):
    """A line of `table --output json`. From a ledger, it has only the first three."""

    partition: int
    owner: str | None
    term: int
    target: str | UnsetType | None = UNSET
    pinned: str | UnsetType | None = UNSET
    load: float | UnsetType = UNSET
    standby: str | UnsetType | None = UNSET
    why: str | UnsetType = UNSET


class LedgerMemberLine(msgspec.Struct, frozen=True):
    """A line of `members --ledger ADDRESS --output json`."""

    name: str
    address: str
    zone: str
    weight: int
    partitions: int


@click.command("owner")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@partition_option(multiple=True, help="A partition instead of a key. May be repeated.")
@click.option("--null", "-0", is_flag=True, help="Keys on standard input end with a zero byte, not with a newline.")
@agent_options
@ledger_option
@output_option
def owner_command(
    keys: tuple[str, ...],
    partition: tuple[int, ...],
    null: bool,
    agent: str | None,
    token_file: Path | None,
    ledger: str | None,
    output: str,
) -> None:
    """Print which member owns each KEY.

    Reads keys from standard input, one a line, if the only KEY is `-`, or if there is none and standard input is not a
    terminal. Prints one line for each key, in their order: the owner's name, its address, `partition` and its number,
    `term` and its number, and after two blanks the key. A KEY is any text, also 42. A missing name or address is `-`.

    In a group without a broker and without a store of owners, `believed` follows the term if another member leads: the
    agent's member believes so, and another member may briefly believe otherwise. Route by it; only the owner's lease
    lets the owner act.

    \b
    Examples:
      neli owner customer-7
      neli owner --output json customer-7 | jq -r .address
      cut -d, -f1 customers.csv | neli owner
      find . -print0 | neli owner --null
      neli owner --ledger sqlite:///var/lib/jobs/ledger.db customer-7

    \b
    Exit codes:
      0  every key has an owner           4  no agent answered
      2  not usable, such as no key       5  the agent refused, such as for a table too old
      3  one of them has no owner now
    """
    if "" in keys:
        raise failed("a KEY was wanted, but one is empty: is a variable of the shell not set?")
    reads = keys == ("-",) or (not keys and not partition)
    if reads and not keys and sys.stdin.isatty():
        raise failed("a KEY was wanted, but there is none: give some, or `-` and one a line")
    found: Iterable[Key] = _read_keys(b"\0" if null else b"\n") if reads else map(key_of, keys)
    if reads:
        found = iter(found)
        if (first := next(found, None)) is None:
            raise failed("a KEY was wanted, but standard input has no key: write one a line")
        found = chain([first], found)
    with _answering(agent, token_file, ledger) as answers:
        missing = 0
        for lines in _looked_up(answers, found, partition):
            missing += sum(line.name is None for line in lines)
            if output == "json":
                print_views(lines)
            else:
                for line in lines:
                    click.echo(_spelled(line))
    if missing:
        raise SystemExit(EXIT_NO_OWNER)


@click.command("table")
@agent_options
@ledger_option
@output_option
def table_command(agent: str | None, token_file: Path | None, ledger: str | None, output: str) -> None:
    """Print the owner of each partition, and the next one.

    OWNER is `-` for a partition without an owner. TARGET is named only where it differs from the owner: the partition
    is on its way there. STANDBY is the member in another zone that gets the partition if its owner is lost. A group
    without a broker has no targets, pins, loads and standbys. There, WHY says how the partition got its leader, or why
    it has none, as far as the agent's member knows.

    \b
    Examples:
      neli table
      neli table --output json | jq 'select(.owner == null)'

    \b
    Exit codes: 0 done, 4 no agent answered, 5 it refused.
    """
    if ledger and not agent:
        with reading(ledger) as router:
            owned = [
                (number, one and one.name, one.term if one else 0) for number, one in enumerate(router.table.partitions)
            ]
        if output == "json":
            print_views(PartitionLine(*row) for row in owned)
        else:
            print_rows(["PARTITION", "OWNER", "TERM"], owned)
        return
    with asking(agent, token_file, ledger) as client:
        from neli_router.agent.wire import AGE_MAX  # noqa: PLC0415 - the client has imported it by now.

        status = client.status()
        if status.table.age >= AGE_MAX:
            client.table()  # Raises the reason why it was never read; the page gets a status all the same.
        # From a later moment, but just as many, because the layout is the group's.
        reasons = client.table().why if status.peers is not None else [""] * len(status.table.partitions)
    names = [member.name for member in status.members]
    lines = [
        PartitionLine(
            number,
            _at(names, one.owner),
            one.term,
            _at(names, one.target),
            one.pinned,
            one.load,
            _at(names, one.standby),
            why,
        )
        for number, (one, why) in enumerate(zip(status.table.partitions, reasons, strict=True))
    ]
    if output == "json":
        print_views(lines)
        return
    if status.peers is not None:
        print_rows(
            ["PARTITION", "OWNER", "TERM", "WHY"], [(one.partition, one.owner, one.term, one.why) for one in lines]
        )
    else:
        rows = [
            (one.partition, one.owner, one.term, target, one.pinned, one.load, one.standby)
            for one in lines
            for target in (one.target if one.target != one.owner else None,)
        ]
        print_rows(["PARTITION", "OWNER", "TERM", "TARGET", "PINNED", "LOAD", "STANDBY"], rows)
    _note_age(status.table.age)
    if status.why:
        click.echo(f"Note: {status.why}", err=True)


@click.command("members")
@agent_options
@ledger_option
@output_option
def members_command(agent: str | None, token_file: Path | None, ledger: str | None, output: str) -> None:
    """Print the members of the group, in the order in which they joined.

    LEASE(s) is how many seconds the member's last heartbeat is still good for, by the agent's clock. LAG(records) is
    how many records the member still had to read when it sent that heartbeat. `away` in place of LEASE(s) says that the
    member left or died, and that its partitions wait for a process of its name. WITNESS would know for certain if the
    member's process died; without a witness, its lease has to run out first.

    In a group without a broker and without a store of owners, it prints what `neli peers` prints. With --output json
    the members are peers as their list spells them. With --ledger, it prints what the members' own records say: a
    member that died is listed until another member expires it.

    \b
    Examples:
      neli members
      neli members --ledger sqlite:///var/lib/jobs/ledger.db
      neli members --output json | jq -r 'select(.drained) | .name'

    \b
    Exit codes: 0 done, 4 no agent answered, 5 it refused.
    """
    if ledger and not agent:
        with reading(ledger) as router:
            table = router.table
        owned = Counter(owner.name for owner in table.partitions if owner is not None)
        lines = [LedgerMemberLine(m.name, m.address, m.zone, m.weight, owned[m.name]) for m in table.members]
        if output == "json":
            print_views(lines)
        else:
            print_rows(["NAME", "ADDRESS", "ZONE", "WEIGHT", "PARTITIONS"], map(msgspec.structs.astuple, lines))
        return
    with asking(agent, token_file, ledger) as client:
        view = client.members()
        peers = client.peers() if view.are_peers else None
    members = view.members
    if output == "json":
        print_views(members)
        return
    if peers is not None:
        _print_peers(peers)
        return
    head = ["NAME", "ADDRESS", "ZONE", "WEIGHT", "PARTITIONS", "LOAD", "LEASE(s)", "LAG(records)", "DRAINED", "WITNESS"]
    rows = [
        (m.name, m.address, m.zone, m.weight, m.partitions, m.load, left, m.lag, m.drained, m.witness)
        for m in members
        for left in ("away" if m.away else m.lease_left,)
    ]
    print_rows(head, rows)
    _note_age(view.age)


@click.command("peers")
@agent_options
@output_option
def peers_command(agent: str | None, token_file: Path | None, output: str) -> None:
    """Print the peers of a group without a broker: who answers, and who leads, as the agent's member knows it.

    STATE is `here` for the agent's own member, `alive` for a peer that answers, `silent` for one that does not. A
    `one-way` peer is heard but does not answer, so what is sent to it is lost. Messages from a `refused` peer cannot be
    accepted, and WHY says what to look at. HEARD(s) is how many seconds ago something from the peer was accepted. SHEDS
    is how many partitions it leads only while no other peer can; `all` for a drained peer. SHEDS, NAME and ADDRESS are
    what the peer reported some seconds ago; `?` if it reported nothing yet, or runs an older release. Each agent has
    its own view of its peers: where two disagree, ask both.

    \b
    Examples:
      neli peers
      neli peers --output json | jq -r 'select(.state != "alive") | .peer'
      neli peers --output json | jq -r 'select(.drained) | .peer'

    \b
    Exit codes: 0 done, 3 too few answer to elect a leader, 4 no agent answered, 5 it refused.
    """
    with asking(agent, token_file) as client:
        view = client.peers()
    if output == "json":
        print_views(view.peers)
    else:
        _print_peers(view)
    if view.alive < view.majority:
        raise SystemExit(EXIT_NO_OWNER)


@click.command("watch")
@click.argument("key", required=False)
@partition_option(help="A partition instead of a key.")
@hook_options
@agent_options
@ledger_option
@output_option
def watch_command(
    key: str | None,
    partition: int | None,
    hook: str | None,
    exec_timeout: float,
    agent: str | None,
    token_file: Path | None,
    ledger: str | None,
    output: str,
) -> None:
    """Print the owner of KEY, or of every partition, and again whenever it changes.

    Runs until it is interrupted, the reader of its output is gone, or the agent ends. A line is the time by this host's
    clock, followed by what `neli owner` prints, without the key.

    --exec runs COMMAND for each change of an owner after the first ones, one at a time. COMMAND gets the change on
    standard input, as one line of JSON, and in the variables NELI_CHANGE_PARTITION, _NAME, _ADDRESS, _TERM and _TIME;
    _NAME is empty for a partition without an owner. It is started without a shell. `neli events --follow` has --exec,
    too, and gives the reasons.

    \b
    Examples:
      neli watch customer-7
      neli watch --output json | jq 'select(.name == null)'
      neli watch nightly --exec 'curl --silent --fail --json @- https://hooks.example/neli'

    \b
    Exit codes: 0 the agent ended it, 2 not usable, 4 no agent answered, 5 it refused, 130 interrupted.
    """
    seen: set[int] = set()
    with (
        ChangeHook(hook, exec_timeout) as told,
        _answering(agent, token_file, ledger) as answers,
        answers.watch(None if key is None is partition else role_given(key, partition)) as changes,
    ):
        close_with_reader(changes.close)
        for view in changes:
            line, now = _line(view), time_stamp()
            said = msgspec.json.encode({"time": now, **msgspec.to_builtins(view)})
            click.echo(said if output == "json" else f"{now}  {_spelled(line)}")
            if view.partition in seen:
                told.put(
                    said + b"\n",
                    partition=view.partition,
                    name=view.name or "",
                    address=view.address,
                    term=view.term,
                    time=now,
                )
            seen.add(view.partition)


def _note_age(age: float) -> None:
    if age > OLD_AFTER:
        click.echo(f"Note: this is {age:.0f} s old: the agent could read nothing newer", err=True)


@contextmanager
def _answering(agent: str | None, token_file: Path | None, ledger: str | None) -> Iterator["Client | _LedgerAnswers"]:
    """The source of owners: the ledger if only it is named, otherwise an agent."""
    if ledger and not agent:
        with reading(ledger) as router:
            yield _LedgerAnswers(router)
        return
    with asking(agent, token_file, ledger) as client:
        yield client


class _LedgerAnswers:
    """Answers about owners like a Client, from a router."""

    def __init__(self, router: "Router") -> None:
        self._router = router

    def owners(self, keys: Iterable[Key]) -> list["OwnerView"]:
        layout = self._router.table.layout
        return [self.view(layout.partition(key), slot=layout.slot(key)) for key in keys]

    def owner_of_role(self, role: Role) -> "OwnerView":
        return self.view(self._router.table.layout.partition_of_role(role))

    def watch(self, role: Role | None) -> "_LedgerChanges":
        only = None if role is None else self._router.table.layout.partition_of_role(role)
        return _LedgerChanges(self._router, self, only)

    def view(self, partition: int, *, slot: int | None = None) -> "OwnerView":
        table = self._router.table
        return self.view_of(partition, table.partitions[partition], table.why_unowned[0], slot)

    def view_of(self, partition: int, owner: "Owner | None", why: str, slot: int | None = None) -> "OwnerView":
        from neli_router.agent.wire import OwnerView  # noqa: PLC0415 - no HTTP, but the wire's views.

        at = self._router.at
        if owner is None:
            return OwnerView(partition, None, slot=slot, at=at.offset, age=at.age, why=why)
        return OwnerView(partition, owner.name, owner.address, owner.term, slot, at.offset, at.age)


class _LedgerChanges(Closing):
    """The present owners, then each change: of every partition, or of `only` one."""

    def __init__(self, router: "Router", answers: _LedgerAnswers, only: int | None) -> None:
        self._watch, self._answers = router.watch(), answers
        self._partitions = range(router.table.layout.partitions) if only is None else [only]

    def __iter__(self) -> Iterator["OwnerView"]:
        from neli_router.router.watch import Gap  # noqa: PLC0415 - as above.

        yield from map(self._answers.view, self._partitions)
        for change in self._watch:
            if isinstance(change, Gap):
                yield from map(self._answers.view, self._partitions)
            elif change.partition in self._partitions:
                yield self._answers.view_of(change.partition, change.after, "it has no owner now")

    def close(self) -> None:
        self._watch.close()


def _looked_up(
    answers: "Client | _LedgerAnswers", keys: Iterable[Key], partitions: tuple[int, ...]
) -> Iterator[list[OwnerLine]]:
    rest = iter(keys)
    while batch := list(islice(rest, BATCH)):
        yield [_line(view, key=key) for key, view in zip(batch, answers.owners(batch), strict=True)]
    for partition in partitions:
        try:
            yield [_line(answers.owner_of_role(partition))]
        except NoOwner as error:
            yield [OwnerLine(partition, None, "", 0, why=error.found)]


def _line(view: "OwnerView", *, key: Key | None = None) -> OwnerLine:
    asked = {
        "key": key if isinstance(key, str) else None,
        "key_hex": key.hex() if isinstance(key, bytes) else None,
    }
    # It leaves out what a line does not have.
    return msgspec.convert({**msgspec.structs.asdict(view), **asked}, OwnerLine)


def _spelled(line: OwnerLine) -> str:
    """The key comes last, because only the key may contain blanks."""
    what = line.key if line.key is not None else line.key_hex
    place = "no partition" if line.partition is None else f"partition {line.partition}"
    mark = " believed" if line.believed else ""
    who = (
        f"{line.name} {line.address or '-'} {place} term {line.term}{mark}" if line.name else f"- - {place}: {line.why}"
    )
    return plain(who) if what is None else f"{plain(who)}  {plain(what)}"


def _at(names: list[str], place: int | None) -> str | None:
    return None if place is None else names[place]


def _read_keys(separator: bytes) -> Iterator[Key]:
    stream, rest = sys.stdin.buffer, b""
    # The bytes that are there, without waiting for READ of them.
    while piece := stream.read1(READ) if isinstance(stream, BufferedReader) else stream.read(READ):
        *whole, rest = (rest + piece).split(separator)
        yield from map(key_of, filter(None, whole))
        if len(rest) > KEY_MAX:
            raise failed(f"a key on standard input is longer than {KEY_MAX} bytes: are they separated?")
    if rest:
        yield key_of(rest)


def _print_peers(view: "PeersView") -> None:
    """A line for each peer, and a note if leaders are missing."""
    print_rows(
        ["PEER", "STATE", "HEARD(s)", "LEADS", "SHEDS", "NAME", "ADDRESS", "WHY"],
        [
            (
                one.peer,
                one.state,
                None if one.heard_ago is None else round(one.heard_ago, 1),
                one.leads,
                "?" if one.shed is None else "all" if one.drained else one.shed,
                one.name or "?",
                one.address,
                why_of(one),
            )
            for one in view.peers
        ],
    )
    if view.alive < view.majority:
        count = len(view.peers)
        few = too_few(view.alive, view.majority, view.voters or count, count)
        click.echo(f"Note: {few}", err=True)
    elif view.unled:
        click.echo(f"Note: {unled(view)} no leader that this member knows; term {view.term}", err=True)


def unled(view: "PeersView") -> str:
    """How many partitions have none: a sentence's beginning, up to the verb."""
    return f"{view.unled} {'partition has' if view.unled == 1 else 'partitions have'}"


def why_of(peer: "PeerView") -> str | None:
    """A hint for a peer that does not answer, is drained or does not vote."""
    match peer.state:
        case "refused":
            return REMEDIES.get(peer.reason, f"its datagrams are refused: {peer.reason}")
        case "one-way":
            return "it does not answer: it has just started, or what is sent to it is lost"
        case "silent":
            if peer.heard_ago is None:
                return "it was never heard: it is down, cut off, or has a list without this member"
            return "it is down, or cut off"
        case _ if peer.drained:
            return "it is drained: it leads only while no other peer can"
        case _:
            return None if peer.votes else "it is second class: it votes as soon as the leader needs it"
