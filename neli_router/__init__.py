"""NELI Router: one shared ledger decides who works on which key.

    key --> slot --> partition --> owner (member, address, term)

Import what you need from here, and errors from `neli_router.errors`. The packages `agent`, `fence` and `spark` and the
module `testing` are public, too; other modules may change between releases. The import is light: it loads no driver, no
web framework and no command line.
"""

from typing import TYPE_CHECKING

from neli_router.config.config import Config
from neli_router.config.protocols import FastNeli, Gossip, Induction, Neli, Term
from neli_router.core.keyspace import Layout
from neli_router.member.member import Member
from neli_router.member.membership import Lease
from neli_router.protocols.protocol import Acquired, Fenced, Revoked
from neli_router.router.router import Router
from neli_router.router.table import At, Owner, Peer, Table
from neli_router.router.watch import Change, Gap

if TYPE_CHECKING:
    from neli_router.member.async_member import AsyncMember
    from neli_router.router.async_router import AsyncRouter
    from neli_router.router.groups import AsyncGroups, Groups, by_host, by_zone

__all__ = [
    "Acquired",
    "AsyncGroups",
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
    "Table",
    "Term",
    "by_host",
    "by_zone",
]


def __getattr__(name: str) -> object:
    # Asyncio would take a third of the import time, and most programs that take a lease do not use it.
    match name:
        case "AsyncMember":
            from neli_router.member.async_member import AsyncMember  # noqa: PLC0415 - see above.

            return AsyncMember
        case "AsyncRouter":
            from neli_router.router.async_router import AsyncRouter  # noqa: PLC0415 - see above.

            return AsyncRouter
        case "AsyncGroups" | "Groups" | "by_host" | "by_zone":
            from neli_router.router.groups import AsyncGroups, Groups, by_host, by_zone  # noqa: PLC0415 - see above.

            return next(one for one in (AsyncGroups, Groups, by_host, by_zone) if one.__name__ == name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
