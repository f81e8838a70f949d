"""Preferences: a user's rules for which peer should lead which partition, turned into the priorities of `priority.py`.

    others,c:7801                         c leads nothing while another can
    0-31: a:7801,b:7801                   for these, a leads; b, if a is away; then the others
    0-31: a:7801; 32,40: b:7801; others,c:7801

    rule ; rule ; rule          or one on each line
    [PARTITIONS:] PEER,PEER     best first; `others` stands for all that are not named, in the order that is assigned
                                without PARTITIONS, the rule is for all that no other rule names

If a rule does not place the others, they stand behind the peers that it names. So each peer has a place, and a
partition never lacks a leader because its preferred peers are away.

**Two members with different preferences are safe**, so rules can be changed on one host after another, while the group
runs. A leader needs a majority of the partition's replicas, and two majorities share a peer only if all members count
the same replicas. So preferences only order the replicas, and never choose them. The assignment does, from the list of
peers, the number of partitions and the number of replicas. All three are in the mark of each datagram, and a member
with another mark is not heard. The elections compare the priorities that each peer states for itself, and any numbers
will do: leaders pass a partition only to a higher priority, so it does not go round in a circle. Different rules cost
only time, while each member waits for the leader that it expects.
"""

import re
from collections.abc import Iterable, Mapping

from neli_router.errors import ConfigError
from neli_router.protocols.electors.priority import assign

__all__ = ["OTHERS", "ordered", "preferred_rows"]

OTHERS = "others"
"""No peer has this name: a peer has a port."""

SHOWN_MAX = 80
"""Characters of a rule that an error shows: enough to find the rule."""

PEERS_SHOWN = 10
"""Peers that an error names. The list may have two hundred."""

_RULE = re.compile(r"(?:(?P<partitions>[0-9][0-9,\s-]*):)?(?P<peers>.*)", re.ASCII | re.DOTALL)
_RANGE = re.compile(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?", re.ASCII)

Order = tuple[str | int, ...]
"""Places in the list of peers, best first, and OTHERS once."""


def preferred_rows(text: str, peers: tuple[str, ...], partitions: int, factor: int) -> tuple[tuple[int, ...], ...]:
    """For each partition, each peer's priority under these rules; 0 for a peer that is not a replica of it.

    Raises ConfigError with everything that is wrong.
    """
    problems: list[str] = []
    orders: dict[int, Order] = {}
    rest: Order | None = None
    rules = [rule.strip() for rule in re.split(r"[;\n]", text) if rule.strip()]
    if not rules:
        problems.append("preferences='' names no peer: list peers, best first, or leave it out")
    for rule in rules:
        shown = f"preferences={rule[:SHOWN_MAX]!r}"
        match = _RULE.fullmatch(rule)
        assert match is not None, "its last part takes any text"
        order = _order(match["peers"], peers, shown, problems)
        if match["partitions"] is None:
            if rest is not None:
                problems.append(f"{shown}: two rules without partitions: have one")
            rest = order
            continue
        for i in _numbers(match["partitions"], partitions, shown, problems):
            if i in orders:
                problems.append(f"{shown}: partition {i} is named twice: have one rule for it")
                break
            orders[i] = order
            replicas = [peer for peer, priority in enumerate(assign(i, len(peers), factor)) if priority]
            if order and not set(order) & set(replicas):
                theirs = _some(peers[peer] for peer in replicas)
                problems.append(
                    f"{shown}: none of these is a replica of partition {i}, which {theirs} elect: name one of them, or "
                    "raise replicas"
                )
                break
    if problems:
        raise ConfigError(problems)
    every = (OTHERS,) if rest is None else rest
    return tuple(ordered(assign(i, len(peers), factor), orders.get(i, every)) for i in range(partitions))


def ordered(row: tuple[int, ...], order: Order) -> tuple[int, ...]:
    """Distribute the priorities of `row` among the same replicas again, best first in the order of `order`."""
    others = [peer for peer in range(len(row)) if peer not in order]
    others.sort(key=lambda peer: row[peer], reverse=True)
    at = order.index(OTHERS)
    ranked = [peer for peer in (*order[:at], *others, *order[at + 1 :]) if isinstance(peer, int) and row[peer]]
    found = [0] * len(row)
    for priority, peer in enumerate(reversed(ranked), start=1):
        found[peer] = priority
    return tuple(found)


def _order(text: str, peers: tuple[str, ...], shown: str, problems: list[str]) -> Order:
    """The peers of one rule; empty if they cannot be used."""
    known: Mapping[str, str | int] = {OTHERS: OTHERS, **{peer: place for place, peer in enumerate(peers)}}
    names = [name.strip().lower() for name in text.split(",")]
    if strangers := [name for name in names if name not in known]:
        found = f"unknown peer {strangers[0][:SHOWN_MAX]!r}" if strangers[0] else "a peer is missing"
        problems.append(f"{shown}: {found}; known peers: {_some(peers)}, and {OTHERS!r} for all others")
        return ()
    if twice := [name for name in known if names.count(name) > 1]:
        problems.append(f"{shown}: {twice[0]} is named twice: name each once, best first")
        return ()
    if names == [OTHERS]:
        problems.append(f"{shown}: no peer is named: say who stands before or behind the others, or leave the rule out")
        return ()
    order = tuple(known[name] for name in names)
    return order if OTHERS in order else (*order, OTHERS)


def _numbers(text: str, partitions: int, shown: str, problems: list[str]) -> list[int]:
    found: list[int] = []
    for part in (part.strip() for part in text.split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            problems.append(f"{shown}: expected partitions like 3 or 0-31 or 0-31,40, got {part[:SHOWN_MAX]!r}")
            return []
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if not first <= last < partitions:
            problems.append(f"{shown}: no such partitions: {part!r}; they count from 0 to {partitions - 1}")
            return []
        found += range(first, last + 1)
    return found


def _some(peers: Iterable[str]) -> str:
    names = list(peers)
    more = f" and {len(names) - PEERS_SHOWN} more" if len(names) > PEERS_SHOWN else ""
    return ", ".join(names[:PEERS_SHOWN]) + more
