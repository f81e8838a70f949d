"""Parse the address of a group without a broker: the list of its peers, and what this member has on its host.

    peers://HOST:PORT,HOST:PORT,[IPv6]:PORT/GROUP[?setting=value&...]
            '------------ the list ------------'

    ?me=HOST:PORT                    which peer this is; by default the one that resolves to an address of this host
    ?key_file=/etc/neli/key          the key that all peers share
    ?state=/var/lib/neli             the folder in which this member keeps its votes
    ?bind=0.0.0.0:7801               listen here instead, if only other hosts know this host by the address `me`

A peer's id is its place in the list, so all members must use the same order. They need not agree on it: this module
sorts the list, after writing each address in its canonical form. If one peer is spelled in two ways (a name and its
number), it counts as two peers.

*Off loopback, a key and a folder are required.* Without a key, anyone who reaches the port can make leaders. Without a
folder, a restarted member does not know that it voted, and votes twice in one term. On loopback, the only remaining
risk is what the users of one host do to each other, and the memory lies in a folder of the user's home.

*An address must mean the same on all hosts.* An IPv6 address that is valid on one link only (fe80::) needs a zone, and
zones differ from host to host. An IPv4 address in the form of IPv6 is for dual-stack sockets, and ours are not.

A malformed address may contain a password, out of habit, so the text before an @ is never shown.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

__all__ = ["HARMLESS", "PeersAddress", "PeersSpelling", "checked", "parse", "split_place"]

GROUP = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""Like the groups of other ledgers. Here the group is also part of a file's name."""

HARMLESS = frozenset({"bind", "key_file", "me", "state"})
"""Options that may be shown: addresses and paths. These are all the options."""

_PLACE = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9._-]{1,253})):(?P<port>[0-9]{1,5})", re.ASCII)


@dataclass(frozen=True)
class PeersAddress:
    """A list of peers, the same for all of them, and where this member keeps its own files."""

    peers: tuple[str, ...]
    """HOST:PORT of each, in the same form and order everywhere."""
    group: str
    me: str = ""
    """One of `peers`; empty if this host's own addresses decide."""
    key_file: str = ""
    state: str = ""
    bind: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether no datagram leaves this host, and none from another host is taken."""
        places = [*self.peers, *filter(None, [self.bind])]
        return all(_is_loopback(split_place(place)[0]) for place in places)

    @property
    def public(self) -> str:
        """For people: contains no secrets, and no paths."""
        return f"peers://{','.join(self.peers)}/{self.group}"

    @property
    def whole(self) -> str:
        """The address in the form that `parse` reads, `peers:` included."""
        own = {option: text for option in sorted(HARMLESS) if (text := getattr(self, option))}
        return f"{self.public}{'?' if own else ''}{urlencode(own, safe='/:[]')}"


class PeersSpelling(NamedTuple):
    """How people spell an option in the place where they set it, for error messages."""

    name: Callable[[str], str]
    use: Callable[[str], str]
    """The option with a path as its value."""
    group: str
    """The sentence that a group was wanted."""


_IN_ADDRESS = PeersSpelling(
    name=lambda option: option,
    use=lambda option: f"?{option}=PATH",
    group="a group was wanted after the peers, as in peers://a:7801,b:7801,c:7801/jobs",
)


def parse(rest: str) -> tuple[PeersAddress | None, list[str]]:
    """The address in `rest`, the text after `peers:`, or a sentence for each thing that is wrong with it."""
    problems: list[str] = []
    place, _, query = rest.removeprefix("//").partition("?")
    servers, _, group = place.partition("/")
    if "@" in place:
        return None, [_at_sign(_IN_ADDRESS)]
    said = dict(parse_qsl(query, keep_blank_values=True))
    for number, part in enumerate(query.split("&") if query else (), start=1):
        name = part.partition("=")[0]
        if name not in HARMLESS:  # Its name is not shown: people write passwords into addresses.
            nearest = difflib.get_close_matches(name, HARMLESS, 1)
            guess = f"did you mean {nearest[0]}? " if nearest else ""
            problems.append(f"option {number} is unknown in peers: {guess}There is {', '.join(sorted(HARMLESS))}")
    found, others = checked(servers, group, said, _IN_ADDRESS)
    problems += others
    return (None, problems) if problems else (found, [])


def checked(
    servers: str, group: str, said: Mapping[str, str], spelling: PeersSpelling
) -> tuple[PeersAddress | None, list[str]]:
    """The address of these parts, with the options in `said`; or a sentence for each thing that is wrong."""
    problems: list[str] = []
    if "@" in servers:
        return None, [_at_sign(spelling)]
    peers = [_canonical(server.strip()) for server in servers.split(",")]
    if re.search(r"\[[^\]]*%", servers):
        problems.append(
            "a % and a zone stand in the list of peers, and zones differ from host to host: name each peer by an "
            "address that has none"
        )
    elif not all(peers):
        problems.append("peers were wanted as HOST:PORT,HOST:PORT, with ports from 1 to 65535")
    elif twice := sorted({peer for peer in peers if peers.count(peer) > 1}):
        problems.append(f"peers are named twice ({', '.join(twice)}): name each once, or it would vote twice")
    problems += _kinds(peers) if all(peers) else []
    if not GROUP.fullmatch(group) or group in {".", ".."}:
        problems.append(f"{spelling.group}: 1 to 200 letters, digits and ._-")
    me, bind = (_own(said, option, spelling, problems) for option in ("me", "bind"))
    problems += _unfit(split_place(bind)[0]) if bind else []
    if me and all(peers) and me not in peers:
        problems.append(f"{spelling.name('me')} is not in the list of peers: write it as it stands there, port and all")
    for option in ("key_file", "state"):
        if option in said and not (said[option].isprintable() and Path(said[option]).is_absolute()):
            problems.append(f"{spelling.name(option)} must be an absolute path")
    found = PeersAddress(
        tuple(sorted(peers, key=split_place)) if all(peers) else (),
        group,
        me,
        said.get("key_file", ""),
        said.get("state", ""),
        bind,
    )
    if found.peers and not found.is_loopback:
        if not found.key_file:
            problems.append(
                "peers on several hosts need a key, or anyone who reaches their port can make leaders: name its file "
                f"with {spelling.use('key_file')}; `openssl rand -hex 32` makes one"
            )
        if not found.state:
            problems.append(
                "peers on several hosts need a folder for their votes, or one that starts again votes twice: name one "
                f"that outlasts a restart with {spelling.use('state')}"
            )
    return (None, problems) if problems else (found, [])


def split_place(place: str) -> tuple[str, int]:
    """Host and port of a peer in canonical form."""
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)


def _at_sign(spelling: PeersSpelling) -> str:
    key = spelling.use("key_file")
    return f"an @ stands in the list of peers: they have no user and no password, but a key in {key}"


def _own(said: Mapping[str, str], option: str, spelling: PeersSpelling, problems: list[str]) -> str:
    text = said.get(option)
    if text is None:
        return ""
    if not (place := _canonical(text)):
        problems.append(f"{spelling.name(option)} must be HOST:PORT, with a port from 1 to 65535")
    return place


def _canonical(text: str) -> str:
    """The canonical form HOST:PORT; empty if the text is malformed."""
    match = _PLACE.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 2**16:
        return ""
    port = int(match["port"])
    if match["six"] is not None:
        try:
            return f"[{IPv6Address(match['six'])}]:{port}"
        except ValueError:
            return ""
    host = match["host"].lower()
    if re.fullmatch(r"[0-9.]+", host):
        try:
            host = str(ip_address(host))
        except ValueError:
            return ""  # Such as 127.1, which some resolvers take for an address and others for a name.
    return f"{host}:{port}"


def _kinds(peers: list[str]) -> list[str]:
    """The problems with the hosts of a list whose addresses can be parsed."""
    found = []
    hosts = [split_place(peer)[0] for peer in peers]
    for host in hosts:
        try:
            number = ip_address(host)
        except ValueError:
            continue
        found += _unfit(host)
        if number.is_unspecified or number.is_multicast or host == "255.255.255.255":
            found.append(f"{host} is the address of no single host: name each peer by its own; to listen on all, bind=")
    near = [host for host in hosts if _is_loopback(host)]
    if near and len(near) < len(hosts):
        found.append(
            f"{near[0]} means another host on each host: name all peers so that every one of them can reach it"
        )
    return found


def _unfit(host: str) -> list[str]:
    """The problems with an IPv6 address, wherever it stands."""
    number = ip_address(host) if ":" in host else None
    if not isinstance(number, IPv6Address):
        return []
    if number.ipv4_mapped is not None:
        return [f"{host} is an address of IPv4 in the form of IPv6: write {number.ipv4_mapped}, without brackets"]
    if number.is_link_local:
        return [f"{host} is valid on one link only, and needs a zone: name each peer by an address that has none"]
    return []


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in {"localhost", "localhost."}
