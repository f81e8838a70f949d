"""A bad switch: it loses frames, doubles them, and lets them overtake each other, as much as a test asks for.

    m1 --frame--> thread --lost? doubled? how late?--> m2        all cables of a Network end here, not in its bridge
                    '-- held: kept until it is released, and then sent all together

Kernels can do that too (netem), if it was built in; our own switch is available wherever a Network is. It carries some
thousand frames a second, many times what a small group of peers sends. The seed draws which frames are affected, as far
as they arrive in the same order.
"""

import heapq
import random
import select
import socket
import threading
from contextlib import ExitStack
from itertools import count

from neli_router.core.clock import host_clock
from neli_router.core.closing import Closing
from tests.support.servers.network import Network

__all__ = ["BadSwitch"]

FRAME_MAX = 65535
ROUND = 0.05
"""Maximum seconds that the thread waits, and therefore how long it takes to end."""

KEPT_MAX = 10_000
"""Frames. A held peer sends some hundred during a fault; the oldest are lost first."""

ETHERTYPE, IPV4 = slice(12, 14), b"\x08\x00"
PROTOCOL, UDP = 23, 17
CHECKSUM = slice(40, 42)


class BadSwitch(Closing):
    """Works from its construction until `close`. It begins as a good switch; set its faults at any time."""

    def __init__(self, network: Network, *, seed: int) -> None:
        self.loss = self.doubled = 0.0
        """Probabilities."""
        self.late = 0.0
        """Seconds: each frame takes a random time from 0 to this."""
        self.held: frozenset[str] = frozenset()
        """The hosts whose frames wait here, like in an oversized buffer: nothing is lost, and everything is old."""
        self.carried = self.lost = 0
        self._rng = random.Random(seed)
        self._order = count()
        self._due: list[tuple[float, int, socket.socket, bytes]] = []
        self._kept: list[tuple[str, socket.socket, bytes]] = []
        """Source, destination socket, and the frame."""
        self._macs = {network.mac(host): host for host in network.hosts}
        self._stack = ExitStack()
        self._ends = self._stack.enter_context(network.unplugged())
        self._over = False
        self._thread = threading.Thread(target=self._run, name="bad-switch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._thread.join()
            self._stack.close()

    def heal(self) -> None:
        self.loss = self.doubled = self.late = 0.0
        self.held = frozenset()

    def _run(self) -> None:
        poll = select.poll()
        for end in self._ends.values():
            poll.register(end, select.POLLIN)
        by_number = {end.fileno(): (host, end) for host, end in self._ends.items()}
        while not self._over:
            rest = self._due[0][0] - host_clock() if self._due else ROUND
            for number, _ in poll.poll(max(0.0, min(ROUND, rest)) * 1000):
                self._take(*by_number[number])
            self._release()
            while self._due and self._due[0][0] <= host_clock():
                _, _, end, frame = heapq.heappop(self._due)
                self._put(end, frame)

    def _take(self, source: str, end: socket.socket) -> None:
        while True:
            try:
                frame, address = end.recvfrom(FRAME_MAX)
            except (BlockingIOError, OSError):
                return
            host = self._macs.get(frame[:6])
            if address[2] != socket.PACKET_OUTGOING and host is not None:  # Dropped if the host is cut off.
                self._kept.append((source, self._ends[host], _complete(frame)))

    def _release(self) -> None:
        """Carry what is no longer held, in the order in which it arrived."""
        held = self.held  # Read once: another thread sets it.
        due = [(end, frame) for source, end, frame in self._kept if source not in held]
        self._kept = [kept for kept in self._kept if kept[0] in held][-KEPT_MAX:]
        for end, frame in due:
            self._carry(end, frame)

    def _carry(self, end: socket.socket, frame: bytes) -> None:
        if self._rng.random() < self.loss:
            self.lost += 1
            return
        for _ in range(1 + (self._rng.random() < self.doubled)):
            at = host_clock() + self.late * self._rng.random()
            heapq.heappush(self._due, (at, next(self._order), end, frame))

    def _put(self, end: socket.socket, frame: bytes) -> None:
        try:
            end.send(frame)
            self.carried += 1
        except OSError:  # The queue is full: a real switch loses frames then, too.
            self.lost += 1


def _complete(frame: bytes) -> bytes:
    """Without the UDP checksum, which the kernel has left to a network card; IPv4 allows a frame without one."""
    if frame[ETHERTYPE] != IPV4 or frame[PROTOCOL] != UDP:
        return frame
    whole = bytearray(frame)
    whole[CHECKSUM] = bytes(2)
    return bytes(whole)
