"""The status page of a group without a broker: three agents as processes, and one of them is killed.

agent 0 <--events-- the page, in a browser          agents 1, 2: kill -9
"""

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.member.test_peer_footing import Listed
from tests.support.agents.running import TOKEN
from tests.support.browsing import Page
from tests.support.servers.process import free_port
from tests.support.waiting import PATIENCE, until

pytestmark = [pytest.mark.browser, pytest.mark.process]

PARTITIONS = 6
LEASE = 6.0
"""A shorter one ends while other tests take all cores."""


class Agents:
    """One on each place of a list. The first one is asked, and its page is looked at."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.listed, self.address = Listed(folder), f"http://127.0.0.1:{free_port()}"
        self.processes = []
        for i, place in enumerate(self.listed.places):
            words = ["--protocol", "term", "--peers", ",".join(self.listed.places), "--me", place, "--name", f"m{i}"]
            words += ["--lease", str(LEASE), "--layout-partitions", str(PARTITIONS), "--socket", f"{folder}/{i}.sock"]
            words += ["--state", f"{folder}/state{i}", "--beat", "0.5"]
            words += ["--listen", self.address.removeprefix("http://")] if i == 0 else []
            (folder / f"state{i}").mkdir(mode=0o700)
            process = subprocess.Popen(
                [sys.executable, "-m", "neli_router", "agent", *words],
                env={**os.environ, "NELI_TOKEN": TOKEN, "NELI_CONFIG": ""},
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            self.processes.append(process)

    def view(self) -> dict[str, object]:
        try:
            # Loading certificates would take longer than the answer.
            with httpx.Client(transport=httpx.HTTPTransport(verify=False), timeout=PATIENCE) as client:
                answer = client.get(f"{self.address}/v1/status")
        except httpx.TransportError:
            return {}  # It has not begun to answer.
        found: dict[str, object] = answer.json()["peers"] or {}
        return found

    def ask(self, verb: str) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.post(f"{self.address}/v1/{verb}", json={"name": "m0"}, headers=headers, timeout=PATIENCE)
        assert 200 == answer.status_code, answer.text


def test_the_page_shows_peers_their_leads_who_is_drained_and_who_is_killed(tmp_path: Path, page: Page) -> None:
    with ExitStack() as stack:
        agents = Agents(tmp_path, stack)
        places = agents.listed.places
        until(lambda: (3, 0) == (agents.view().get("alive"), agents.view().get("unled")), "a group that is well")
        page.open(agents.address)
        page.await_text("#fact-peers", "Peers that answer 3 of 3")
        page.await_text("#fact-partitions", f"Led {PARTITIONS} of {PARTITIONS}")
        page.await_text("#peers-count", "3 of 3 answer, 2 are a majority")
        page.await_text("#borrowed", "as this agent's own member sees them", "neli rebalance")
        # No word of what such a group does not have.
        assert not [word for word in ("ledger", "record", "broker", "Witness", "Lag") if word in page.text("body")]
        assert not page.is_shown(".panel.members")
        until(lambda: ["this agent", "answers", "answers"] == page.texts("#peers .state"), "what they are")
        until(lambda: None not in page.owners(), "a leader of each")
        assert set(page.owners()) <= set(places)
        until(lambda: re.search(r" leads\b", page.text("#moves li")), "the last move")
        page.resize(420, 1600)
        assert page.run(
            "const one = document.querySelector('#peers-panel .scroll'); return one.scrollWidth <= one.clientWidth"
        )
        assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")

        agents.ask("drain")
        page.await_text("#peers .state", "this agent, drained: leads only while no other can")
        until(lambda: places[0] not in page.owners(), "others to lead")
        agents.ask("undrain")
        until(lambda: "this agent" == page.texts("#peers .state")[0], "the end of the drain")

        until(lambda: None not in page.owners(), "a leader of each")
        killed = 1 if places[1] in page.owners() else 2
        agents.processes[killed].kill()
        page.await_text(f'tr[data-member="{places[killed]}"]', "silent: down, or cut off", " ago")
        page.await_text("#fact-peers", "Peers that answer 2 of 3")
        page.await_text("#fact-partitions", f"Led {PARTITIONS} of {PARTITIONS}")
        until(lambda: places[killed] not in page.owners(), "others in its place")
        page.await_text("#moves", f"{places[killed]} is silent nothing is heard of it")
        until(lambda: not page.is_shown("#why"), "nothing to explain")

        agents.processes[3 - killed].kill()
        page.await_text("#why", "1 of 3 peers answer, this one included, and it takes 2 to elect a leader")
        page.await_text("#fact-partitions", f"Led 0 of {PARTITIONS}")
        until(lambda: {None} == set(page.owners()), "no owner")
        assert page.was_never_reloaded
