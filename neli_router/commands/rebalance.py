"""The command `neli rebalance`: an operator moves leaders that are elected among peers.

    no --to          what this agent's member leads goes to living peers that are preferred
    --to PEER        that peer should lead all partitions, or those that are named

This is not a wish: nothing is recorded, and nothing is promised. The leader lets its program finish, and cedes to the
peer, which must then be elected. A request to another leader may be lost on its way.
"""

from pathlib import Path

import click

from neli_router.commands.conventions import agent_options, asking, output_option, print_views
from neli_router.core.exit_codes import EXIT_USAGE

__all__ = ["rebalance_command"]


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
        click.echo("Error: --partition needs the peer that should lead it: name it with --to HOST:PORT", err=True)
        raise SystemExit(EXIT_USAGE)
    with asking(agent, token_file) as client:
        view = client.rebalance(to, partitions or None)
        if output == "json":
            print_views([view])
            return
        numbers = ", ".join(map(str, partitions))
        which = f"partition{'s' * (len(partitions) > 1)} {numbers}" if partitions else "all partitions"
        shall = "passes what it leads to preferred peers" if to is None else f"asked that {to} leads {which}"
        click.echo(f"{view.member}, which leads {view.led} now, {shall}.")
