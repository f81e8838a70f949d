"""Who is there already, for `neli doctor`: at the agent's socket, at its port, and under its name.

    socket   nothing, an agent, a file, a stranger's         port   free, an agent, another program
    name     in the group, alive, and not the agent that answers here: of two with one name the newer ends the older

Whatever answers is asked what an agent answers anybody, with a short patience. Nothing is changed: the port is bound
for a moment, and only after nobody answered there.
"""

import http.client
import json
import os
import socket
import stat
from contextlib import suppress
from typing import Any

from neli_router.agent.server.sockets import listen_tcp
from neli_router.commands.group import listen_for_life
from neli_router.commands.measurements import Finding
from neli_router.config import Config
from neli_router.errors import NeliError
from neli_router.induction.fold import State
from neli_router.induction.settings import BEATS_PER_LEASE
from neli_router.ledgers.base import Ledger
from neli_router.settings import AgentOptions
from neli_router.settings.addresses import parse_listen

__all__ = ["judge_name", "judge_port", "judge_socket"]

ANSWER_MAX = 2.0
"""Seconds for an agent to answer. One that takes longer than a breath is as good as none."""

BODY_MAX = 4 * 2**20
"""Bytes of an answer that are read: the status of a large group is a few hundred kilobytes."""

HEAR_BEATS = 3
HEAR_MAX = 10.0
"""For how many Beats, and for how many seconds at most, a member of our name is listened for."""


def judge_socket(path: str) -> Finding:
    """What is at the agent's Unix socket."""
    start = "start one: neli agent"
    try:
        status = os.lstat(path)
    except OSError:
        return Finding("agent", "warning", f"none: there is no socket {path}", start)
    if not stat.S_ISSOCK(status.st_mode):
        return Finding("agent", "failed", f"{path} is no socket", "name another with --socket, or move what is there")
    if status.st_uid not in {os.geteuid(), 0}:
        whose = f"{path} belongs to user {status.st_uid}"
        return Finding("agent", "warning", whose, "ask as that user, or name a socket of your own with --socket")
    try:
        code, said = _ask_socket(path, "/ready")
        if code != http.HTTPStatus.OK:
            code, _ = _ask_socket(path, "/health")
    except (OSError, http.client.HTTPException) as error:
        found = f"none answers at {path} ({type(error).__name__})"
        return Finding("agent", "warning", found, f"{start}; a socket that was left over is replaced")
    if stat.S_IMODE(status.st_mode) & 0o077:
        return Finding("agent", "failed", f"{path} is open to other users", f"chmod 600 {path}, and see who opened it")
    if code != http.HTTPStatus.OK:
        return Finding("agent", "failed", f"one answers at {path}, and says {code} of its health", "look at its log")
    if "kind" in said:
        why = said.get("found", "it does not say why")
        return Finding("agent", "warning", f"one answers at {path}, and is not ready: {why}", f"{said.get('remedy')}")
    return Finding("agent", "fine", f"one answers at {path}")


def judge_port(listen: str) -> Finding:
    """Whether the port is free for an agent, or one is there."""
    place = parse_listen(listen)
    assert place is not None, "the layers let nothing else through"
    host, port = place
    if port == 0:
        return Finding("port", "fine", "any free one is taken")
    try:
        code, said = _ask(http.client.HTTPConnection(host, port, timeout=ANSWER_MAX), "/health")
    except ConnectionRefusedError:
        try:
            with listen_tcp(host, port):
                return Finding("port", "fine", f"{listen} is free")
        except NeliError as error:
            return Finding("port", "failed", f"{listen} cannot be had: {error.found}", error.remedy)
    except (OSError, http.client.HTTPException):
        code, said = 0, {}
    if "alive" in said:
        return Finding("port", "fine", f"an agent answers at {listen}")
    if "kind" in said:
        return Finding("port", "failed", f"an agent answers at {listen}, and says {code} of its health", "see its log")
    remedy = f"stop it (`ss -ltnp 'sport = :{port}'` names it), or choose another port with --listen"
    return Finding("port", "failed", f"another program holds {listen}", remedy)


def judge_name(config: Config, agent: AgentOptions, ledger: Ledger, state: State) -> Finding:
    """Whether a member of this name lives that is not the agent here. `ledger` stands where `state` ends."""
    name = config.name
    if name not in {seat.name for seat in state.seats.values()}:
        return Finding("name", "fine", f"no member is called {name!r}")
    lease = config.lease if state.genesis is None else state.genesis.lease
    if not listen_for_life(ledger, state, min(HEAR_MAX, HEAR_BEATS * lease / BEATS_PER_LEASE), name=name):
        return Finding("name", "fine", f"{name!r} was a member, and is not heard of any more")
    if name in _names_here(agent):
        return Finding("name", "fine", f"{name!r} is alive, and is the agent that answers here")
    found = f"a member called {name!r} is alive, and no agent that answers here is it"
    return Finding("name", "failed", found, "choose another --name, or stop that one first: the newer ends the older")


def _names_here(agent: AgentOptions) -> set[str]:
    """What the agents call themselves that answer at the socket and at the port."""
    names = set()
    with suppress(OSError, http.client.HTTPException):
        names.add(_ask_socket(agent.socket, "/v1/status")[1].get("agent"))
    if agent.listen is not None and (place := parse_listen(agent.listen)) is not None:
        with suppress(OSError, http.client.HTTPException):
            names.add(_ask(http.client.HTTPConnection(*place, timeout=ANSWER_MAX), "/v1/status")[1].get("agent"))
    return {name for name in names if isinstance(name, str)}


def _ask_socket(path: str, what: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("agent", timeout=ANSWER_MAX)
    # The client library has no Unix sockets; it takes one that is connected already.
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.settimeout(ANSWER_MAX)
        connection.sock.connect(path)
        return _ask(connection, what)
    finally:
        connection.close()


def _ask(connection: http.client.HTTPConnection, what: str) -> tuple[int, dict[str, Any]]:
    """The status and the object that an agent answers with. Raises OSError, HTTPException."""
    try:
        connection.request("GET", what)
        answer = connection.getresponse()
        try:
            said = json.loads(answer.read(BODY_MAX))
        except ValueError:
            said = None
        return answer.status, said if isinstance(said, dict) else {}
    finally:
        connection.close()
