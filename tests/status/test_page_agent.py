"""The status page of a real agent, over a real ledger, while processes are killed and wishes are made.

this process: an agent "a" on a TCP port <--events-- the page, in a browser
another one:  a member "b" of the same group, which is killed
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neli_router.config.agent_options import AgentOptions
from tests.support.agents.running import PARTITIONS, STEADY, TOKEN, Running, configured, running
from tests.support.browsing import Keys, Page
from tests.support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.process]

OTHER = """
import sys
from pathlib import Path
from neli_router.member.member import Member
from tests.support.agents.running import STEADY, configured

member = Member(configured(Path(sys.argv[1]), sys.argv[2], lease=STEADY))
sys.stdin.read()
member.close()
"""


@pytest.fixture(name="agent")
def _agent(tmp_path: Path) -> Iterator[Running]:
    options = AgentOptions(socket=str(tmp_path / "agent.sock"), listen="127.0.0.1:0", token=TOKEN)
    with running(configured(tmp_path, lease=STEADY), options) as agent:
        agent.await_ready()
        yield agent


def test_wishes_are_refused_in_the_agents_words_or_move_what_was_said_and_a_takeover_after_a_kill_is_followed(
    agent: Running, page: Page, tmp_path: Path
) -> None:
    """The agent's own list of moves is the reference. The page gets its moves only from the stream."""

    def owned(name: str) -> int:
        return page.owners().count(name)

    page.open(agent.address)
    page.give_token("another-token-than-this-one")
    page.await_text("#token-error", "Found another one was given")
    page.press(TOKEN, Keys.ENTER)
    page.await_text("#unlock", "Forget token")
    assert PARTITIONS == owned("a")

    page.click('tr[data-member="a"] .acts button + button')
    page.press("000000000")
    page.await_text("#wish-error", "Wanted", "Found", "Remedy", "a whole number from 0 to 1000000")
    page.press(Keys.BACKSPACE, Keys.BACKSPACE, Keys.BACKSPACE)
    page.await_text("#wish-summary", "This will move nothing now.")
    page.click("#wish-confirm")
    page.await_text('tr[data-member="a"] td:nth-child(4)', "1 000 000")
    with agent.client() as client:
        client.post("/v1/weigh", json={"name": "a", "weight": None})

    command = [sys.executable, "-c", OTHER, str(tmp_path), "b"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE) as process:
        try:
            until(lambda: PARTITIONS // 2 == owned("b"), "a fair share of b")
            assert ["a", "b"] == page.members()
            page.click('tr[data-member="b"] .drain')
            page.await_text("#wish-summary", "This will move 4 partitions:")
            page.await_text("#wish-moves", "b \u2192 a 4 partitions:")
            assert PARTITIONS // 2 == owned("b")
            page.click("#wish-confirm")
            page.await_hidden("#wish")
            until(lambda: PARTITIONS == owned("a"), "what was announced")
            page.await_text('tr[data-member="b"]', "drained", "Undrain\u2026")
            page.click('tr[data-member="b"] .drain')
            page.await_text("#wish-summary", "This will move 4 partitions:")
            page.click("#wish-confirm")
            until(lambda: PARTITIONS // 2 == owned("b"), "its share again")
        finally:
            process.kill()
        until(lambda: PARTITIONS == owned("a"), "the takeover")
    with agent.client() as client:
        moves = client.get("/v1/moves").json()["moves"]
        terms = [cell["term"] for cell in client.get("/v1/table").json()["partitions"]]
    assert ["b", "a", "expire", "a"] == [moves[-1][part] for part in ("source", "target", "cause", "by")]
    newest = page.text("#moves li")
    assert "b was expired by a \u2192 a 4 partitions" in newest
    assert f"term {terms[moves[-1]['partitions'][0]]} " in newest
    for partition in moves[-1]["partitions"]:
        assert f"owner a, term {terms[partition]}, since" in page.label(partition)
    assert ["a"] == page.members()
    assert page.was_never_reloaded
