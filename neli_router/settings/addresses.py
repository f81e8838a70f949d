"""Names and addresses that a member has if nobody gives it some.

    name      POD_NAME, else the host's name
    address   POD_IP, else the address that the agent listens on; with the agent's port; else none

A name has to outlive a restart: a member that comes back under its name gets its partitions back at once, and it can be
pinned and drained by it. A process number would make every restart a stranger, and in containers every process is
number 1. So an agent is called by its host: there is one per host. Where several run on one host the user names them,
because of two with one name the newer ends the older. A pod's name is its host's name as a rule and not always
(`hostNetwork`, `hostname`), and people know the pod by it; so it goes first where the manifest hands it in.

An address is for the clients of the *program* that the agent stands for, and only the user knows where that is. The
agent's own address is the best guess there is, and a guess at a pod's is better than the host's: pods on one host have
an address each. A wildcard such as 0.0.0.0 cannot be connected to from elsewhere, so the host's name stands for it.
"""

import re
import socket
from collections.abc import Mapping
from ipaddress import ip_address

__all__ = ["default_address", "default_name", "is_loopback", "parse_listen", "problem_of_socket"]

HOST_MAX = 253
"""Characters of a name in DNS. A member's name may have a few more."""

SOCKET_MAX = 103
"""Bytes of a socket's path: macOS has room for 104 with the zero at the end, Linux for 108."""

_LISTEN = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9.-]{1,253})):(?P<port>[0-9]{1,5})", re.ASCII)


def parse_listen(text: str) -> tuple[str, int] | None:
    """Host and port of HOST:PORT or [IPv6]:PORT; None if it is neither. Port 0 lets the system choose one."""
    match = _LISTEN.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        return None
    if match["six"] is not None:
        try:
            ip_address(match["six"])
        except ValueError:
            return None
    return match["six"] or match["host"], int(match["port"])


def is_loopback(host: str) -> bool:
    """Whether only this host reaches it. Of names, only the one that always means it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def problem_of_socket(path: str) -> str:
    """Why there can be no Unix socket at `path`; empty if there can."""
    if not path.startswith("/") or not path.isprintable():
        return "must be an absolute path, such as /run/neli/agent.sock"
    if (size := len(path.encode())) > SOCKET_MAX:
        return f"has {size} bytes, and a socket's path has at most {SOCKET_MAX}: choose a shorter one"
    return "names a folder: name the socket in it" if path.endswith("/") else ""


def default_name(environ: Mapping[str, str]) -> tuple[str, str]:
    """The name and where it comes from."""
    if name := environ.get("POD_NAME"):
        return name, "environment POD_NAME"
    return _host() or "host", "the host's name"


def default_address(environ: Mapping[str, str], listen: str | None) -> tuple[str, str]:
    """The address and where it comes from."""
    place = parse_listen(listen) if listen else None
    if pod := environ.get("POD_IP"):
        return (_joined(pod, place[1]) if place else pod), "environment POD_IP"
    if place is None:
        return "", "default"
    wildcard = place[0] in {"0.0.0.0", "::"}  # noqa: S104 - recognised, so that nobody is sent there.
    return _joined(_host() if wildcard else place[0], place[1]), "the agent's listen"


def _host() -> str:
    return "".join(character for character in socket.gethostname() if character.isprintable())[:HOST_MAX]


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
