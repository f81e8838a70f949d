"""The agent's own options: where it listens, and the rules for its address and its token.

    flags, environment, neli.toml --resolve--> AgentOptions --> agent.server
    a program or a test -----------------------^

The token does not appear in any `repr`, so logging the options does not log the token.
"""

from dataclasses import dataclass, field
from typing import Literal

from neli_router.config.addresses import is_loopback, parse_place
from neli_router.config.token import token_problem
from neli_router.drivers.addresses import harmless_start
from neli_router.errors import ConfigError

__all__ = ["AgentOptions", "listen_problem", "needs_token"]


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How the agent serves; `Config` has its settings as a member. Raises ConfigError, with all problems."""

    socket: str = ""
    """The path of its Unix socket, only for this user; empty for none."""
    listen: str | None = None
    """HOST:PORT to serve on as well, or None. Port 0 takes a free one."""
    token: str | None = field(default=None, repr=False)
    """The secret that clients over TCP must present. `listen` requires one."""
    allow_remote: bool = False
    """Listen where other hosts can reach it. Nothing is encrypted: use it on a trusted network, or behind a proxy."""
    log_level: str = "info"
    log_format: Literal["console", "json"] = "console"

    def __post_init__(self) -> None:
        problems: list[str] = []
        if self.listen is not None:
            problems += filter(None, [listen_problem(self.listen, allow_remote=self.allow_remote)])
            if not self.token:
                problems.append(needs_token(self.listen))
        if self.token and (problem := token_problem(self.token)):
            problems.append(f"the token {problem}")
        if problems:
            raise ConfigError(problems)


def listen_problem(listen: str, *, allow_remote: bool) -> str:
    """The reason why an agent may not listen at `listen`; empty if it may."""
    place = parse_place(listen)
    if place is None:
        return f"{_named(listen)} must be HOST:PORT, such as 127.0.0.1:7635 or [::1]:7635"
    if allow_remote or is_loopback(place[0]):
        return ""
    return (
        f"{_named(listen)} is an address that other hosts may reach, and the connection is not encrypted: "
        "listen on 127.0.0.1, or set allow_remote if you trust the whole network"
    )


def needs_token(listen: str) -> str:
    """The problem text for `listen` without a token."""
    remedy = "set token_file or NELI_TOKEN, or use the socket alone"
    return f"{_named(listen)} needs a token, because every user of this host reaches a port: {remedy}"


def _named(listen: str) -> str:
    return f"agent.listen={listen if parse_place(listen) else harmless_start(listen)!r:.200}"
