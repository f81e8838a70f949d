"""`neli events`: what happened to the group and why, one line for each cause; and each that is to come.

    agent --/v1/history-----------> the last ones
          --/v1/history/events----> with --follow: each that is new, and again when more has moved because of it

The stream is opened before the past is asked for, so that nothing falls between the two. What comes by both is told
once.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from neli_router.agent.wire import Cause, EventView, MovedView
from neli_router.commands.conventions import agent_options, asking, close_with_reader, output_option, shown
from neli_router.commands.hook import ChangeHook, hook_options

__all__ = ["EventLine", "events_command", "sentence", "time_stamp"]

LIMIT = 50
LIMIT_MAX = 1000

TARGETS_MAX = 8
"""Members that a line names as those who got partitions."""

SENTENCES: dict[Cause, str] = {
    "join": "{member} joined",
    "replace": "{member} was replaced by a newer process of its name",
    "leave": "{member} left",
    "expire": "{member} was expired by {by}",
    "fence": "{member} was heard again: it had lived on, and was fenced",
    "handover": "{by} handed over",
    "drain": "{member} was drained by {by}",
    "undrain": "{member} was undrained by {by}",
    "pin": "partition {partition} was pinned to {member} by {by}",
    "unpin": "partition {partition} was unpinned by {by}",
    "weigh": "{member} was weighed by {by}",
    "load": "loads were told by {by}",
    "other": "records were not read",
}


class EventLine(msgspec.Struct, frozen=True):
    """A line of `events --output json`. `time` is by this host's clock; the same `offset` again: more has moved."""

    time: str
    offset: int
    cause: Cause
    member: str
    by: str
    partition: int | None
    moved: list[MovedView]
    text: str


@click.command("events")
@click.option("--follow", "-f", is_flag=True, help="Go on: print each event that is to come, until interrupted.")
@click.option(
    "--limit",
    type=click.IntRange(0, LIMIT_MAX),
    default=LIMIT,
    show_default=True,
    help="How many past events of members are printed, and how many others.",
)
@hook_options
@agent_options
@output_option
def events_command(
    follow: bool,
    limit: int,
    hook: str | None,
    exec_timeout: float,
    agent: str | None,
    token_file: Path | None,
    output: str,
) -> None:
    """Print who joined, left, died or was fenced, what operators wished, and what moved because of it.

    One line for each cause: the time at which the agent read it, what it was, and how many partitions moved because of
    it, from whom to whom. With --follow, an event is printed when it begins, and once more when more has moved.

    --exec runs COMMAND for each event that is to come, one at a time. The event is on its standard input, as one line
    of JSON; NELI_CHANGE_CAUSE, _MEMBER, _BY, _TIME and _TEXT are variables. It is started without a shell.

    \b
    Examples:
      neli events
      neli events --follow --limit 0 --exec 'curl --silent --fail --json @- https://hooks.example/neli'
      neli events --output json | jq 'select(.cause == "expire")'

    \b
    Exit codes: 0 done, or the agent ended it, 2 not usable, 4 no agent answered, 5 it refused, 130 interrupted.
    """
    if hook is not None and not follow:
        raise click.UsageError("--exec: events that are to come were wanted, but --follow is not given: add it")
    with ChangeHook(hook, exec_timeout) as changes, asking(agent, token_file) as client:
        if not follow:
            for view in client.history(limit=limit).events:
                _print(view, output)
            return
        with client.follow() as stream:
            close_with_reader(stream.close)
            coming: Iterator[EventView] = iter(stream)
            past = client.history(limit=limit).events
            told = {view.offset: view.last for view in past}
            for view in past:
                _print(view, output)
            for view in coming:
                if told.pop(view.offset, -1) >= view.last:
                    continue
                line = _print(view, output)
                changes.put(
                    msgspec.json.encode(line) + b"\n",
                    cause=line.cause,
                    member=line.member,
                    by=line.by,
                    time=line.time,
                    text=line.text,
                )


def time_stamp(ago: float = 0.0) -> str:
    """When it was `ago` seconds ago, by this host's clock, with its zone."""
    return datetime.fromtimestamp(time.time() - ago, UTC).astimezone().isoformat(sep=" ", timespec="seconds")


def sentence(view: EventView) -> str:
    """What happened, in a line."""
    said = SENTENCES[view.cause].format(member=view.member, by=view.by or "an unknown writer", partition=view.partition)
    number = sum(moved.number for moved in view.moved)
    if not number:
        return shown(said)
    pairs = sorted(view.moved, key=lambda moved: -moved.number)
    targets = list(dict.fromkeys(moved.target or "nobody" for moved in pairs))
    sources = list(dict.fromkeys(moved.source or "nobody" for moved in pairs if moved.source != view.member))
    moved_from = f" from {_listed(sources)}" if sources and sources != ["nobody"] else ""
    unit = "partition" if number == 1 else "partitions"
    return shown(f"{said}: {number} {unit}{moved_from} to {_listed(targets)}")


def _listed(names: list[str]) -> str:
    rest = len(names) - TARGETS_MAX
    return ", ".join(names[:TARGETS_MAX]) + (f" and {rest} others" if rest > 0 else "")


def _print(view: EventView, output: str) -> EventLine:
    text = sentence(view)
    line = EventLine(
        time_stamp(view.ago), view.offset, view.cause, view.member, view.by, view.partition, view.moved, text
    )
    click.echo(msgspec.json.encode(line) if output == "json" else f"{line.time}  {text}")
    return line
