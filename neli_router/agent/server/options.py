"""What an agent is told: where it listens, and what may change while it runs.

    flags, environment, neli.toml --layers--> Options --> server          all problems at once, before anything starts
                                   '--SIGHUP--> Reloaded --> server       only what changed

They need none of the packages that the server needs, and the token is in no repr of theirs, so that none gets into a
log by a line that somebody wrote to find another mistake.
"""

from collections.abc import Callable
from dataclasses import dataclass

from neli_router.agent.server.sockets import parse_port
from neli_router.errors import ConfigError

__all__ = ["TOKEN_MIN", "Options", "Reload", "Reloaded", "token_problems"]

TOKEN_MIN = 16
"""Characters of a token. One that is shorter can be guessed."""


@dataclass(frozen=True, slots=True)
class Options:
    """Where an agent listens. Raises ConfigError, with all problems."""

    socket: str | None = None
    """The path of a Unix socket, for this user alone."""
    tcp: str | None = None
    """HOST:PORT of loopback; port 0 takes a free one."""
    token: str | None = None
    """What clients over TCP must show. Never in a log, an error or a repr."""
    allow_remote: bool = False
    """Listen where other hosts can reach it. Nothing is encrypted: for a network that is trusted, or behind a proxy."""

    def __post_init__(self) -> None:
        problems = []
        if self.socket is None and self.tcp is None:
            problems.append("the agent would listen nowhere: name a socket, or a TCP address")
        if self.tcp is not None:
            try:
                parse_port(self.tcp, allow_remote=self.allow_remote)
            except ConfigError as error:
                problems += error.problems
            if not self.token:
                problems.append(
                    f"tcp={self.tcp!r:.100} needs a token, because every user and every page of this host can reach a "
                    "port: name a file that holds one, or use the Unix socket alone"
                )
        if self.token:
            problems += token_problems(self.token)
        if problems:
            raise ConfigError(problems)

    def __repr__(self) -> str:
        token = None if self.token is None else "***"
        return f"Options(socket={self.socket!r}, tcp={self.tcp!r}, token={token!r}, allow_remote={self.allow_remote!r})"


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What may change while an agent runs; None leaves it as it is."""

    token: str | None = None
    weight: int | None = None
    log_level: str | None = None

    def __repr__(self) -> str:
        return f"Reloaded(weight={self.weight!r}, log_level={self.log_level!r})"


Reload = Callable[[], Reloaded]
"""Reads the configuration again, in a thread. Raises ConfigError, which leaves everything as it is."""


def token_problems(token: str) -> list[str]:
    """What is wrong with a token, without the token."""
    if len(token) < TOKEN_MIN or not token.isascii() or not token.isprintable() or " " in token:
        wanted = f"the token must have at least {TOKEN_MIN} characters of printable ASCII and no space"
        return [f"{wanted}, got {len(token)}: make one with `openssl rand -hex 32`"]
    return []
