"""The catalogue of options: each option's name in every layer, and the values that it may have.

    key                  flag                  environment              neli.toml
    lease                --lease               NELI_LEASE               lease = 0.5
    layout.partitions    --layout-partitions   NELI_LAYOUT_PARTITIONS   [layout] partitions = 64
    peers.list           --peers               NELI_PEERS               [peers] list = "a:7801,b:7801,c:7801"
    agent.socket         --socket              NELI_AGENT_SOCKET        [agent] socket = "/run/neli/agent.sock"

The flags, the variables, the names in the file and the help all come from one list, so every layer knows the same
options. The file's top level is the member, because most files say little more than where the ledger is.

A flag or a variable is text, and is parsed by the option's kind: `0.5`, `true` `yes` `1`, `none`. A file has its own
types and must use them, except for `"none"`, for which TOML has no word. A kind only knows the type of a value;
`Config` judges whether a lease of an hour makes sense, and finds contradictions, too.

A value is shown only in part and never with a secret. A ledger's address loses the part before an @. A value of the
wrong kind that has parts, such as a table, is shown only by its type, because any of its parts may be a secret.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from neli_router.config.config import Config
from neli_router.config.protocols import PROTOCOLS, text_of
from neli_router.drivers.addresses import harmless_start, public_address

__all__ = [
    "ADDRESSES",
    "OPTIONS",
    "PEERS_LIST",
    "SHOWN_MAX",
    "Kind",
    "Misfit",
    "Option",
    "in_shell",
    "printable",
    "public_value",
    "shown",
    "unknown",
]

SHOWN_MAX = 60
"""Characters of a wrong value in an error: enough to find it again, but a pasted file does not fill the terminal."""

WHOLE_MAX = 2**53
"""Our numbers never come near this. Without a bound, we would have to compute with a number of a million digits, and
Python refuses to print one."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})(e[+-]?[0-9]{1,3})?", re.ASCII | re.IGNORECASE)
ADDRESSES = frozenset({"ledger", "ownership"})
"""Options whose text is an address. Errors show only the parts of it that are not secret."""

PEERS_LIST = "peers.list"
"""Set with `--peers` and NELI_PEERS."""

_ADDRESS = re.compile(r"://|:.*@", re.DOTALL)
"""Matches a text that is, or was meant to be, an address with a place for secrets."""

_SIGNS = re.compile(r"[:@=&;]")
"""Characters that do not occur in numbers and words. If an option without text has one, its value may be an address."""

_PLAIN = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[^?&;:@]*)?", re.ASCII
)
"""A member's address without secrets."""

_SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Misfit(ValueError):
    """A value that is not of its option's kind; the text says which kind is expected."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`of_text` parses a flag or a variable, `fits` checks a typed value, and `metavar` appears in the help."""

    wanted: str
    of_text: Callable[[str], object]
    fits: Callable[[object], bool]
    metavar: str = "TEXT"
    may_be_none: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """One option, in all layers."""

    section: str
    name: str
    kind: Kind
    help: str
    default: object = None

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def flag(self) -> str:
        words = self.name if self.section in ("agent", "peers") else self.key
        if self.key == PEERS_LIST:
            words = self.section
        return "--" + re.sub("[._]", "-", words)

    @property
    def variable(self) -> str:
        # The agent's clients read the token by this name, too.
        words = self.name if self.name == "token_file" else self.section if self.key == PEERS_LIST else self.key
        return "NELI_" + words.replace(".", "_").upper()

    def of_text(self, text: str) -> object:
        """The value of a flag or a variable with this text. Raises Misfit."""
        try:
            return self.of_value(self.kind.of_text(text))
        except (KeyError, ValueError):
            raise Misfit(self.kind.wanted) from None

    def of_value(self, value: object) -> object:
        """The value itself, if this option may have it. Raises Misfit."""
        if self.kind.fits(value):
            return None if value == "none" and self.kind.may_be_none else value
        raise Misfit(self.kind.wanted)


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError
    return int(text) if _WHOLE.fullmatch(text) else float(text)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= WHOLE_MAX


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= WHOLE_MAX


def _one_of(*words: str) -> Kind:
    return Kind(f"one of {', '.join(words)}", str.lower, lambda value: value in words, "|".join(words))


def _or_none(wanted: str, kind: Kind) -> Kind:
    return Kind(
        f"{wanted}, or none",
        lambda text: "none" if text.lower() == "none" else kind.of_text(text),
        lambda value: value == "none" or kind.fits(value),
        kind.metavar,
        may_be_none=True,
    )


TEXT = Kind("text", str, lambda value: isinstance(value, str))
LEASE = Kind("a number of seconds above 0", _number, lambda value: _is_number(value) and value != 0, "SECONDS")
SECONDS = Kind("a number of seconds, at least 0", _number, _is_number, "SECONDS")
WHOLE = Kind("a whole number", _whole, _is_whole, "NUMBER")
SWITCH = Kind("true or false", lambda text: _SWITCH[text.lower()], lambda value: isinstance(value, bool), "")

_BY_TYPE: Mapping[object, Kind] = {
    bool: SWITCH,
    int: WHOLE,
    int | None: _or_none("a whole number", WHOLE),
    float: SECONDS,
    float | None: _or_none("a number of seconds", SECONDS),
    str | None: _or_none("text", TEXT),
}


def _declared() -> Iterator[Option]:
    """The options of a member, as `Config` and the protocols declare them."""
    for one in fields(Config):
        if one.name != "layout":
            yield _option(one, "")
    owners: dict[str, list[str]] = {}
    for kind in PROTOCOLS.values():
        for one in fields(kind):
            owners.setdefault(one.name, []).append(kind.name)
    for name, protocols in owners.items():
        one = next(one for one in fields(PROTOCOLS[protocols[0]]) if one.name == name)
        yield _option(one, f"For {' and '.join(protocols)}: ")


def _option(declared: "Field[Any]", prefix: str) -> Option:
    text = re.sub(r"\bNone\b", "none", text_of(declared).partition(". ")[0].removesuffix(".") + ".")
    # A member may be called none.
    kind = {"name": TEXT, "lease": LEASE}.get(declared.name) or _BY_TYPE.get(declared.type, TEXT)
    return Option("", declared.name, kind, prefix + (text[0].lower() + text[1:] if prefix else text), declared.default)


OPTIONS: Mapping[str, Option] = {
    option.key: option
    for option in (
        *_declared(),
        Option("layout", "slots", WHOLE, "Slots that keys are hashed to. The group's, forever."),
        Option("layout", "partitions", WHOLE, "Partitions that move between members. The group's."),
        Option("layout", "tags", SWITCH, "Hash only the part of a key in {braces}. The group's."),
        Option("peers", "list", TEXT, "For term and gossip: all members, HOST:PORT,HOST:PORT, in place of a ledger."),
        Option("peers", "me", TEXT, "Which of the peers this is; by default the one with an address of this host."),
        Option("peers", "group", TEXT, "The name of the peers' group.", "neli"),
        Option("peers", "key_file", TEXT, "The file with the key that all peers share; off loopback it is needed."),
        Option("peers", "state", TEXT, "The folder that keeps this member's votes; off loopback it is needed."),
        Option("peers", "bind", TEXT, "HOST:PORT to listen at, where others know this host by another address."),
        Option("agent", "socket", TEXT, "The Unix socket to serve on.", ""),
        Option("agent", "listen", TEXT, "HOST:PORT to serve on as well."),
        Option("agent", "token_file", TEXT, "The file with the token that clients over TCP must show."),
        Option("agent", "allow_remote", SWITCH, "Let listen name an address that other hosts reach.", default=False),
        Option("agent", "idle_after", LEASE, "Hand over what it leads after this time without a client."),
        Option(
            "agent",
            "log_level",
            _one_of("debug", "info", "warning", "error"),
            "The lowest level that is logged.",
            "info",
        ),
        Option("agent", "log_format", _one_of("console", "json"), "How it is logged.", "console"),
    )
}
"""Key -> option, in the order in which they are shown."""


_IN_PYTHON = re.compile(r"\b([a-z_]+)=(True|'available')")


def in_shell(text: str) -> str:
    """An error of the library, with the options that it proposes as flags."""

    def flag(found: re.Match[str]) -> str:
        option = OPTIONS.get(found[1])
        return found[0] if option is None else option.flag + ("" if found[2] == "True" else " available")

    return _IN_PYTHON.sub(flag, text)


def shown(option: Option, value: object) -> str:
    """A wrong value, for an error: short, on one line, and without secrets."""
    if option.name == "token_file":
        return "..."  # People put the token itself there, and an error that shows it would put it into a log.
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value) if isinstance(value, float) or abs(value) <= WHOLE_MAX else "a huge number"
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    text = harmless_start(value) if _SIGNS.search(value) else value
    return f"{text[:SHOWN_MAX]!r}" + ("..." if len(text) > SHOWN_MAX else "")


def public_value(key: str, value: object) -> object:
    """The value of an option for people. A text in the wrong option may be an address all the same."""
    if not isinstance(value, str) or (key not in ADDRESSES and (not _ADDRESS.search(value) or _PLAIN.fullmatch(value))):
        return value
    return public_address(value)


def unknown(what: str, name: str, known: Iterable[str], where: str) -> str:
    """The error text for an unknown name, with the name that was probably meant."""
    name = name[:SHOWN_MAX]
    full = {text: option for option in known for text in (option, option.rpartition(".")[2])}
    leaf = name.rpartition(".")[2]
    # A correct name in the wrong table is not a typo: `lease` in [agent] means the lease, and not agent.listen.
    nearest = [leaf] if leaf in full else []
    for tried in (name, leaf):
        nearest = nearest or difflib.get_close_matches(tried, full, 1, cutoff=0.6)
    if nearest:
        return f"{printable(name)} is not a known {what} ({where}): did you mean {full[nearest[0]]}?"
    return f"{printable(name)} is not a known {what} ({where}): there is {', '.join(sorted(set(full.values())))}"


def printable(text: str) -> str:
    return text if text.isprintable() and text else repr(text)
