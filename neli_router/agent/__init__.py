"""The agent: one per host. It is a member of the group on behalf of programs that are too short-lived to join.

    a task, a script, a person --HTTP over a Unix socket--> agent (a Member) --ledger--> the group

Client and AsyncClient ask the agent; `neli agent` runs it. The clients need httpx, but a program that is itself a
member does not. So the clients are imported only on first use.

It may import config, drivers, fence, hosts, member, protocols, router and status.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from neli_router.errors import MissingExtra, NoAgent

if TYPE_CHECKING:
    from neli_router.agent.client.client import AsyncClient, Client
    from neli_router.agent.client.leases import AgentLease, AsyncAgentLease, AsyncShare, Share

__all__ = ["AgentLease", "AsyncAgentLease", "AsyncClient", "AsyncShare", "Client", "NoAgent", "Share"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.client.client"), name)  # It has the leases that it gives, too.
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise MissingExtra.of("httpx", "to ask an agent", "client") from None
