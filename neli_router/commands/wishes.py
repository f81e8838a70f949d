"""The wishes of an operator: where partitions should be, shown before they move, and which peers should lead.

    wish --preview--> the moves it would cause --asked, or --yes--> wish --> what it moves
                               '-- --dry-run: no further
    a load profile ----> how evenly loads lie, before and after

A wish is a record in the ledger, and stays until it is taken back, whichever members come and go. Repeating a wish does
no harm. The moves happen afterwards, one handover at a time: `neli table` shows how far they are.

A rebalance is not a wish: nothing is recorded, and nothing is promised. The leader lets its program finish, and cedes
to the peer, which must then be elected. A request to another leader may be lost on its way.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neli_router.commands.conventions import (
    agent_options,
    asking,
    failed,
    not_empty,
    options,
    output_option,
    print_rows,
    print_views,
)
from neli_router.core.exit_codes import EXIT_BROKEN
from neli_router.errors import ConfigError
from neli_router.router.loads import LoadProfile

if TYPE_CHECKING:
    from neli_router.agent.client.client import Client
    from neli_router.agent.wire import LoadView, WishView

__all__ = ["drain_command", "load_command", "pin_command", "rebalance_command", "weigh_command"]

Wish = Callable[["Client", bool], "WishView"]
Remarks = Callable[[Any], Iterable[str]]

NUMBERS_SHOWN = 8
"""Partitions to name in one move; the rest are only counted."""

EVEN = 1.1
"""Loads up to this multiple of a fair one count as even: measurements differ by more from one day to the next."""

HOT_SHOWN = 5
"""Slots to name, each of which is more than a member should carry. A single one already keeps loads uneven."""


_wish_command = partial(
    click.command,
    epilog="Exit codes: 0 done, 1 answered with no, 2 not usable, 4 no agent answered, 5 it refused.",
)

_wish_options = options(
    click.option("--dry-run", is_flag=True, help="Print what would move, and change nothing."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask. It asks only on a terminal."),
    agent_options,
    output_option,
)


@_wish_command("drain")
@click.argument("name", callback=not_empty)
@click.option("--undo", is_flag=True, help="Take a drain back: NAME gets its share again.")
@_wish_options
def drain_command(name: str, undo: bool, **rest: Any) -> None:
    """Let member NAME own only the partitions that are pinned to it.

    Use it before stopping a host: its partitions move to the others, one handover after another, and it stays a member.
    The drain stays until `neli drain NAME --undo`, even across a restart of NAME.

    In a group of the protocol `term` or `gossip`, ask the agent of NAME itself. It passes on what other peers can lead,
    and leads only while no other peer can. A group of two peers that are both drained still has a leader. With --undo,
    the peers of `term` give partitions back within some seconds; with `gossip` the leader stays.

    \b
    Examples:
      neli drain host-3 --dry-run
      neli drain host-3 --yes
      neli drain host-3 --undo
    """
    question = f"Take back the drain of {name}?" if undo else f"Drain {name}?"
    _wish(lambda client, preview: client.drain(name, undo=undo, preview=preview), question, **rest)


@_wish_command("pin")
@click.argument("partition", type=int)
@click.argument("name", callback=not_empty, required=False)
@click.option("--undo", is_flag=True, help="Take back the pin of PARTITION. Give no NAME then.")
@_wish_options
def pin_command(partition: int, name: str | None, undo: bool, **rest: Any) -> None:
    """Let PARTITION belong to member NAME, as long as there is such a member.

    NAME must be a member at that time. While NAME is away, the partition goes where it would go anyway; the pin stays.

    \b
    Examples:
      neli pin 17 host-3
      neli pin 17 --undo
    """
    if undo == (name is not None):
        raise click.UsageError("either a NAME or --undo was wanted")
    question = f"Pin partition {partition} to {name}?" if name else f"Take back the pin of partition {partition}?"
    _wish(lambda client, preview: client.pin(partition, name, preview=preview), question, **rest)


@_wish_command("weigh", context_settings={"ignore_unknown_options": True})  # -3 is a wrong weight, not an option.
@click.argument("name", callback=not_empty)
@click.argument("weight", type=click.IntRange(min=0), required=False)
@click.option("--undo", is_flag=True, help="Restore the own weight of NAME. Give no WEIGHT then.")
@_wish_options
def weigh_command(name: str, weight: int | None, undo: bool, **rest: Any) -> None:
    """Override the weight of member NAME with WEIGHT.

    A member with weight 6 gets twice as many partitions as one with 3, and one with 0 gets none.

    \b
    Examples:
      neli weigh host-3 2
      neli weigh host-3 --undo
    """
    if undo == (weight is not None):
        raise click.UsageError("either a WEIGHT or --undo was wanted")
    question = f"Let {name} count with {'its own weight' if undo else f'weight {weight}'}?"
    _wish(lambda client, preview: client.weigh(name, weight, preview=preview), question, **rest)


@_wish_command("load")
@click.argument("profile", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--undo", is_flag=True, help="Forget all loads: partitions count alike again. Give no PROFILE then.")
@_wish_options
def load_command(profile: Path | None, undo: bool, **rest: Any) -> None:
    """Give partitions the loads in the file PROFILE, so that members carry equal work.

    A profile is measured where the work is: see docs/load.md. Members keep the number of partitions they own, and
    exchange hot partitions for cold ones, at most 16 at a time. The command says how even loads are: how many times its
    fair share the busiest member carries. If loads are not even then, run it again once these partitions are handed
    over.

    \b
    Examples:
      neli load profile.json --dry-run
      neli load profile.json --yes
      neli load --undo
    """
    if undo == (profile is not None):
        raise click.UsageError("either a PROFILE or --undo was wanted")
    if profile is None:

        def forgotten(client: "Client", preview: bool) -> "LoadView":
            every = range(len(client.table().partitions))
            return client.load(dict.fromkeys(every, 0.0), preview=preview)

        _wish(forgotten, "Forget all loads?", **rest)
        return
    try:
        measured = LoadProfile.read(profile)
        loads = measured.loads()
    except ConfigError as error:
        raise failed(error) from None
    _wish(
        lambda client, preview: client.load(loads, layout=measured.layout, preview=preview),
        f"Let partitions count with these loads, {measured.total:g} in all?",
        remarks=lambda view: _evenness(view, measured),
        **rest,
    )


@click.command("rebalance")
@click.option("--to", metavar="HOST:PORT", help="The peer that should lead, as the list of peers spells it.")
@click.option(
    "--partition", "partitions", type=int, multiple=True, metavar="N", help="One that --to should lead. Repeatable."
)
@output_option
@agent_options
def rebalance_command(
    to: str | None, partitions: tuple[int, ...], agent: str | None, token_file: Path | None, output: str
) -> None:
    """Let this agent pass what it leads to the preferred peers, or let one peer lead.

    In a group of the protocol `term`, priorities spread leaders evenly, and a peer that returns gets its partitions
    back after a while. This command gives them back immediately. Run it for each agent. A leader that was named by --to
    stays until the command is run for its agent without --to. With `gossip`, --to names the peer that should lead
    everything.

    \b
    Examples:
      neli rebalance
      neli rebalance --to host-2:7801 --partition 7

    \b
    Exit codes: 0 asked for, 2 not usable, 4 no agent answered, 5 it refused.
    """
    if partitions and to is None:
        raise failed("--partition needs the peer that should lead it: name it with --to HOST:PORT")
    with asking(agent, token_file) as client:
        view = client.rebalance(to, partitions or None)
        if output == "json":
            print_views([view])
            return
        numbers = ", ".join(map(str, partitions))
        which = f"partition{'s' * (len(partitions) > 1)} {numbers}" if partitions else "all partitions"
        does = "passes what it leads to preferred peers" if to is None else f"asked that {to} leads {which}"
        click.echo(f"{view.member}, which leads {view.led} now, {does}.")


def _evenness(view: "LoadView", profile: LoadProfile) -> Iterable[str]:
    """How even loads are, and why they are not more even."""
    yield f"The busiest member carries {view.before:.2f} times what is fair, and {view.after:.2f} times after this."
    if view.after <= EVEN:
        return
    fair = view.share * profile.total
    for slot, load in profile.hottest(HOT_SHOWN):
        if load > fair:
            yield (
                f"Slot {slot} (partition {profile.layout.partition_of_slot(slot)}) alone is {load / fair:.2f} times "
                "what is fair: loads cannot be even, whichever member has it."
            )
    if view.moves:
        yield "Say it again when these are handed over: more may be exchanged then."


def _wish(
    wish: Wish,
    question: str,
    *,
    remarks: Remarks = lambda _: (),
    dry_run: bool,
    yes: bool,
    agent: str | None,
    token_file: Path | None,
    output: str,
) -> None:
    with asking(agent, token_file) as client:
        if dry_run:
            _print(wish(client, True), output, "would move", remarks)  # noqa: FBT003 - the argument is named in `Wish`.
            return
        if not yes and sys.stdin.isatty():
            _print(wish(client, True), "text", "would move", remarks)  # noqa: FBT003 - as above.
            if not click.confirm(question, err=True):
                raise SystemExit(EXIT_BROKEN)
        _print(wish(client, False), output, "to move", remarks)  # noqa: FBT003 - as above.


def _print(view: "WishView", output: str, what: str, remarks: Remarks) -> None:
    if output == "json":
        print_views([view])
        return
    count = sum(len(move.partitions) for move in view.moves)
    # A member that drains itself says in a remark what happens: which partitions come back is not known yet.
    remark = getattr(view, "remark", "")
    if count or not remark:
        click.echo(f"{count} {'partition' if count == 1 else 'partitions'} {what}{'.' if not count else ':'}")
    if count:
        print_rows(
            ["FROM", "TO", "COUNT", "PARTITIONS"],
            [(move.source, move.target, len(move.partitions), _numbers(move.partitions)) for move in view.moves],
        )
    for line in filter(None, [remark, *remarks(view)]):
        click.echo(line)


def _numbers(partitions: list[int]) -> str:
    named = ",".join(map(str, partitions[:NUMBERS_SHOWN]))
    return named if len(partitions) <= NUMBERS_SHOWN else f"{named},..."
