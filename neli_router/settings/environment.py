"""The environment: every option by a name of its own, and a word for each name that is nobody's.

    NELI_LEASE=0.5   NELI_LAYOUT_PARTITIONS=64   NELI_AGENT_SOCKET=/run/neli/agent.sock      options
    NELI_CONFIG  NELI_AGENT  NELI_TOKEN  NELI_ROLE ...                                       other parts of ours
    NELI_SERVICE_HOST  NELI_AGENT_PORT_7635_TCP_ADDR ...                                     Kubernetes
    NELI_LEESE=0.5                                                                           a problem

A variable with a typing mistake in its name does nothing, quietly, and the group runs with another lease than somebody
believes; so it is refused as an unknown name in the file is. Kubernetes puts variables for every service into every
pod, made of the service's name. A service called `neli` or `neli-agent` must not keep its own pods from starting, so
those are known by their endings. An empty variable counts as none: `NELI_ZONE=$ZONE` in a script means just that.
"""

import re
from collections.abc import Iterator, Mapping

from neli_router.settings.options import OPTIONS, Option, unknown

__all__ = ["OTHERS", "strangers", "variables"]

OTHERS = frozenset(
    {"NELI_AGENT", "NELI_CONFIG", "NELI_TOKEN"}  # For the clients of the agent, and for us.
    | {"NELI_MEMBER", "NELI_PARTITION", "NELI_ROLE", "NELI_TERM"}  # `neli run` tells these.
)

STRANGERS_MAX = 20
"""How many unknown names are told of at once: each costs a search for its nearest, and nobody reads a hundred."""

_KUBERNETES = re.compile(
    r"NELI_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
)


def variables(environ: Mapping[str, str]) -> Iterator[tuple[Option, str, str]]:
    """Each option that a variable speaks of, what it says, and the variable's name."""
    for option in OPTIONS.values():
        if text := environ.get(option.variable):
            yield option, text, option.variable


def strangers(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each variable with our prefix that nobody knows."""
    names = {option.variable for option in OPTIONS.values()}
    found = sorted(
        name
        for name, text in environ.items()
        if name.startswith("NELI_") and text and name not in names | OTHERS and not _KUBERNETES.fullmatch(name)
    )
    known = names | {"NELI_AGENT", "NELI_CONFIG", "NELI_TOKEN"}
    told = [unknown("variable", name, known, "in the environment") for name in found[:STRANGERS_MAX]]
    rest = len(found) - STRANGERS_MAX
    return [*told, *([f"{rest} more variables with NELI_ are unknown"] if rest > 0 else [])]
