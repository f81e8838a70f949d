"""The commands for a group without a broker: who answers and who leads, and how an operator moves leaders.

    peers        agent --PeersView--> a line for each peer of the list, and a note if no leader can be elected
    rebalance    no --to          what this agent's member leads goes to living peers that are preferred
                 --to PEER        that peer should lead all partitions, or those that are named

`neli members` prints the same as `neli peers` if no store of owners records the names of members.

A rebalance is not a wish: nothing is recorded, and nothing is promised. The leader lets its program finish, and cedes
to the peer, which must then be elected. A request to another leader may be lost on its way.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from neli_router.commands.conventions import agent_options, asking, failed, output_option, print_rows, print_views
from neli_router.core.exit_codes import EXIT_NO_OWNER
from neli_router.drivers.peers.outlook import too_few

if TYPE_CHECKING:
    from neli_router.agent.wire import PeersView, PeerView

__all__ = ["peers_command", "print_peers", "rebalance_command", "unled", "why_of"]

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
        print_peers(view)
    if view.alive < view.majority:
        raise SystemExit(EXIT_NO_OWNER)


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
        shall = "passes what it leads to preferred peers" if to is None else f"asked that {to} leads {which}"
        click.echo(f"{view.member}, which leads {view.led} now, {shall}.")


def print_peers(view: "PeersView") -> None:
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
