"""How to reach an agent: its address, and the token that its clients show. The rules for both ends.

    $XDG_RUNTIME_DIR/neli    the folder of sockets, for a user who is logged in
    /run/neli                for a user who may write there: root, or the service's own
    /tmp/neli-<uid>          for all others

    agent-jobs-1f0c3a7e.sock    in that folder: the default socket of one group, with the group's name and a hash of it

    a client asks   NELI_AGENT > the configured socket > its group's socket > agent.sock > the only agent in the folder
                                                         '--- a socket that an operator chose ---'

    unix:/path/agent.sock, or just /path/agent.sock      the socket is its user's alone: no token
    http://127.0.0.1:7635, http://[::1]:7635             every user of the host can connect: a token

    agent's token     flag --token-file  >  environment NELI_TOKEN  >  NELI_TOKEN_FILE  >  [agent] token_file
    clients' token    flag --token-file  >  environment NELI_TOKEN

Agent, clients and members call the same functions, so in the usual case the address need not be configured. Agents of
several groups can run on one host, and none answers for another: a request names the group that its client means, and
an agent of another group refuses it. Only a client without a configured group takes any agent, if there is just one.

The last folder lies where all users may write: any user could already have made `neli-<uid>`, or a socket of any name.
A process that answers there learns our keys, and may claim that we lead. So clients call `distrust` first.

There is no `--token`, because every user of the host would see it in the list of processes, and no `token` in
`neli.toml`, because people print, copy and commit that file. Containers get their secrets through the environment, so
the environment may contain a token. The token's file must be private: see `private.py`.
"""

import errno
import os
import re
import socket
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from neli_router.core.private import Unreadable, intrusion, read_secret
from neli_router.errors import ConfigError

__all__ = [
    "PATH_MAX",
    "PORT",
    "TOKEN_MIN",
    "Address",
    "default_address",
    "default_folder",
    "default_socket",
    "distrust",
    "is_local_name",
    "is_loopback",
    "parse",
    "parse_place",
    "read_token",
    "socket_problem",
    "spell_place",
    "token_problem",
]

PORT = 7635
"""The port of an address that does not name one."""

PATH_MAX = 107 if sys.platform == "linux" else 103
"""Bytes of a socket's path: the kernel has room for 108 on Linux and 104 on macOS, including a zero at the end."""

TOKEN_MIN = 16
"""Characters. A shorter token can be guessed; `openssl rand -hex 16` makes one with 32."""

TOKEN_MAX = 4096
"""Characters; within the limit that servers have for a header."""

READABLE_MAX = 32
"""Characters of a group's name in the name of its socket, whose path has room for few."""

_SHARED = "/tmp"  # noqa: S108 - `distrust` checks who made the folder below it.
_SYSTEM = Path("/run/neli")

_PLACE = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)


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
        return f"unix:{self.path}" if self.path else self.url


def default_folder(environment: Mapping[str, str] = os.environ, *, uid: int | None = None) -> str:
    """Where this user's agents have their sockets."""
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        return f"{runtime.rstrip('/')}/neli"
    if os.access(_SYSTEM if _SYSTEM.exists() else _SYSTEM.parent, os.W_OK | os.X_OK):
        return str(_SYSTEM)
    return f"{_SHARED}/neli-{os.getuid() if uid is None else uid}"


def default_socket(folder: str, group: str) -> str:
    """Where an agent of `group` listens if its configuration does not say."""
    place, _, query = group.partition("?")
    named = re.search(r"(?:^|&)group=([^&]+)", query)
    readable = re.sub(r"[^A-Za-z0-9_-]", "", named[1] if named else Path(place).stem)[:READABLE_MAX]
    return f"{folder}/agent-{readable or 'group'}-{sha256(os.fsencode(group)).hexdigest()[:8]}.sock"


def default_address(group: str = "", environment: Mapping[str, str] = os.environ) -> str:
    """The agent that a client of `group` asks, by its socket in the folder. Without a `group`, there must be only one.

    Raises ConfigError if there are several.
    """
    if told := environment.get("NELI_AGENT"):
        return told
    folder = default_folder(environment)
    own = default_socket(folder, group) if group else f"{folder}/agent-*.sock"
    if group and os.access(own, os.F_OK):
        return own
    # The one without a group's name first: an operator chose it.
    found = sorted(map(str, Path(folder).glob("agent*.sock")), key=lambda path: (len(path), path))
    if len(found) > 1:  # The socket of an agent that was killed is still there.
        found = [path for path in found if _takes_connections(path)] or found[:1]
    if len(found) > 1 and not group:
        there = ", ".join(path.removeprefix(f"{folder}/") for path in found)
        problem = f"{len(found)} agents listen in {folder} ({there}): set NELI_LEDGER to the ledger of the group that "
        raise ConfigError([f"{problem}you mean, or name a socket with --agent or NELI_AGENT"])
    # An agent of another group refuses, and the error names both groups.
    return found[0] if found else own


def _takes_connections(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as caller, suppress(OSError):
        caller.settimeout(0)
        # An agent whose queue is full is there, too.
        return caller.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT)
    return False


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


def read_token(path: str, source: str) -> str:
    """The token in the file at `path`. Raises Unreadable, whose text contains neither the path nor the content."""
    what = f"the token's file ({source})"
    token = read_secret(path, what, TOKEN_MAX).decode("latin-1").rstrip("\r\n")
    if problem := token_problem(token):
        raise Unreadable(f"{what} {problem}")
    return token


def token_problem(token: str) -> str:
    """The reason why `token` is not valid, without quoting it; empty if it is."""
    if not token:
        return "is empty: write a token, as `openssl rand -hex 16` makes one"
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX:
        return f"holds {len(token)} characters, and a token has {TOKEN_MIN} to {TOKEN_MAX}"
    if not re.fullmatch("[!-~]+", token):
        return "holds spaces or characters beyond ASCII, which no HTTP header carries: make another"
    return ""
