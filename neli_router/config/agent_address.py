"""The agent's address: where an agent listens, and where its clients and members look for it by default.

    NELI_AGENT                          if it is set
    $XDG_RUNTIME_DIR/neli/agent.sock    for a user who is logged in
    /run/neli/agent.sock                for a user who may write there: root, or the service's own
    /tmp/neli-<uid>/agent.sock          for all others

    unix:/path/agent.sock, or just /path/agent.sock      the socket is its user's alone: no token
    http://127.0.0.1:7635                                every user of the host can connect: a token

Agent, clients and members call the same function, so in the usual case the address need not be configured. The last
place lies in a folder that all users share, where any user could already have made `neli-<uid>`, or a socket of any
name. A process that answers there learns our keys, and may claim that we lead. So a client calls `distrust` before it
talks to a socket.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from neli_router.config.addresses import is_loopback, parse_place, socket_problem, spell_place
from neli_router.core.private import intrusion
from neli_router.errors import ConfigError

__all__ = ["PORT", "Address", "default_address", "distrust", "parse"]

PORT = 7635
"""The port of an address that does not name one."""

_SHARED = "/tmp"  # noqa: S108 - `distrust` checks who made the folder below it.
_SYSTEM = Path("/run/neli")


@dataclass(frozen=True, slots=True)
class Address:
    """Either the `path` of a Unix socket, or `host` and `port`."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        """Whether everything sent to this address stays on the host."""
        return bool(self.path) or is_loopback(self.host)

    @property
    def url(self) -> str:
        """The start of a URL for an HTTP client. A Unix socket has no host, but HTTP needs one."""
        return f"http://{spell_place(self.host, self.port)}" if self.host else "http://agent"

    def __str__(self) -> str:
        """The text that `parse` reads."""
        return f"unix:{self.path}" if self.path else f"http://{spell_place(self.host, self.port)}"


def default_address(environment: Mapping[str, str] = os.environ, *, uid: int | None = None) -> str:
    """Where this user's agent listens, unless NELI_AGENT says otherwise."""
    if told := environment.get("NELI_AGENT"):
        return told
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        return f"{runtime.rstrip('/')}/neli/agent.sock"
    if os.access(_SYSTEM if _SYSTEM.exists() else _SYSTEM.parent, os.W_OK | os.X_OK):
        return f"{_SYSTEM}/agent.sock"
    return f"{_SHARED}/neli-{os.getuid() if uid is None else uid}/agent.sock"


def parse(text: str) -> Address:
    """The address that `text` spells. Raises ConfigError."""
    path = text.removeprefix("unix:")
    if path.startswith("/"):
        while path.startswith("//"):  # unix:///run/neli.sock, the spelling of other programs.
            path = path[1:]
        if problem := socket_problem(path):
            raise ConfigError([f"the agent's address {text!r:.200} {problem}"])
        return Address(path=path)
    place = parse_place(text[7:].removesuffix("/"), PORT) if text[:7].lower() == "http://" else None
    if place is None:
        # It may contain a password, put there by mistake, so it is not repeated.
        wanted = f"unix:/path/agent.sock, a path from the root, or http://127.0.0.1:{PORT}"
        found = f"this text of {len(text)} characters is none of them"
        raise ConfigError([f"an agent's address is {wanted}, and {found}: set --agent or NELI_AGENT to one"])
    return Address(host=place[0].lower(), port=place[1])


def distrust(address: Address, *, uid: int | None = None) -> str:
    """The reason why another user's process may be listening at `address`; empty if there is none."""
    if not address.path:
        return ""
    us = os.geteuid() if uid is None else uid
    try:
        trusted, path = {us, 0}, Path(address.path)
        if us == 0 and str(path.parent.parent) != _SHARED and not (place := path.parent.stat()).st_mode & stat.S_IWOTH:
            # Root queries the agents of services, which run under their own users, in folders where others cannot put
            # a socket. In the folder that all users share, any user could have made a folder like that.
            trusted |= {place.st_uid, path.stat().st_uid}
        found = intrusion(address.path, trusted)
    except OSError:
        return ""  # It does not exist, or we may not see it: the connection will report that in better words.
    return f"{found}, who can answer what they like" if found else ""
