"""Claims of members for tests of owner stores, and the owners that a router names."""

from pathlib import Path
from typing import Any

from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.drivers.owners.base import Card, Claim
from neli_router.errors import NoOwner, StaleTable
from neli_router.member.member import Member
from neli_router.router.router import Router

__all__ = ["ALL", "LAYOUT", "claim", "everything", "member", "names"]

LAYOUT = Layout(slots=64, partitions=8)
ALL = range(LAYOUT.partitions)


def claim(name: str, led: dict[int, int], *, released: dict[int, int] | None = None, ttl: float = 60.0) -> Claim:
    return Claim(f"id-of-{name}", Card(name, f"{name}:1"), ttl, led, released or {})


def everything(name: str, term: int = 10, *, ttl: float = 60.0) -> Claim:
    """The claim of a member that leads everything."""
    return claim(name, dict.fromkeys(ALL, term), ttl=ttl)


def member(url: str, name: str, *, ledger: Path, **options: Any) -> Member:
    """A member whose ledger is a file, so that the store at `url` is only its cache."""
    options = {"layout": LAYOUT, "lease": 0.5, **options}
    return Member(Config(f"sqlite://{ledger}", name=name, address=f"{name}:1", ownership=url, **options))


def names(router: Router) -> list[str]:
    """The owners' names by partition; "-" for none, and an empty list while the table does not exist."""
    try:
        return [owner.name if owner else "-" for owner in router.table.partitions]
    except (NoOwner, StaleTable):
        return []
