"""Layered configuration: merges flags, environment and one file, and records the source of each value.

    flags > environment > neli.toml > defaults
      each layer is checked by the kinds of its options, even if a higher layer overrides the value
        '--> the highest wins --> Config and AgentOptions, which check values against each other
                '--> every problem, each with the place it comes from --> one ConfigError

Commands resolve everything. A member or a router in a program resolves nothing: a library does not read its host's
environment behind its user's back. A client of an agent resolves what it needs to find the agent of its group, and
nothing else (`asked_agent`). A mistake in an overridden layer is found today, and not on the day when the higher layer
is removed.

`Config` knows no layers and says `lease=7200.0 must be ...`. The sentence names its options, so their places are
appended to it. While `Config` looks for problems, it gets stars instead of an address that was written into the wrong
option. Such a text is always refused: every reader of the table would see a name with a password in it.

Any other variable with our prefix is an error, just like an unknown name in the file: a misspelled variable would
silently do nothing, and the group would run with a different lease than its operator believes. Kubernetes puts
variables for every service into every pod. A service called `neli` or `neli-agent` must not keep its own pods from
starting, so these variables are recognized by their endings. An empty variable counts as unset, because
`NELI_ZONE=$ZONE` in a script means just that.

Two defaults are a guess of where we run. They suit an agent, of which a host usually has one:

    name      POD_NAME, or the host's name
    address   POD_IP, or the address that the agent listens on; with the agent's port; otherwise none

A name must outlive a restart, so it has no process number, and if several agents run on one host, the user names them.
A pod's name is not always its host's name (`hostNetwork`, `hostname`), and people know the pod by its name. Other hosts
cannot connect to a wildcard such as 0.0.0.0: the host's name replaces it.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from neli_router.config import file
from neli_router.config.agent_address import (
    TOKEN_MIN,
    default_address,
    default_socket,
    parse_place,
    read_token,
    socket_problem,
    spell_place,
    token_problem,
)
from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import LONE_PEER, SOME_LEDGER, Config, host_name
from neli_router.config.file import PLACES, Document
from neli_router.config.options import (
    ADDRESSES,
    OPTIONS,
    PEERS_LIST,
    SHOWN_MAX,
    Misfit,
    Option,
    printable,
    public_value,
    shown,
    unknown,
)
from neli_router.core.keyspace import Layout
from neli_router.core.private import Unreadable
from neli_router.drivers.addresses import group_name
from neli_router.drivers.peers import address as peers_address
from neli_router.drivers.peers.address import PeersSpelling
from neli_router.errors import ConfigError

__all__ = ["DEFAULT", "Resolved", "Setting", "asked_agent", "resolve"]

DEFAULT = "default"
LISTEN = "agent.listen"

UNKNOWN_MAX = 20
"""How many unknown names of a layer to report: each costs a search for the nearest name, and people do not read a
hundred."""

_FOR_CLIENTS = frozenset({"NELI_AGENT", "NELI_CONFIG", "NELI_TOKEN"})
"""Variables that this package and the agent's clients read."""

_FROM_RUN = frozenset({"NELI_MEMBER", "NELI_PARTITION", "NELI_ROLE", "NELI_TERM"})
"""Variables that `neli run` sets for its command."""

_KUBERNETES = re.compile(
    r"NELI_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One option with its value, for people: `value` contains no secrets."""

    name: str
    value: object
    source: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The effective configuration, and where each value comes from. `path` is the file that was read, or empty."""

    config: Config
    agent: AgentOptions
    settings: tuple[Setting, ...]
    path: str


def resolve(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config_file: str | None = None,
    *,
    places: Sequence[str] = PLACES,
    socket_folder: str = "",
) -> Resolved:
    """The effective configuration. `flags` maps keys of OPTIONS to text, or to None if the flag was not given.

    `config_file` is the path given with --config; the group's default socket is in `socket_folder`, if that is given.
    Raises ConfigError with every problem of every layer.
    """
    layers = _Layers(environ)
    # The lowest layer first, so that each layer overrides those below it.
    layers.take_file(config_file, places)
    layers.take_environment()
    layers.take_flags(flags)
    return layers.resolved(socket_folder)


def asked_agent(
    agent: str | None = None,
    ledger: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    places: Sequence[str] = PLACES,
) -> tuple[str, str]:
    """The agent that a client asks, and the name of the client's group, which is empty if the client knows none.

    `agent` and `ledger` are what the client itself was given. Raises ConfigError if the group cannot be known, or if a
    client without a group has several agents to choose from.
    """
    if agent and ledger:
        return agent, group_name(ledger)
    layers = _Layers(environ)
    # The file may be for the agent's user alone, who keeps a password in it.
    layers.take_file(None, [place for place in places if os.access(place, os.R_OK)])
    layers.take_environment()
    return layers.asked_agent(agent, ledger)


class _Layers:
    """One resolution: the values so far, and their problems."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._document = Document()
        self._problems: list[str] = []
        self._wrong: set[str] = set()  # Options with a refused value: problems that follow from them are not reported.
        self._values: dict[str, Any] = {}
        self._sources: dict[str, str] = {}
        self._token_path: str | None = None  # Only if it was read: otherwise it may be the token itself, by mistake.

    def asked_agent(self, agent: str | None, ledger: str | None) -> tuple[str, str]:
        values = self._values
        if not ledger:
            if self._wrong & {"ledger", PEERS_LIST}:
                raise ConfigError(self._problems)
            listed = values.get(PEERS_LIST) and f"peers://{values[PEERS_LIST]}/{values.get('peers.group') or 'neli'}"
            ledger = values.get("ledger") or listed
        group = group_name(ledger) if ledger else ""
        if not (agent or self._environ.get("NELI_AGENT")) and (socket := values.get("agent.socket")):
            agent = f"unix:{socket.removeprefix('unix:')}"
        return agent or default_address(group, self._environ), group

    def resolved(self, socket_folder: str) -> Resolved:
        pod = self._environ.get("POD_NAME")
        self._default("name", pod or host_name(), "environment POD_NAME" if pod else "the host's name")
        self._default("address", *_default_address(self._environ, self._values.get(LISTEN)))
        agent, config = self._agent(), self._config()
        if agent is None or config is None or self._problems:
            raise ConfigError(self._problems)
        if socket_folder and "agent.socket" not in self._values:
            agent = replace(agent, socket=default_socket(socket_folder, config.group_name))
        held = {f"agent.{name}": getattr(agent, name) for name in ("socket", "listen", *_AGENT_WORDS)}
        held["agent.token_file"] = self._token_path
        held |= {key: self._values.get(key, OPTIONS[key].default) for key in OPTIONS if key.startswith("peers.")}
        held |= {f"layout.{size}": getattr(config.layout, size) for size in Layout.__struct_fields__}
        held |= {one.name: getattr(owner, one.name) for owner in (config, config.options) for one in fields(owner)}
        held["protocol"] = config.protocol_name
        settings = [
            Setting(key, public_value(key, held[key]), self._sources.get(key, DEFAULT))
            for key in OPTIONS
            if key in held  # Otherwise it is an option of another protocol.
        ]
        hidden = None if agent.token is None else "(hidden)"
        settings.append(Setting("agent.token", hidden, self._sources.get("agent.token", DEFAULT)))
        return Resolved(config, agent, tuple(settings), self._document.path)

    def take_file(self, config_file: str | None, places: Sequence[str]) -> None:
        path, named_by = file.find(config_file, self._environ, places)
        if not path:
            return
        try:
            self._document = file.load(path, named_by)
        except Unreadable as error:
            self._problems.append(str(error))
            self._wrong.add("ledger")  # The file probably names it.
        strangers = []
        for name, value in self._document.tables.items():
            if name in _SECTIONS and isinstance(value, Mapping):
                strangers += [
                    key for below, held in value.items() if not self._take_typed(key := f"{name}.{below}", held)
                ]
            elif name in _SECTIONS:
                self._problems.append(f"{name} must be a table ({self._document.where(name)}): write [{name}] above it")
            elif isinstance(value, Mapping) and name not in OPTIONS:
                self._problems.append(_strange_table(name, value, self._document.where(name)))
                self._wrong.add("ledger")  # The table may name it.
            elif not self._take_typed(name, value):
                strangers.append(name)
        for key in strangers[:UNKNOWN_MAX]:
            self._problems.append(_stranger(key, self._document.where(key)))
        if (rest := len(strangers) - UNKNOWN_MAX) > 0:
            self._problems.append(f"{rest} more names are unknown ({self._document.path})")

    def take_environment(self) -> None:
        for option in OPTIONS.values():
            if text := self._environ.get(option.variable):
                self._take(option, text, f"environment {option.variable}", is_text=True)
        self._problems += _unknown_variables(self._environ)

    def take_flags(self, flags: Mapping[str, object]) -> None:
        for key, value in flags.items():
            if value is not None:
                self._take(OPTIONS[key], value, f"flag {OPTIONS[key].flag}", is_text=True)

    def _take_typed(self, key: str, value: object) -> bool:
        """Take a value of the file; returns whether the option `key` exists at all."""
        if key in OPTIONS:
            self._take(OPTIONS[key], value, self._document.where(key), is_text=False)
        return key in OPTIONS

    def _take(self, option: Option, value: object, source: str, *, is_text: bool) -> None:
        try:
            held = option.of_text(value) if is_text and isinstance(value, str) else option.of_value(value)
        except Misfit as misfit:
            self._problems.append(f"{option.key}={shown(option, value)} must be {misfit} ({source})")
            self._wrong.add(option.key)
        else:
            self._values[option.key], self._sources[option.key] = held, source

    def _default(self, key: str, value: str, source: str) -> None:
        if key not in self._values:
            self._values[key], self._sources[key] = value, source

    def _agent(self) -> AgentOptions | None:
        socket = self._values.get("agent.socket", "").removeprefix("unix:")
        if socket and (problem := socket_problem(socket)):
            self._complain(f"agent.socket={public_value('agent.socket', socket)!r:.200} {problem}", "agent.socket")
        listen = self._values.get(LISTEN) or None  # An empty value, `listen = ""`, overrides a lower layer.
        words = {name: self._values.get(f"agent.{name}", OPTIONS[f"agent.{name}"].default) for name in _AGENT_WORDS}
        secret = self._token()
        # A refused token is not a missing token.
        stand_in = "x" * TOKEN_MIN if self._wrong & {"agent.token", "agent.token_file"} else None
        try:
            return AgentOptions(socket, listen, secret or stand_in, **words)
        except ConfigError as error:
            for problem in error.problems:
                self._complain(problem, LISTEN)
            return None

    def _token(self) -> str | None:
        path, source = self._values.get("agent.token_file"), self._sources.get("agent.token_file", "")
        try:
            if (told := self._environ.get("NELI_TOKEN")) and not source.startswith("flag"):
                self._sources["agent.token"] = "environment NELI_TOKEN"
                if problem := token_problem(told):
                    raise Unreadable(f"environment NELI_TOKEN {problem}")
                return told
            if path:
                found = read_token(path, source)
                self._token_path, self._sources["agent.token"] = path, "agent.token_file"
                return found
        except Unreadable as error:
            self._problems.append(str(error))
            self._wrong.add("agent.token")
        return None

    def _listed(self) -> str | None:
        """The address that the peers' options form; None if they form none, in which case the problem was noted."""
        said = {key.partition(".")[2]: text for key, text in self._values.items() if key.startswith("peers.") and text}
        if not (servers := said.pop("list", None)):
            if said and PEERS_LIST not in self._wrong:
                given = ", ".join(self._said(f"peers.{name}") for name in said)
                self._complain(f"{given} must come with {OPTIONS[PEERS_LIST].flag}, which names all members: add it")
            return None
        if "ledger" in self._values:
            both = f"{self._said('ledger')} and {self._said(PEERS_LIST)}"
            self._complain(f"{both} both say where the group is: leave one out", "ledger", PEERS_LIST)
            return None
        group = said.pop("group", str(OPTIONS["peers.group"].default))
        spelling = PeersSpelling(
            name=lambda option: self._said(f"peers.{option}"),
            use=lambda option: self._said(f"peers.{option}", "PATH"),
            group=f"{self._said('peers.group')} must be the name of a group",
        )
        found, problems = peers_address.checked(servers, group, said, spelling)
        for problem in problems:
            self._complain(problem)
        return None if found is None else found.whole

    def _said(self, key: str, value: str = "") -> str:
        """How an option is written in the layer that it, or otherwise the list of peers, comes from."""
        source, option = self._sources.get(key) or self._sources.get(PEERS_LIST, ""), OPTIONS[key]
        if source.startswith("flag"):
            return f"{option.flag}{value and ' '}{value}"
        if source.startswith("environment"):
            return f"{option.variable}{value and '='}{value}"
        return f"{option.key}{value and ' = '}{value}"

    def _config(self) -> Config | None:
        told = {key: value for key, value in self._values.items() if not key.startswith(("agent.", "peers."))}
        has_peers = any(text for key, text in self._values.items() if key.startswith("peers."))
        if has_peers and (listed := self._listed()) is not None:
            told["ledger"], self._sources["ledger"] = listed, self._sources[PEERS_LIST]
        elif has_peers and (PEERS_LIST in self._values or "ledger" not in told):
            told["ledger"] = LONE_PEER  # Its problem was already noted.
        if "ledger" in self._wrong:
            told.setdefault("ledger", SOME_LEDGER)
        layout = {key.partition(".")[2]: told.pop(key) for key in list(told) if key.startswith("layout.")}
        options = {**told, "layout": layout}
        try:
            # First with stars instead of addresses, except for options that report problems without secrets: see above.
            config = Config.of({k: value if k in ADDRESSES else public_value(k, value) for k, value in options.items()})
        except ConfigError as error:
            for problem in error.problems:
                self._complain(problem, *_named(problem))
            return None
        starred = [key for key, value in told.items() if key not in ADDRESSES and value != public_value(key, value)]
        if starred:
            names = ", ".join(starred)
            self._complain(f"{names}: an address with a password would be shown to all there: correct it", *starred)
            return None
        return config

    def _complain(self, problem: str, *keys: str) -> None:
        """Note a problem, with the places of the options that it concerns."""
        places = [f"{key}: {self._sources[key]}" for key in keys if self._sources.get(key, DEFAULT) != DEFAULT]
        self._problems.append(f"{problem} ({'; '.join(places)})" if places else problem)


_SECTIONS = frozenset(option.section for option in OPTIONS.values()) - {""}
_AGENT_WORDS = ("allow_remote", "idle_after", "log_level", "log_format")


def _default_address(environ: Mapping[str, str], listen: str | None) -> tuple[str, str]:
    """The default address, and where it comes from."""
    place = parse_place(listen) if listen else None
    if pod := environ.get("POD_IP"):
        return (spell_place(pod, place[1]) if place else pod), "environment POD_IP"
    if place is None:
        return "", DEFAULT
    wildcard = place[0] in {"0.0.0.0", "::"}  # noqa: S104 - recognised, so that no client is sent there.
    return spell_place(host_name() if wildcard else place[0], place[1]), "the agent's listen"


def _named(problem: str) -> list[str]:
    """The options that a sentence of Config is about: those with a value in it, or otherwise with their name in it."""
    members = [key for key in OPTIONS if not key.startswith(("agent.", "peers."))]
    exactly = [key for key in members if re.search(rf"\b{key.rpartition('.')[2]}=", problem)]
    return exactly or [key for key in members if re.search(rf"\b{key.rpartition('.')[2]}\b", problem)]


def _stranger(key: str, where: str) -> str:
    if key in {"token", "agent.token"}:
        return (
            f"{key} does not belong in a file that people read and copy ({where}): take it out, and name a file of "
            "its own in [agent] token_file, or set NELI_TOKEN"
        )
    return unknown("option", key, OPTIONS, where)


def _strange_table(name: str, held: Mapping[str, object], where: str) -> str:
    near = get_close_matches(name, _SECTIONS, 1)
    if near:
        remedy = f"did you mean [{near[0]}]?"
    elif any(OPTIONS[key].section == "" for key in held if key in OPTIONS):
        remedy = "take out this line: these options stand above all tables"
    else:
        remedy = f"there is {', '.join(f'[{section}]' for section in sorted(_SECTIONS))}"
    return f"[{printable(name[:SHOWN_MAX])}] is not a known table ({where}): {remedy}"


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    options = {option.variable for option in OPTIONS.values()} | _FOR_CLIENTS
    found = sorted(
        name
        for name, text in environ.items()
        if name.startswith("NELI_") and text and name not in options | _FROM_RUN and not _KUBERNETES.fullmatch(name)
    )
    told = [unknown("variable", name, options, "in the environment") for name in found[:UNKNOWN_MAX]]
    rest = len(found) - UNKNOWN_MAX
    return [*told, *([f"{rest} more variables with NELI_ are unknown"] if rest > 0 else [])]
