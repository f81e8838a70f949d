"""The agent's own options: where it listens, and the rules for its address and its token.

    flags, environment, neli.toml --resolve--> AgentOptions --> agent.server
    a program or a test -----------------------^

The token does not appear in any `repr`, so logging the options does not log the token.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from neli_router.config.agent_address import is_loopback, parse_place, token_problem
from neli_router.drivers.addresses import harmless_start
from neli_router.errors import ConfigError

__all__ = ["AgentOptions"]


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
    idle_after: float | None = None
    """Seconds without a client of its leases after which it hands everything over; None for never."""
    log_level: str = "info"
    log_format: Literal["console", "json"] = "console"

    def __post_init__(self) -> None:
        problems = [] if self.listen is None else list(self._listen_problems(self.listen))
        if self.token and (problem := token_problem(self.token)):
            problems.append(f"the token {problem}")
        if self.idle_after is not None and not 0 < self.idle_after < inf:
            problems.append(f"agent.idle_after={self.idle_after!r:.40} must be a number of seconds above 0")
        if problems:
            raise ConfigError(problems)

    def _listen_problems(self, listen: str) -> Iterator[str]:
        place = parse_place(listen)
        named = f"agent.listen={listen if place else harmless_start(listen)!r:.200}"
        if place is None:
            yield f"{named} must be HOST:PORT, such as 127.0.0.1:7635 or [::1]:7635"
        elif not (self.allow_remote or is_loopback(place[0])):
            yield (
                f"{named} is an address that other hosts may reach, and the connection is not encrypted: "
                "listen on 127.0.0.1, or set allow_remote if you trust the whole network"
            )
        if not self.token:
            remedy = "set token_file or NELI_TOKEN, or use the socket alone"
            yield f"{named} needs a token, because every user of this host reaches a port: {remedy}"
