"""A network of hosts that tests may cut, in one direction or both: namespaces joined by one bridge.

    namespaces m1, k1, ... each with eth0 198.18.71.N -- a bridge, in a namespace of its own

    with Network.started(["m1", "k1"]) as network:
        subprocess.Popen([*network.prefix("m1"), ...])     a process on m1
        with network.entered("m1"): ...                    this thread, and all threads that it starts inside
        network.cut("m1", "k1")       network.lose("m1", "k1")      both ways; only from m1 to k1
        network.mend("m1", "k1")      network.carry("m1", "k1")     undone; `heal` undoes everything

MAC addresses are fixed, and there is no ARP. A lost frame goes to an address without a host, so the sender sees no
error, as with a pulled cable. Nothing outside the namespaces is touched. Names contain the number of the process that
created them, so that the next process can remove what a killed one left behind.

A slow link uses netem's delay if the kernel has netem, otherwise a queue in front of a narrow link (tbf).
"""

import ctypes
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

__all__ = ["Network", "missing"]

NET = "198.18.71"
"""Part of the range that RFC 2544 reserves for tests, which is not routed."""

NOBODY = "02:00:00:00:00:ff"
NAMESPACES = Path("/run/netns")
OURS = re.compile(r"neli-(?P<maker>\d+)-[0-9a-f]{4}-.+")

CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3

DELAYED = "netem delay 40ms 20ms"
NARROW = "tbf rate 160kbit burst 2kb latency 800ms"
"""About three times what a member of a small group needs: small records wait briefly, a snapshot for a while."""


def missing() -> str:
    """Why this network cannot exist here; empty if it can."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 (ip and tc) is not installed"
    name = f"neli-{os.getpid()}-{secrets.token_hex(2)}-probe"
    try:
        _run("ip", "netns", "add", name)
        _batch(name, ["link add eth0 type veth peer name eth1", "link add switch type bridge"])
    except AssertionError as refused:
        return f"no network can be made in a namespace: {str(refused)[:200]}"
    finally:
        _try("ip", "netns", "del", name)
    return ""


class Network:
    """Some hosts by name, at most 200. At first, each reaches all others."""

    def __init__(self, hosts: Sequence[str]) -> None:
        assert 0 < len(set(hosts)) == len(hosts) <= 200
        assert all(re.fullmatch(r"[a-z0-9]{1,12}", host) for host in hosts), "interfaces are named for hosts"
        self.hosts = tuple(hosts)
        self._family = f"neli-{os.getpid()}-{secrets.token_hex(2)}"
        self._switch = f"{self._family}-switch"
        self._lost: Counter[tuple[str, str]] = Counter()
        """(source, target) -> how many faults block this way: if two do, both must end."""
        self._slow: dict[str, str] = {}

    @classmethod
    @contextmanager
    def started(cls, hosts: Sequence[str]) -> Iterator[Self]:
        network = cls(hosts)
        try:
            network.start()
            yield network
        finally:
            network.close()

    def start(self) -> None:
        _sweep()
        for name in (self._switch, *map(self._space, self.hosts)):
            _run("ip", "netns", "add", name)
        _batch(self._switch, ["link add switch type bridge", "link set switch up"])
        for host in self.hosts:
            _batch(
                self._space(host),
                [
                    f"link add eth0 address {self._mac(host)} type veth peer name {host} netns {self._switch}",
                    "link set lo up",
                    "link set eth0 up",
                    f"addr add {self.address(host)}/24 dev eth0",
                    *(self._neighbour(other) for other in self.hosts if other != host),
                ],
            )
            _batch(self._switch, [f"link set {host} master switch", f"link set {host} up"])

    def close(self) -> None:
        """Remove everything. Processes that still run there keep their namespace, but it no longer has a name."""
        for name in (self._switch, *map(self._space, self.hosts)):
            if (NAMESPACES / name).exists():
                _run("ip", "netns", "del", name)

    def address(self, host: str) -> str:
        return f"{NET}.{self.hosts.index(host) + 1}"

    def prefix(self, host: str) -> tuple[str, ...]:
        """The prefix of a command that should run on `host`; the prefix becomes the command, in the same process."""
        return ("ip", "netns", "exec", self._space(host))

    @contextmanager
    def entered(self, host: str) -> Iterator[None]:
        """Put this thread on `host`. Threads and processes that it starts inside stay there forever."""
        with _entered(self._space(host)):
            yield

    def lose(self, source: str, target: str) -> None:
        """From now on, everything that `source` sends to `target` vanishes."""
        self._lost[source, target] += 1
        self._direct(source, target)

    def carry(self, source: str, target: str) -> None:
        """Undo one `lose`."""
        assert self._lost[source, target] > 0, f"nothing is lost from {source} to {target}"
        self._lost[source, target] -= 1
        self._direct(source, target)

    def cut(self, host: str, other: str) -> None:
        """From now on, neither hears the other."""
        self.lose(host, other)
        self.lose(other, host)

    def mend(self, host: str, other: str) -> None:
        """Undo one `cut`."""
        self.carry(host, other)
        self.carry(other, host)

    def slow(self, host: str) -> str:
        """From now on, everything that `host` sends and receives takes longer; returns how that is done."""
        for how in (DELAYED, NARROW):
            if all(
                _try("tc", "-n", space, *f"qdisc replace dev {link} root {how}".split())
                for space, link in self._ends(host)
            ):
                self._slow[host] = how
                return how
        raise AssertionError("neither netem nor tbf is in this kernel")

    def hurry(self, host: str) -> None:
        """Undo a `slow`."""
        if self._slow.pop(host, None):
            for space, link in self._ends(host):
                _run("tc", "-n", space, *f"qdisc del dev {link} root".split())

    def heal(self) -> None:
        """Let every host reach all others again."""
        for (source, target), faults in self._lost.items():
            if faults:
                self._lost[source, target] = 0
                self._direct(source, target)
        for host in list(self._slow):
            self.hurry(host)

    @contextmanager
    def unplugged(self) -> Iterator[dict[str, socket.socket]]:
        """Inside, no cable is in the switch: the caller is the switch, with raw sockets at the cable ends, by host."""
        with ExitStack() as stack:
            for host in self.hosts:
                _run("ip", "-n", self._switch, *f"link set {host} nomaster".split())
                stack.callback(_try, "ip", "-n", self._switch, *f"link set {host} master switch".split())
            ends: dict[str, socket.socket] = {}
            with _entered(self._switch):
                for host in self.hosts:
                    end = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)))
                    end.bind((host, ETH_P_ALL))
                    end.setblocking(False)
                    ends[host] = end
            yield ends

    def mac(self, host: str) -> bytes:
        """The address at the start of frames for `host`."""
        return bytes.fromhex(self._mac(host).replace(":", ""))

    def _space(self, host: str) -> str:
        return f"{self._family}-{host}"

    def _ends(self, host: str) -> Iterable[tuple[str, str]]:
        """Both ends of its cable. Each end delays only what leaves from there."""
        return ((self._space(host), "eth0"), (self._switch, host))

    def _mac(self, host: str) -> str:
        return f"02:00:00:00:00:{self.hosts.index(host) + 1:02x}"

    def _neighbour(self, host: str, *, lost: bool = False) -> str:
        return f"neigh replace {self.address(host)} lladdr {NOBODY if lost else self._mac(host)} dev eth0 nud permanent"

    def _direct(self, source: str, target: str) -> None:
        command = self._neighbour(target, lost=self._lost[source, target] > 0)
        _run("ip", "-n", self._space(source), *command.split())


def _sweep() -> None:
    """Remove what dead processes left behind."""
    for path in NAMESPACES.glob("neli-*"):
        made = OURS.fullmatch(path.name)
        if made is not None and not Path(f"/proc/{made['maker']}").exists():
            _try("ip", "netns", "del", path.name)


@contextmanager
def _entered(space: str) -> Iterator[None]:
    with Path("/proc/thread-self/ns/net").open("rb") as home, (NAMESPACES / space).open("rb") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    # `os.setns` is new in Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _batch(space: str, commands: Sequence[str]) -> None:
    _run("ip", "-n", space, "-batch", "-", told="\n".join(commands) + "\n")


def _run(*command: str, told: str = "") -> None:
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{told}{done.stderr}"


def _try(*command: str) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
