"""The parts that addresses of groups in Redis and in PostgreSQL share: a group's name, and a list of servers.

    HOST[:PORT],[IPv6]:PORT --SERVER, one by one--> (host, port) ... --spelled--> HOST:PORT,[IPv6]:PORT

A driver parses its own addresses, because they differ in all else: where the group stands, and which options follow.
"""

import re
from collections.abc import Iterable

__all__ = ["GROUP", "SERVER", "spelled"]

GROUP = re.compile(r"[A-Za-z0-9._{}-]{1,200}")
"""No character that a shell or a key pattern would need quoted. Braces let a group choose its slot of a Redis cluster.
One name is good for both."""

SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


def spelled(servers: Iterable[tuple[str, int]]) -> str:
    """HOST:PORT,HOST:PORT"""
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers)
