"""The commands for wishes: an operator says where partitions shall be, and sees the moves before they are made.

    wish --preview--> the moves it would cause --asked, or --yes--> wish --> what it moves
                               '-- --dry-run: no further

A wish is a record in the ledger, and stays until it is taken back, whichever members come and go. To say it twice does
no harm. The moves happen afterwards, one handover at a time: `neli table` shows how far they are.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from neli_router.commands.conventions import agent_options, asking, output_option, print_rows, print_views
from neli_router.exit_codes import EXIT_BROKEN

if TYPE_CHECKING:
    from neli_router.agent.client.client import Client
    from neli_router.agent.wire import WishView

__all__ = ["drain_command", "pin_command", "undrain_command", "unpin_command", "weigh_command"]

Command = TypeVar("Command", bound=Callable[..., Any])
Wish = Callable[["Client", bool], "WishView"]

NUMBERS_SHOWN = 8
"""Partitions of one move that are named; the rest is counted."""


def _wish_options(command: Command) -> Command:
    for option in (
        output_option,
        agent_options,
        click.option("--yes", "-y", is_flag=True, help="Do not ask. It asks only on a terminal."),
        click.option("--dry-run", is_flag=True, help="Print what would move, and change nothing."),
    ):
        command = option(command)
    return command


@click.command("drain")
@click.argument("name")
@_wish_options
def drain_command(name: str, **options: Any) -> None:
    """Let member NAME own no partition but those that are pinned to it.

    For a host that is to be stopped: its partitions move to the others, one handover after another, and it stays a
    member. The drain stays until `neli undrain NAME`, also over a restart of NAME.

    \b
    Examples:
      neli drain host-3 --dry-run
      neli drain host-3 --yes

    \b
    Exit codes: 0 done, 1 answered with no, 2 not usable, 4 no agent answered, 5 it refused.
    """
    _wish(lambda client, preview: client.drain(name, preview=preview), f"Drain {name}?", **options)


@click.command("undrain")
@click.argument("name")
@_wish_options
def undrain_command(name: str, **options: Any) -> None:
    """Take a drain of member NAME back: it gets its share again.

    \b
    Example:
      neli undrain host-3

    \b
    Exit codes: 0 done, 1 answered with no, 2 not usable, 4 no agent answered, 5 it refused.
    """
    _wish(lambda client, preview: client.undrain(name, preview=preview), f"Undrain {name}?", **options)


@click.command("pin")
@click.argument("partition", type=int)
@click.argument("name")
@_wish_options
def pin_command(partition: int, name: str, **options: Any) -> None:
    """Let PARTITION belong to member NAME, as long as there is such a member.

    NAME must be there when it is said. While NAME is away, the partition goes where it would go anyway; the pin stays.

    \b
    Example:
      neli pin 17 host-3

    \b
    Exit codes: 0 done, 1 answered with no, 2 not usable, 4 no agent answered, 5 it refused.
    """
    question = f"Pin partition {partition} to {name}?"
    _wish(lambda client, preview: client.pin(partition, name, preview=preview), question, **options)


@click.command("unpin")
@click.argument("partition", type=int)
@_wish_options
def unpin_command(partition: int, **options: Any) -> None:
    """Take the pin of PARTITION back.

    \b
    Example:
      neli unpin 17

    \b
    Exit codes: 0 done, 1 answered with no, 2 not usable, 4 no agent answered, 5 it refused.
    """
    question = f"Take back the pin of partition {partition}?"
    _wish(lambda client, preview: client.unpin(partition, preview=preview), question, **options)


@click.command("weigh")
@click.argument("name")
@click.argument("weight", metavar="WEIGHT|own")
@_wish_options
def weigh_command(name: str, weight: str, **options: Any) -> None:
    """Let member NAME count with WEIGHT; `own` lets it count with its own again.

    A member with weight 6 gets twice as many partitions as one with 3, and one with 0 gets none.

    \b
    Examples:
      neli weigh host-3 2
      neli weigh host-3 own

    \b
    Exit codes: 0 done, 1 answered with no, 2 not usable, 4 no agent answered, 5 it refused.
    """
    if weight != "own" and not (weight.isascii() and weight.isdecimal()):
        raise click.BadParameter(f"a whole number from 0, or own, was wanted, not {weight!r}", param_hint="WEIGHT")
    number = None if weight == "own" else int(weight)
    question = f"Let {name} count with {'its own weight' if number is None else f'weight {number}'}?"
    _wish(lambda client, preview: client.weigh(name, number, preview=preview), question, **options)


def _wish(
    wish: Wish, question: str, *, dry_run: bool, yes: bool, agent: str | None, token_file: Path | None, output: str
) -> None:
    with asking(agent, token_file) as client:
        if dry_run:
            _print(wish(client, True), output, "would move")  # noqa: FBT003 - the one argument is named in `Wish`.
            return
        if not yes and sys.stdin.isatty():
            _print(wish(client, True), "text", "would move")  # noqa: FBT003 - as above.
            if not click.confirm(question, err=True):
                raise SystemExit(EXIT_BROKEN)
        _print(wish(client, False), output, "to move")  # noqa: FBT003 - as above.


def _print(view: "WishView", output: str, what: str) -> None:
    if output == "json":
        print_views([view])
        return
    count = sum(len(move.partitions) for move in view.moves)
    click.echo(f"{count} {'partition' if count == 1 else 'partitions'} {what}{'.' if not count else ':'}")
    if count:
        print_rows(
            ["FROM", "TO", "COUNT", "PARTITIONS"],
            [(move.source, move.target, len(move.partitions), _numbers(move.partitions)) for move in view.moves],
        )


def _numbers(partitions: list[int]) -> str:
    named = ",".join(map(str, partitions[:NUMBERS_SHOWN]))
    return named if len(partitions) <= NUMBERS_SHOWN else f"{named},..."
