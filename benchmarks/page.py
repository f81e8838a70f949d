"""How soon the status page opens, and how soon it shows that another member leads a killed member's partitions.

    opens    a stand-in for the agent (4096 partitions, 200 members) --GET / ... events--> Chromium: all of it drawn
    follows  kill -9 of a member --> a survivor's record in the ledger --> an agent --event--> Chromium: it is shown
                                     |<------------------------- follows_ms ----------------->|

Shown means that, at the beginning of a frame in the browser, the document contains it in the labels of the cells and in
the rows of the members. A script checks each frame and stamps the wall clock, which all processes of a host share. The
record is stamped in this process by a member of the same group, when the member reads it, some milliseconds after the
append.

    opens_ms            from the start of the navigation until all is shown, the median; opens_ms_max the slowest
    follows_ms          from that record until the page of a real agent shows it, the median; follows_ms_max the slowest
    killed_ms           the same from just before the kill; the members are witnesses, so no lease has to run out
    follows_large_ms    from the stand-in's event of a takeover until it is shown among 4096 partitions

The bounds: opens_ms under 2000, follows_ms under 300. It needs Debian's chromium and chromium-driver.
"""

import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from selenium import webdriver

from benchmarks import BenchmarkOptions, Figures, option
from benchmarks._agent import LEASE, PARTITIONS, configured
from neli_router.agent.wire import StatusView
from neli_router.member.member import Member
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Certify, Expire, Record
from tests.support.browsing import missing, started
from tests.support.page_stand_in import StandIn, after_takeover, group
from tests.support.waiting import PATIENCE

__all__ = ["Options", "run"]

ROOT = Path(__file__).resolve().parent.parent

AGENT = """
import sys
from benchmarks._agent import configured
from neli_router.config.agent_options import AgentOptions
from neli_router.agent.server.server import run

folder, address = sys.argv[1:]
token = "a-token-that-nobody-uses"
raise SystemExit(run(configured(folder, "agent"), AgentOptions(f"{folder}/agent.sock", address, token)))
"""

VICTIM = """
import sys
from benchmarks._agent import configured
from neli_router.member.member import Member

member = Member(configured(sys.argv[1], sys.argv[2]))
sys.stdin.read()
member.close()
"""

WATCH = """
window.shown = {};
const look = () => {
  const cells = [...document.querySelectorAll('[data-partition]')];
  const names = [...document.querySelectorAll('#members tbody .name')].map((one) => one.textContent);
  const owned = cells.filter((cell) => cell.ariaLabel?.includes(', owner ')).length;
  const owners = new Set(cells.map((cell) => /, owner (.*), term /.exec(cell.ariaLabel)?.[1]));
  const members = new Set(names);
  const key = `${owned} ${[...members].filter((name) => owners.has(name)).length} ${members.size}`;
  window.newest = { key, members, owners };
  for (const name of window.gone ?? []) {
    if (!members.has(name) && !owners.has(name)) window.shown[`without ${name}`] ??= Date.now();
  }
  window.shown[key] ??= performance.now();
  requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
"""For each frame, notes how many cells are owned, the number of their owners among all members, and since when a
departed member is gone."""


class Hearer:
    """A tap that notes on the wall clock when each record that ends another member was read."""

    def __init__(self) -> None:
        self.ended_at: list[float] = []

    def begin(self, state: State, now: float) -> None:
        pass

    def read(self, records: Sequence[tuple[int, Record | None]], now: float) -> None:
        self.ended_at += [time.time() for _, record in records if isinstance(record, Certify | Expire)]


class Options(BenchmarkOptions):
    opens: int = option(7, "how often the large page is opened")
    kills: int = option(7, "members that are killed")
    partitions: int = option(4096, "of the large group")
    members: int = option(200, "of the large group")


def run(options: Options) -> Figures:
    if why := missing():
        raise SystemExit(f"python -m benchmarks page: {why}")
    large = group(options.members, options.partitions)
    with started() as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        with StandIn(large) as agent:
            opens = [_open(driver, agent.address, large) for _ in range(options.opens)]
            told = [_tell(driver, agent, options.members - 2 - place) for place in range(min(10, options.members - 2))]
            driver.get("about:blank")
        with tempfile.TemporaryDirectory(prefix="neli-") as folder:
            follows, killed = _kill(driver, folder, options.kills)
            driver.get("about:blank")
    return {
        "opens_ms": median(opens),
        "opens_ms_max": max(opens),
        "follows_ms": median(follows),
        "follows_ms_max": max(follows),
        "killed_ms": median(killed),
        "follows_large_ms": median(told),
        "follows_large_ms_max": max(told),
        "large_partitions": options.partitions,
        "large_members": options.members,
        "partitions": PARTITIONS,
        "lease_s": LEASE,
    }


def _open(driver: webdriver.Chrome, address: str, view: StatusView) -> float:
    driver.get(address)
    key = f"{len(view.table.partitions)} {len(view.members)} {len(view.members)}"
    return _stamp(driver, key)


def _tell(driver: webdriver.Chrome, agent: StandIn, dead: int) -> float:
    """Publish a takeover in the large group."""
    name = agent.view.members[dead].name
    _await_gone(driver, name)
    view = after_takeover(agent.view, dead, 0)
    told_at = time.time() * 1000
    agent.tell(view)
    return _stamp(driver, f"without {name}") - told_at


def _kill(driver: webdriver.Chrome, folder: str, kills: int) -> tuple[list[float], list[float]]:
    """The times from each such record, and from each kill, until it was shown."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    hearer = Hearer()
    follows, killed = [], []
    with _process(AGENT, folder, address) as agent, Member(configured(folder, "hearer"), tap=hearer) as member:
        _await(lambda: _answers(address))
        driver.get(f"http://{address}")
        for number in range(kills):
            name = f"victim-{number}"
            with _process(VICTIM, folder, name) as victim:
                _await(lambda: _shares(member.state, name))  # noqa: B023 - it is called immediately.
                _await_gone(driver, name)
                before, killed_at = len(hearer.ended_at), time.time() * 1000
                victim.kill()
                shown_at = _stamp(driver, f"without {name}")
            _await(lambda: len(hearer.ended_at) > before)  # noqa: B023 - as above.
            follows.append(shown_at - hearer.ended_at[before] * 1000)
            killed.append(shown_at - killed_at)
        agent.send_signal(signal.SIGTERM)
        agent.wait(PATIENCE)
    return follows, killed


def _shares(state: State, name: str) -> bool:
    """Whether `name` owns its share, and no handover is under way, which would be news of its own."""
    holder = state.holder(name)
    return holder is not None and holder.incarnation in state.owners and state.owners == state.targets


def _await_gone(driver: webdriver.Chrome, name: str) -> None:
    """Let the page, which shows `name`, note when it no longer does."""
    _await(lambda: driver.execute_script("return newest.members.has(arguments[0])", name))
    driver.execute_script("window.gone = [arguments[0]]", name)


def _stamp(driver: webdriver.Chrome, key: str) -> float:
    """When `key` was first shown, in milliseconds."""
    _await(lambda: driver.execute_script("return window.shown?.[arguments[0]] ?? null", key) is not None)
    return float(driver.execute_script("return shown[arguments[0]]", key))


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as asker:
        return asker.connect_ex((host, int(port))) == 0


def _await(holds: Callable[[], object]) -> None:
    give_up_at, pause = time.monotonic() + PATIENCE, threading.Event()
    while not holds():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"the page did not show the expected state within {PATIENCE:g} s")
        pause.wait(0.01)


@contextmanager
def _process(program: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()
