"""Addresses: how HOST:PORT and the path of a socket are written, and the defaults for a member.

    HOST:PORT  [IPv6]:PORT      one grammar, for the agent, its clients, and the Host header of a request
    /run/neli/agent.sock        the path of a Unix socket, at most as long as the kernel allows

    name      POD_NAME, or the host's name
    address   POD_IP, or the address that the agent listens on; with the agent's port; otherwise none

A name must outlive a restart: a member that comes back under its name gets its partitions back immediately, and it can
be pinned and drained by its name. A process number would turn every restart into a new member, and in containers every
process is number 1. So an agent is named after its host: usually there is one per host. If several run on one host, the
user must name them, because only one of two members with the same name may live. A pod's name is usually its host's
name, but not always (`hostNetwork`, `hostname`), and people know the pod by its name; so it takes precedence if the
manifest passes it in.

An address is for the clients of the *program* that the agent stands for, and only the user knows it. The agent's own
address is the best available guess, and a pod's address is a better one than the host's: each pod on a host has its own
address. Other hosts cannot connect to a wildcard such as 0.0.0.0, so the host's name replaces it.
"""

import os
import re
import socket
import sys
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address

__all__ = [
    "PATH_MAX",
    "default_address",
    "default_name",
    "is_local_name",
    "is_loopback",
    "parse_place",
    "socket_problem",
    "spell_place",
]

PATH_MAX = 107 if sys.platform == "linux" else 103
"""Bytes of a socket's path: the kernel has room for 108 on Linux and 104 on macOS, including a zero at the end."""

HOST_MAX = 253
"""Characters of a name in DNS. A member's name may be slightly longer."""

_PLACE = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)


def parse_place(text: str, default_port: int | None = None) -> tuple[str, int] | None:
    """Host and port of HOST:PORT or [IPv6]:PORT; None if it is neither. Port 0 lets the system choose one.

    With a `default_port`, the text may leave the port out.
    """
    match = _PLACE.fullmatch(text)
    port = default_port if match is None or match["port"] is None else int(match["port"])
    if match is None or port is None or port > 65535:
        return None
    if match["six"] is not None:
        try:
            IPv6Address(match["six"])
        except ValueError:
            return None
    return match["six"] or match["host"], port


def spell_place(host: str, port: int) -> str:
    """The text that `parse_place` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local_name(host: str) -> bool:
    """Whether `host` is `localhost`, the one name that always means this host."""
    return host.lower() in {"localhost", "localhost."}


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, can only be this host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return is_local_name(host)


def socket_problem(path: str) -> str:
    """The reason why there can be no Unix socket at `path`; empty if there can."""
    if not path.startswith("/") or not path.isprintable():
        return "must be an absolute path, such as /run/neli/agent.sock"
    if (size := len(os.fsencode(path))) > PATH_MAX:
        return f"has {size} bytes, and a socket's path has at most {PATH_MAX}: choose a shorter one"
    return "names a folder: name the socket in it" if path.endswith("/") else ""


def default_name(environ: Mapping[str, str]) -> tuple[str, str]:
    """The default name, and where it comes from."""
    if name := environ.get("POD_NAME"):
        return name, "environment POD_NAME"
    return _host() or "host", "the host's name"


def default_address(environ: Mapping[str, str], listen: str | None) -> tuple[str, str]:
    """The default address, and where it comes from."""
    place = parse_place(listen) if listen else None
    if pod := environ.get("POD_IP"):
        return (spell_place(pod, place[1]) if place else pod), "environment POD_IP"
    if place is None:
        return "", "default"
    wildcard = place[0] in {"0.0.0.0", "::"}  # noqa: S104 - recognised, so that no client is sent there.
    return spell_place(_host() if wildcard else place[0], place[1]), "the agent's listen"


def _host() -> str:
    return "".join(character for character in socket.gethostname() if character.isprintable())[:HOST_MAX]
