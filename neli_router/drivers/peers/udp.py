"""The link over UDP: one member's sockets, its seal and its memory, behind the peers' port.

    names --addresses--> sockets <--sealed datagrams--> network
    seal ---------------'   |
    memory                  '--take--> Heard, and Notices of what was refused

The sockets are bound to exactly the addresses that `me` has, and never shared. So two processes of one id cannot both
run on one network, and a member that is not on its host fails immediately. Behind a translated address, no process can
bind to it. There `bind=` says where to listen, and two processes of one id are detected through their peers
(`seal.py`).

Without a key, nothing leaves loopback, and nothing is heard from elsewhere. The list is judged by its text
(`address.py`), but this host's resolver decides where a name such as `localhost` leads, and its answer may change
later. So each address is judged, too, before it is listened at or sent to.

Nothing here waits except `wait`: sockets do not block, and names are asked for in threads (`names.py`). A datagram that
cannot be sent is lost, as it might have been on its way.

Each peer is asked for an Answer now and then, and a peer that gives none is *silent*: its name is asked for again, and
another of its addresses is tried. Hearing a peer does not count. A peer that moved hears nothing at its old address,
and may speak all the time.

*Notices.* Each reason for a refusal is reported once in a while, for each peer: otherwise a stranger could fill a disk
with log lines. As long as a peer is heard, no refusal is attributed to it: its address may be forged.
"""

import contextlib
import errno
import os
import secrets
import select
import socket
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

from neli_router.core.clock import Clock
from neli_router.core.private import Unreadable, read_secret
from neli_router.drivers.peers.address import PeersAddress, split_place
from neli_router.drivers.peers.kept import KeptMemory, default_folder, look_at_memory
from neli_router.drivers.peers.names import PeerNames, Resolve, SocketAddress, reason_of, resolve, spelled
from neli_router.drivers.peers.seal import DATAGRAM_MAX, Content, Flaw, Seal, derived_key
from neli_router.errors import Closed, ConfigError, PeersUnusable, Replaced
from neli_router.protocols.electors.events import Heard
from neli_router.protocols.protocol import Notice

__all__ = ["PeerSockets", "look_at_votes", "my_place", "open_link", "read_key", "try_to_listen"]

TAKE_MAX = 256
"""Datagrams that one `take` reads from each socket. A flood can delay a step by some milliseconds."""

BUFFER = 2**20
"""Bytes that the kernel may hold for us while this thread is elsewhere; the kernel may allow fewer."""

ASK_AFTER = 5.0
"""Seconds after a peer's last Answer until it is asked for another, again and again. In a group of a hundred, each
member then sends twenty of these datagrams a second. Asking less often finds a moved peer later."""

SILENT_AFTER = 3.0
"""Seconds of unanswered asking until a peer is silent."""

LOOK_EVERY = 1.0

TELL_EVERY = 60.0
"""Seconds between two Notices of one kind about one peer."""

MANY = 20
"""Within TELL_EVERY, fewer datagrams that came twice, or from a process that has just started or was replaced, are
normal."""

USUAL = frozenset({Flaw.REPLAYED, Flaw.STALE, Flaw.REPLACED})

NAMES_MAX = 3
"""Names in one sentence; any others are only counted."""

KEY_MIN, KEY_MAX = 16, 4096

STRANGER = -1


def my_place(address: PeersAddress, *, resolve: Resolve = resolve) -> int:
    """The place of this member in the list. Raises ConfigError if neither the address nor this host determines it."""
    if address.me:
        return address.peers.index(address.me)
    mine, lost, why = [], [], ""
    for i, peer in enumerate(address.peers):
        try:
            if _is_here(resolve(*split_place(peer))):
                mine.append(i)
        except (OSError, UnicodeError) as error:
            lost.append(split_place(peer)[0])
            why = reason_of(error)
    if len(mine) == 1:
        return mine[0]
    if lost and not mine:
        more = f" and {len(lost) - NAMES_MAX} more" if len(lost) > NAMES_MAX else ""
        found = f"{', '.join(lost[:NAMES_MAX])}{more}: these names do not resolve now ({why})"
        found += ", and none of the others is" if len(lost) < len(address.peers) else ", so none of them is known to be"
    else:
        found = f"{len(mine)} of them are" if mine else "none of them is"
    say = f"--me {address.peers[0]}, or ?me={address.peers[0]} in an address"
    raise ConfigError([f"{found} at an address of this host: say which peer this is, as in {say}"])


def open_link(address: PeersAddress, *, mark: bytes, clock: Clock, resolve: Resolve = resolve) -> "PeerSockets":
    """The link of this member. `mark`: everything that peers must have in common, besides their group and their list.

    Raises ConfigError and PeersUnusable. May wait for a name server, for this member's own name.
    """
    place = my_place(address, resolve=resolve)
    key = derived_key(read_key(address), address.group)
    with contextlib.ExitStack() as undo:
        sockets = _bound(address, place, resolve)
        for one in sockets:
            undo.callback(one.close)
        memory = KeptMemory(_folder(address), group=address.group, me=address.peers[place], mark=mark)
        undo.callback(memory.close)
        listed: Sequence[SocketAddress] = ()
        if address.bind:  # Otherwise it listens at the listed address.
            with contextlib.suppress(OSError, UnicodeError):  # Perhaps only other hosts know that name.
                listed = resolve(*split_place(address.peers[place]))
        seal = Seal(
            key, group=address.group, peers=address.peers, mark=mark, me=place, draw=lambda: secrets.randbits(64)
        )
        try:
            link = PeerSockets(address, place, sockets, seal, memory, listed=listed, clock=clock, resolve=resolve)
        except OSError as error:
            found, remedy = f"its sockets cannot be made ({error.strerror})", "let this process have more (ulimit -n)"
            raise _unbound(address.peers[place], found, remedy) from None
        undo.pop_all()
        return link


def read_key(address: PeersAddress) -> bytes:
    """The secret from which the peers' key is derived. Raises ConfigError."""
    if not address.key_file:
        if not address.is_loopback:
            raise ConfigError(
                ["peers on several hosts need a key: name its file with --key-file PATH, or ?key_file=PATH"]
            )
        return b"no key, on loopback"
    what = "the file of the peers' key (key_file)"
    try:
        secret = read_secret(address.key_file, what, KEY_MAX).rstrip(b"\r\n")
    except Unreadable as error:
        raise ConfigError([str(error)]) from None
    if len(secret) < KEY_MIN:
        raise ConfigError(
            [f"{what} holds {len(secret)} bytes, and a key has {KEY_MIN} at least: `openssl rand -hex 32` makes one"]
        )
    return secret


def try_to_listen(address: PeersAddress, *, resolve: Resolve = resolve) -> None:
    """Listen like this member would, and stop immediately. Raises ConfigError and PeersUnusable."""
    for one in _bound(address, my_place(address, resolve=resolve), resolve):
        one.close()


def look_at_votes(address: PeersAddress, *, mark: bytes) -> Path:
    """Where this member keeps its votes, if they could be read. Makes nothing. Raises ConfigError and PeersUnusable."""
    folder = _folder(address)
    look_at_memory(folder, group=address.group, me=address.peers[my_place(address)], mark=mark)
    return folder


class PeerSockets:
    """A `PeerLink`. Use `open_link`."""

    def __init__(
        self,
        address: PeersAddress,
        place: int,
        sockets: Sequence[socket.socket],
        seal: Seal,
        memory: KeptMemory,
        *,
        listed: Sequence[SocketAddress],
        clock: Clock,
        resolve: Resolve,
    ) -> None:
        self._at, self._seal, self._kept, self._clock = address, seal, memory, clock
        self.address, self.place = address.public, place
        self._sockets, self._listed = list(sockets), listed
        self._mouths: dict[socket.AddressFamily, socket.socket] = {}
        """Sockets that only send, to peers of a family in which this member has no address."""
        self._others = [i for i in range(len(address.peers)) if i != place]
        now = clock()
        self._answered_at = dict.fromkeys(self._others, now - ASK_AFTER)
        self._turns = dict.fromkeys(self._others, 0)
        """Which of its addresses a peer is tried at."""
        self._look_at = now
        self._taken_at: dict[int, float] = {}
        self._asking_at: dict[int, float] = {}
        """Place -> when it asked last without echoing our challenge: it may not hear us, or it may be a replay."""
        self.refusals: dict[int, str] = {}
        self._word = b""
        self._said = dict.fromkeys(self._others, b"")
        """Place -> the last word sent to it while it knew our session."""
        self.words: dict[int, bytes] = {}
        # All exist from the start: a counter that appears only with its first event hides that event.
        self.counts: Counter[str] = Counter(dict.fromkeys(("sent", "unsent", "taken"), 0))
        self.counts.update(dict.fromkeys((f"refused.{flaw.name.lower()}" for flaw in Flaw), 0))
        self._complaints = _Complaints()
        self._ear, self._bell = socket.socketpair()
        self._poll = select.poll()
        for one in (self._ear, self._bell):
            one.settimeout(0)
        for one in (self._ear, *self._sockets):
            self._poll.register(one, select.POLLIN)
        self._closed = False
        self._names = PeerNames([split_place(peer) for peer in address.peers], resolve=resolve, clock=clock)
        self._sources = self._known_sources()
        """Where datagrams of a peer come from -> its place. Renewed at each look: no stranger must make us search."""
        _links.add(self)

    # Questions

    @property
    def memory(self) -> bytes:
        return self._kept.memory

    @property
    def heard_at(self) -> Mapping[int, float]:
        heard_at = dict(self._taken_at)
        for place in self.silent & self._asking_at.keys():  # Only for silent peers: an Ask may be a replay.
            heard_at[place] = max(self._asking_at[place], heard_at.get(place, -inf))
        return heard_at

    @property
    def silent(self) -> frozenset[int]:
        return self._names.silent

    @property
    def doubts(self) -> Sequence[str]:
        found = []
        if not self._at.key_file:
            found.append(
                "the peers have no key, so every user of this host can make leaders: name a file with "
                "--key-file PATH, or ?key_file=PATH in an address"
            )
        if self._at.bind and not self._at.is_loopback:
            found.append(
                f"bind={self._at.bind} lets two hosts run one peer: start each on one host only, because it is found "
                "out only when both are heard"
            )
        here = [one.getsockname() for one in self._sockets]
        near = ", ".join(spelled(address) for address in here if _is_loopback(address))
        if near and not self._at.is_loopback:
            found.append(
                f"this member listens at {near}, an address of loopback, where no other host reaches it: fix what "
                f"{self._at.peers[self.place]} is in /etc/hosts, or say with --bind HOST:PORT, or ?bind=HOST:PORT in "
                "an address, where to listen"
            )
        if self._listed and not {*map(_family, self._listed)} & {*map(_family, here)}:
            every = "[::]" if _family(self._listed[0]) is socket.AF_INET6 else "0.0.0.0"  # noqa: S104 - for people.
            found.append(
                f"bind={self._at.bind} is of the other family of addresses than {spelled(self._listed[0])}, where its "
                f"peers send to, so this member hears nothing: listen at {every}:{split_place(self._at.bind)[1]}"
            )
        if self._at.state and self._kept.is_first:
            found.append(
                f"no votes were found in {self._kept.path}: that is fine at a first start, but if this member ran "
                "before, they are lost, and it may vote twice: see docs/peers.md, A lost folder"
            )
        return [*found, *self._kept.doubts]

    # The port

    def say(self, word: bytes) -> None:
        self._require_open()
        self._word = word

    def wait(self, timeout: float) -> None:
        self._require_open()
        for number, _ in self._poll.poll(timeout * 1000):
            if number == self._ear.fileno():
                with contextlib.suppress(BlockingIOError):
                    while self._ear.recv(4096):
                        pass

    def take(self) -> list[Heard | Notice]:
        self._require_open()
        taken: list[Heard | Notice] = []
        for one in self._sockets:
            for _ in range(TAKE_MAX):
                try:
                    datagram, source = one.recvfrom(DATAGRAM_MAX + 1)
                except BlockingIOError:
                    break
                except OSError:
                    continue  # The network's error about something that was sent: it was lost, like others are.
                self._judge(datagram, source, taken)
        if (now := self._clock()) >= self._look_at:
            self._look_at = now + LOOK_EVERY
            self._look(now, taken)
        taken += self._names.news()
        return taken

    def send(self, to: int, body: bytes) -> None:
        self._require_open()
        assert to != self.place, "a member says nothing to itself"
        self._put(to, self._seal.seal(to, body))

    def keep(self, memory: bytes) -> None:
        self._require_open()
        self._kept.keep(memory)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # Closed, or so full of wakes that another one adds nothing.
            self._bell.send(b"\0")

    def close(self) -> None:
        if self._closed:
            return
        self.let_go()
        self._names.close()

    def let_go(self) -> None:
        """Close all descriptors. In a forked child nothing else is needed: the parent goes on with its own."""
        self._closed = True
        for one in (*self._sockets, *self._mouths.values(), self._ear, self._bell):
            one.close()
        self._kept.close()

    # Receiving

    def _judge(self, datagram: bytes, source: SocketAddress, taken: list[Heard | Notice]) -> None:
        opened = self._seal.open(datagram)
        now = self._clock()
        if opened.flaw is not None:
            self._refuse(opened.flaw, opened.sender, opened.size, source, now, taken)
        if opened.content in {Content.BODY, Content.ASKED, Content.HEARD}:
            self._taken_at[opened.sender] = now
            self.refusals.pop(opened.sender, None)
        match opened.content:
            case Content.BODY:
                self.counts["taken"] += 1
                taken.append(Heard(opened.sender, opened.body))
            case Content.ASKED:
                if opened.body:
                    self.words[opened.sender] = opened.body
                else:  # A process of an older release may have replaced one that said something.
                    self.words.pop(opened.sender, None)
            case Content.ASKING:
                self._asking_at[opened.sender] = now
            case Content.HEARD:
                self._answered_at[opened.sender] = now
            case Content.REPLACED:
                raise Replaced(
                    f"the place {self._at.peers[self.place]} among the peers of {self._at.group} was wanted",
                    f"{self._at.peers[opened.sender]} says that another process has taken it",
                    "run one process for each peer of the list",
                )
        if opened.reply:
            self._put(opened.sender, opened.reply)

    def _refuse(
        self, why: Flaw, sender: int, size: int, source: SocketAddress, now: float, taken: list[Heard | Notice]
    ) -> None:
        reason = why.name.lower()
        self.counts[f"refused.{reason}"] += 1
        place = sender if sender != STRANGER else self._sources.get(source[:2], STRANGER)
        is_heard = now < self._taken_at.get(place, -inf) + ASK_AFTER + SILENT_AFTER
        if is_heard and sender == STRANGER:
            place = STRANGER  # Its address may be forged. A peer that is not heard most often sends from its own.
        if place != STRANGER and not is_heard and why not in USUAL:
            self.refusals[place] = reason
        times = self._complaints.note((reason, place), now, need=MANY if why in USUAL else 1)
        if not times:
            return
        fields: dict[str, object] = {"reason": reason, "why": why.value, "source": spelled(source), "times": times}
        if place != STRANGER:
            fields["peer"] = self._at.peers[place]
        if size:
            fields |= {"peers": len(self._at.peers), "theirs": size}
        taken.append(Notice("peers.refused", fields))

    def _known_sources(self) -> dict[tuple[str, int], int]:
        return {address[:2]: place for place in self._others for address in self._names.addresses(place)}

    # Sending

    def _put(self, to: int, datagram: bytes) -> None:
        addresses = self._allowed(to)
        turn = self._turns[to]
        for i in range(len(addresses)):
            target = addresses[(turn + i) % len(addresses)]
            try:
                mouths = self._mouths_for(target)
            except OSError:
                continue  # This host lacks that family, or has no sockets left.
            for mouth in mouths:
                with contextlib.suppress(OSError):  # No route to it, or no room: another address may do.
                    mouth.sendto(datagram, target)
                    self.counts["sent"] += 1
                    return
        self.counts["unsent"] += 1

    def _allowed(self, place: int) -> Sequence[SocketAddress]:
        """The addresses of a place that may be used. Without a key, only those on loopback."""
        addresses = self._names.addresses(place)
        return addresses if self._at.key_file else [address for address in addresses if _is_loopback(address)]

    def _mouths_for(self, target: SocketAddress) -> Sequence[socket.socket]:
        """The sockets to send from, best first: peers know this member by the address where it listens."""
        family, is_near = _family(target), _is_loopback(target)
        if own := [one for one in self._sockets if one.family == family]:
            # The kernel lets nothing that is sent from loopback leave this host.
            return sorted(own, key=lambda one: _is_loopback(one.getsockname()) is not is_near)
        if family not in self._mouths:
            self._mouths[family] = socket.socket(family, socket.SOCK_DGRAM)
            self._mouths[family].settimeout(0)
        return [self._mouths[family]]

    def _look(self, now: float, taken: list[Heard | Notice]) -> None:
        silent = []
        for place in self._others:
            is_due, has_news = now >= self._answered_at[place] + ASK_AFTER, False
            if now >= self._answered_at[place] + ASK_AFTER + SILENT_AFTER:
                silent.append(place)
                self._turns[place] += 1
            elif self._seal.knows(place):
                has_news, self._said[place] = self._said[place] != self._word, self._word
            if is_due or has_news:
                self._put(place, self._seal.ask(place, self._word))
        self._names.silent = frozenset(silent)
        self._sources = self._known_sources()
        if not self._at.key_file:
            self._tell_of_strays(now, taken)
        if not self._at.bind:
            self._follow(now, taken)

    def _tell_of_strays(self, now: float, taken: list[Heard | Notice]) -> None:
        for place, peer in enumerate(self._at.peers):
            far = [address for address in self._names.addresses(place) if not _is_loopback(address)]
            if far and (times := self._complaints.note(("keyless", place), now)):
                fields = {"peer": peer, "addresses": ", ".join(map(spelled, far)), "times": times}
                taken.append(Notice("peers.keyless", fields))

    def _follow(self, now: float, taken: list[Heard | Notice]) -> None:
        """Listen where this member's own name leads now, if that is another place than before."""
        wanted = self._allowed(self.place)
        here = {one.getsockname()[:2] for one in self._sockets}
        fresh = [address for address in wanted if address[:2] not in here]
        bound = []
        for address in fresh:
            try:
                bound.append(_socket_at(address))
            except OSError as error:
                # If one of two addresses could never be bound, that is not reported each time: nothing has changed.
                if not any(address[:2] in here for address in wanted) and (
                    times := self._complaints.note(("unbound", self.place), now)
                ):
                    fields = {"address": spelled(address), "error": error.strerror, "times": times}
                    taken.append(Notice("peers.unbound", fields))
        if not bound:
            return
        kept = {address[:2] for address in wanted}
        for one in [one for one in self._sockets if one.getsockname()[:2] not in kept]:
            self._poll.unregister(one)
            self._sockets.remove(one)
            one.close()
        for one in bound:
            self._poll.register(one, select.POLLIN)
            self._sockets.append(one)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the link {self.address} was wanted", "it was closed before", "open it again")


class _Complaints:
    """How often each thing happened, and whether a report is due. Bounded by the number of kinds and peers."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], tuple[float, int, bool]] = {}

    def note(self, what: tuple[str, int], now: float, *, need: int = 1) -> int:
        """Note one more occurrence. Returns the number since the last report, if a report is due now; else 0."""
        began, times, told = self._since.get(what, (now, 0, False))
        if now >= began + TELL_EVERY:
            began, told = now, False
            times = times if need == 1 else 0
        times += 1
        is_due = not told and times >= need
        self._since[what] = (began, 0 if is_due else times, told or is_due)
        return times if is_due else 0


_links: "weakref.WeakSet[PeerSockets]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A child that kept them would hold the address and the memory after this process is gone.
    for link in list(_links):
        link.let_go()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _folder(address: PeersAddress) -> Path:
    return Path(address.state) if address.state else default_folder()


def _bound(address: PeersAddress, place: int, resolve: Resolve) -> list[socket.socket]:
    """A socket for each address that this member has on this host."""
    text = address.bind or address.peers[place]
    try:
        wanted = resolve(*split_place(text))
    except (OSError, UnicodeError) as error:
        raise _unbound(text, f"its name does not resolve ({error})", "correct it, or ask again when it does") from None
    if not address.key_file and (far := [one for one in wanted if not _is_loopback(one)]):
        found = f"it leads off loopback ({', '.join(map(spelled, far))}), and the peers have no key"
        remedy = "fix /etc/hosts; or name a key's file with --key-file PATH, or ?key_file=PATH, alike for all peers"
        raise _unbound(text, found, remedy)
    bound: list[socket.socket] = []
    failed: OSError | None = None
    for one in wanted:
        try:
            bound.append(_socket_at(one))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                for other in bound:
                    other.close()
                raise _unbound(
                    text, "another process listens there", "end it: two processes of one peer would vote twice"
                ) from None
            failed = error
    if bound:
        return bound
    if failed is not None and failed.errno != errno.EADDRNOTAVAIL:
        raise _unbound(text, f"it cannot be listened at ({failed.strerror})", "correct it, or let this user do that")
    remedy = "start it on its own host, or say with --bind, or ?bind=HOST:PORT, where this host listens for it"
    raise _unbound(text, f"that is not an address of this host ({', '.join(map(spelled, wanted))})", remedy)


def _unbound(place: str, found: str, remedy: str) -> PeersUnusable:
    return PeersUnusable(f"the place {place} of this member was wanted", found, remedy)


def _is_here(addresses: Sequence[SocketAddress]) -> bool:
    for address in addresses:
        with contextlib.suppress(OSError):
            _socket_at((address[0], 0, *address[2:])).close()
            return True
    return False


def _socket_at(address: SocketAddress) -> socket.socket:
    one = socket.socket(_family(address), socket.SOCK_DGRAM)
    try:
        one.settimeout(0)
        if one.family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # Or [::] would take the place of 0.0.0.0, too.
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        one.bind(address)
    except BaseException:
        one.close()
        raise
    return one


def _family(address: SocketAddress) -> socket.AddressFamily:
    return socket.AF_INET6 if len(address) == 4 else socket.AF_INET


def _is_loopback(address: SocketAddress) -> bool:
    return address[0].startswith("127.") or address[0] == "::1"  # As sockets spell it; this runs for each datagram.
