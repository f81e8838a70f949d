"""The address: where an agent listens, and where its clients look for it if nobody told them.

    NELI_AGENT                          whatever it says
    $XDG_RUNTIME_DIR/neli/agent.sock    a user who is logged in
    /run/neli/agent.sock                whoever may write there: root, or the service's own user
    /tmp/neli-<uid>/agent.sock          everybody else

    unix:/path/agent.sock, or just /path/agent.sock      the socket is its user's alone: no token
    http://127.0.0.1:7635                                everybody on the host can connect: a token

Agent and clients call the same function, so that neither needs to be told in the usual case. The last place lies in a
folder that all users share, where anybody could have made `neli-<uid>` before, or a socket of any name. Whoever answers
there learns our keys, and may say that we lead. So nobody speaks to a socket before `distrust` found nothing.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from neli_router.errors import ConfigError

__all__ = ["PATH_MAX", "PORT", "Address", "default_address", "distrust", "parse"]

PATH_MAX = 103
"""Bytes of a socket's path: macOS has room for 104 with the final zero, Linux for 108."""

PORT = 7635
"""What an address without a port means."""

_SHARED = "/tmp"  # noqa: S108 - `distrust` looks at who made the folder below it.
_SYSTEM = Path("/run/neli")


@dataclass(frozen=True, slots=True)
class Address:
    """Either `path`, of a Unix socket, or `host` and `port`."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        """Whether nothing said to it leaves the host."""
        return bool(self.path) or _is_loopback(self.host)

    @property
    def url(self) -> str:
        """What an HTTP client puts in front of a path. A Unix socket has no host, and HTTP wants one."""
        return f"http://{self._place}" if self.host else "http://agent"

    @property
    def _place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"unix:{self.path}" if self.path else f"http://{self._place}"


def default_address(environment: Mapping[str, str] = os.environ, *, uid: int | None = None) -> str:
    """Where this user's agent listens, unless somebody said otherwise."""
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
        while path.startswith("//"):  # unix:///run/neli.sock, as others write it.
            path = path[1:]
        problem = _path_problem(path)
        if problem:
            raise ConfigError([f"the agent's address {text!r} is not usable: {problem}"])
        return Address(path=path)
    try:
        parts = urlsplit(text)
        # Python's own reading of the port raises for what is no number, or none that a port can have.
        host, port = parts.hostname, PORT if parts.port is None else parts.port
    except ValueError as error:
        raise ConfigError([f"the agent's address is not usable: {error}"]) from None
    rest = parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password
    if parts.scheme != "http" or not host or rest:
        # It may hold a password, put there by mistake: so it is not repeated.
        wanted = f"unix:/path/agent.sock, a path from the root, or http://127.0.0.1:{PORT}"
        found = f"this text of {len(text)} characters is none of them"
        raise ConfigError([f"an agent's address is {wanted}, and {found}: set --agent or NELI_AGENT to one"])
    return Address(host=host, port=port)


def distrust(address: Address, *, uid: int | None = None) -> str:
    """Why whatever listens at `address` may be somebody else's; empty if there is no reason to think so."""
    if not address.path:
        return ""
    us = os.geteuid() if uid is None else uid
    folder = Path(address.path).parent
    try:
        place = folder.lstat()
        if folder.parent == Path(_SHARED):
            if not (stat.S_ISDIR(place.st_mode) and place.st_uid == us):
                return f"its folder {folder} belongs to another user, who can put there what they like"
            if place.st_mode & 0o022:
                return f"others may write into its folder {folder}"
        owner = Path(address.path).stat().st_uid
    except OSError:
        return ""  # It is not there, or not for us to see: connecting says so in more fitting words.
    # Root asks the agents of services, which run as users of their own, where not everybody may put a socket.
    is_service = us == 0 and not folder.stat().st_mode & 0o002
    if owner in {us, 0} or is_service:
        return ""
    return f"its socket belongs to another user, number {owner}, who can answer what they like"


def _path_problem(path: str) -> str:
    if "\0" in path:
        return "a path has no zero byte"
    if path.endswith("/"):
        return "it names a folder, and the socket's own name is wanted behind it"
    size = len(os.fsencode(path))
    return f"a socket's path has room for {PATH_MAX} bytes and this has {size}" if size > PATH_MAX else ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
