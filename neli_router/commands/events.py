"""`neli events`: what happened to the group and why, one line for each cause; with --follow, new events, too.

    agent --/v1/history-----------> the last ones
          --/v1/history/events----> with --follow: each that is new, and again when more has moved because of it
    ledger --all that it has, --> annals --> the same, from as far back as there are records
             and on

The stream is opened before the past is requested, so that nothing falls between the two.

Only in Kafka does a ledger have times of its own. For other ledgers, the annals work out when things happened (see
`status/time_axis.py`). An event that is read while following a ledger has the time at which it was read.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from neli_router.agent.server.views import event_view
from neli_router.agent.wire import EventView, MovedView
from neli_router.commands.audit import annals_of, config_of_ledger
from neli_router.commands.conventions import (
    agent_options,
    asking,
    close_with_reader,
    failed,
    output_option,
    time_stamp,
)
from neli_router.commands.hook import ChangeHook, hook_options
from neli_router.drivers.ledgers.base import Ledger
from neli_router.errors import NeliError, plain
from neli_router.protocols.protocol import Cause
from neli_router.status.annals import Annals
from neli_router.status.causes import OF_MEMBERS, SETTLED, Episode
from neli_router.status.replay import patiently

__all__ = ["EventLine", "events_command", "sentence"]

LIMIT = 50
LIMIT_MAX = 1000

READ_MAX_SECONDS = 0.25

GROWING_MAX = 200
"""How many of a ledger's newest events may still grow: more moves are seldom under way at the same time."""

TARGETS_MAX = 8
"""How many members a line names as new owners of partitions."""

HEIR = re.compile(r" (?:ceded|gave way) to (\S+)$")
"""In the reason of a leader that stepped down in good order: the peer that should lead next."""

SENTENCES: dict[Cause, str] = {
    "join": "{member} joined",
    "replace": "{member} was replaced by a newer process of its name",
    "leave": "{member} left",
    "expire": "{member} was expired by {by}",
    "certify": "{member} was certified dead by {by}",
    "fence": "{member} was heard again: it had lived on, and was fenced",
    "handover": "{by} handed over",
    "drain": "{member} was drained by {by}",
    "undrain": "{member} was undrained by {by}",
    "pin": "partition {partition} was pinned to {member} by {by}",
    "unpin": "partition {partition} was unpinned by {by}",
    "weigh": "{member} was weighed by {by}",
    "load": "loads were set by {by}",
    "upgrade": "the group's version was raised by {by}",
    "claim": "{member} leads more",
    "release": "{member} leads less",
    "silence": "{member} is silent",
    "hear": "{member} answers again",
    "elect": "{member} leads, term {term}",
    "vacate": "{member} no longer leads",
    "other": "records were not read",
}


class EventLine(msgspec.Struct, frozen=True):
    """A line of `events --output json`. `time` is by this host's clock. A repeated `offset`: more has moved."""

    time: str | None
    """None if the ledger does not say."""
    offset: int
    cause: Cause
    member: str
    by: str
    partition: int | None
    moved: list[MovedView]
    text: str
    reason: str = ""
    term: int = 0


@click.command("events")
@click.option("--follow", "-f", is_flag=True, help="Keep running: print each new event, until interrupted.")
@click.option(
    "--limit",
    type=click.IntRange(0, LIMIT_MAX),
    default=LIMIT,
    show_default=True,
    help="How many past events of members are printed, and how many others.",
)
@click.option("--ledger", metavar="ADDRESS", help="Ask no agent: read all that the ledger at ADDRESS still has.")
@hook_options
@agent_options
@output_option
def events_command(
    follow: bool,
    limit: int,
    ledger: str | None,
    hook: str | None,
    exec_timeout: float,
    agent: str | None,
    token_file: Path | None,
    output: str,
) -> None:
    """Print who joined, left, died or was fenced, what operators wished, and what moved because of it.

    In a group of the protocol `term` or `gossip`, print who is silent, who leads, and why. Such a group does not record
    what operators wished: a drain shows in what the drained peer gives away, and in `neli peers`.

    One line for each cause: the time at which the agent read it, what it was, and how many partitions moved because of
    it, from whom to whom. With --follow, an event is printed when it begins, and once more when more has moved.

    An agent knows what it has read since it started. With --ledger, all that a ledger still has is read instead, even
    if its members are long gone.

    --exec runs COMMAND for each new event, one at a time. COMMAND gets the event on standard input, as one line of
    JSON, and in the variables NELI_CHANGE_CAUSE, _MEMBER, _BY, _TIME and _TEXT. It is started without a shell.

    \b
    Examples:
      neli events
      neli events --follow --limit 0 --exec 'curl --silent --fail --json @- https://hooks.example/neli'
      neli events --ledger sqlite:///var/lib/jobs/ledger.db
      neli events --output json | jq 'select(.cause == "expire")'

    \b
    Exit codes: 0 done, or the agent ended it, 2 not usable, 4 no agent answered, 5 it or the ledger refused,
    130 interrupted.
    """
    if hook is not None and not follow:
        raise click.UsageError("--exec: events that are to come were wanted, but --follow is not given: add it")
    with ChangeHook(hook, exec_timeout) as changes:
        told = _by_agent(agent, token_file, follow, limit) if ledger is None else _by_ledger(ledger, follow, limit)
        for line, is_news in told:
            click.echo(msgspec.json.encode(line) if output == "json" else f"{line.time or '-'}  {line.text}")
            if is_news:
                changes.put(
                    msgspec.json.encode(line) + b"\n",
                    cause=line.cause,
                    member=line.member,
                    by=line.by,
                    time=line.time or "",
                    text=line.text,
                )


def _by_agent(agent: str | None, token_file: Path | None, follow: bool, limit: int) -> Iterator[tuple[EventLine, bool]]:
    """Each event that an agent reports, and whether it is news."""
    with asking(agent, token_file) as client:
        if not follow:
            yield from ((_seen(view), False) for view in client.history(limit=limit).events)
            return
        with client.follow() as stream:
            close_with_reader(stream.close)
            past = client.history(limit=limit).events
            yield from ((_seen(view), False) for view in past)
            told = {view.offset: view.last for view in past}
            for view in stream:
                if told.pop(view.offset, -1) < view.last:
                    yield _seen(view), True


def _by_ledger(address: str, follow: bool, limit: int) -> Iterator[tuple[EventLine, bool]]:
    """Each event that the ledger at `address` still has, and whether it is news."""
    config = config_of_ledger(address, None)
    try:
        with annals_of(config) as (ledger, annals):
            annals.require_history()
            of_members = [one for one in annals.events if one.cause in OF_MEMBERS]
            others = [one for one in annals.events if one.cause not in OF_MEMBERS]
            past = [*of_members[max(0, len(of_members) - limit) :], *others[max(0, len(others) - limit) :]]
            for one in sorted(past, key=lambda one: one.offset):
                since = None if annals.to_wall is None else annals.time(one.offset) + annals.to_wall
                yield _line(one, None if since is None else time_stamp(time.time() - since)), False
            if follow:
                yield from ((line, True) for line in _follow(ledger, annals))
    except NeliError as error:
        raise failed(error) from None


def _follow(ledger: Ledger, annals: Annals) -> Iterator[EventLine]:
    """Each new event, when it is read, and once more when it has grown and settled."""
    ledger.seek(annals.state.at)
    known, told = len(annals.events), {one.offset: one.last for one in annals.events[-GROWING_MAX:]}
    growing: dict[int, tuple[int, float]] = {}
    while True:
        annals.read(patiently(lambda: ledger.read(READ_MAX_SECONDS)))
        now, stamp = time.monotonic(), time_stamp()
        for one in annals.events[known:]:
            told[one.offset] = one.last
            yield _line(one, stamp)
        known = len(annals.events)
        for one in annals.events[-GROWING_MAX:]:
            if one.last > told.get(one.offset, one.last):
                last, at = growing.setdefault(one.offset, (one.last, now))
                if last < one.last:
                    growing[one.offset] = one.last, now
                elif now - at >= SETTLED:
                    told[one.offset] = one.last
                    del growing[one.offset]
                    yield _line(one, stamp)
        told = {one.offset: told.get(one.offset, one.last) for one in annals.events[-GROWING_MAX:]}


def sentence(view: EventView) -> str:
    """One line that says what happened."""
    said = SENTENCES[view.cause].format(
        member=view.member, by=view.by or "an unknown writer", partition=view.partition, term=view.term
    )
    if not view.term:
        said = said.removesuffix(", term 0")
    if view.reason:
        said = f"{said} ({view.reason})"
    number = sum(moved.number for moved in view.moved)
    if not number:
        return plain(said)
    pairs = sorted(view.moved, key=lambda moved: -moved.number)
    targets = list(dict.fromkeys(moved.target or "nobody" for moved in pairs))
    sources = list(dict.fromkeys(moved.source or "nobody" for moved in pairs if moved.source != view.member))
    moved_from = f" from {_listed(sources)}" if sources and sources != ["nobody"] else ""
    unit = "partition" if number == 1 else "partitions"
    if targets == ["nobody"] and (heir := HEIR.search(view.reason)):  # The heir is elected a moment later.
        return plain(f"{said}: {number} {unit} given to {heir[1]}")
    return plain(f"{said}: {number} {unit}{moved_from} to {_listed(targets)}")


def _listed(names: list[str]) -> str:
    rest = len(names) - TARGETS_MAX
    return ", ".join(names[:TARGETS_MAX]) + (f" and {rest} others" if rest > 0 else "")


def _seen(view: EventView) -> EventLine:
    """The line for an event that an agent reports."""
    told = {**msgspec.structs.asdict(view), "time": time_stamp(view.ago), "text": sentence(view)}
    return msgspec.convert(told, EventLine)  # It leaves out what a line does not have.


def _line(episode: Episode, at: str | None) -> EventLine:
    """The line for an event in a ledger, which happened `at`."""
    return msgspec.structs.replace(_seen(event_view(episode.told(), 0.0)), time=at)
