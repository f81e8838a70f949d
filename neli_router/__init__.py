"""NELI Router: one shared ledger decides who works on which key.

    key --> slot --> partition --> owner (member, address, term)

Import what you need from here, and errors from `neli_router.errors`. The packages `agent`, `fence` and `spark` and the
module `testing` are public, too; other modules may change between releases. The import is light: it loads no driver, no
web framework and no command line.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from neli_router.config.config import Config
from neli_router.config.protocols import FastNeli, Gossip, Induction, Neli, Term
from neli_router.core.keyspace import Layout
from neli_router.member.member import Member
from neli_router.member.membership import Lease
from neli_router.member.program import run
from neli_router.protocols.protocol import Acquired, Fenced, Revoked, Standby
from neli_router.router.router import Router
from neli_router.router.table import At, Owner, Peer, Table
from neli_router.router.watch import Change, Gap

if TYPE_CHECKING:
    from neli_router.member.async_member import AsyncLease, AsyncMember
    from neli_router.router.async_router import AsyncRouter
    from neli_router.router.groups import AsyncGroups, Groups, by_host, by_zone

__all__ = [
    "Acquired",
    "AsyncGroups",
    "AsyncLease",
    "AsyncMember",
    "AsyncRouter",
    "At",
    "Change",
    "Config",
    "FastNeli",
    "Fenced",
    "Gap",
    "Gossip",
    "Groups",
    "Induction",
    "Layout",
    "Lease",
    "Member",
    "Neli",
    "Owner",
    "Peer",
    "Revoked",
    "Router",
    "Standby",
    "Table",
    "Term",
    "by_host",
    "by_zone",
    "run",
]


_WITH_ASYNCIO = {
    **dict.fromkeys(("AsyncLease", "AsyncMember"), "member.async_member"),
    "AsyncRouter": "router.async_router",
    **dict.fromkeys(("AsyncGroups", "Groups", "by_host", "by_zone"), "router.groups"),
}
"""Asyncio would take a third of the import time, and most programs that take a lease do not use it."""


def __getattr__(name: str) -> object:
    if name not in _WITH_ASYNCIO:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WITH_ASYNCIO[name]}"), name)
