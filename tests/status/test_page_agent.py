"""The status page of a real agent, over a real ledger: the agent grants or refuses what the page sends."""

from pathlib import Path

import pytest

from neli_router.config.agent_options import AgentOptions
from tests.support.agents.running import PARTITIONS, STEADY, TOKEN, configured, running
from tests.support.browsing import Keys, Page


@pytest.mark.browser
def test_a_token_and_wishes_are_refused_in_the_agents_words_or_granted(page: Page, tmp_path: Path) -> None:
    options = AgentOptions(socket=str(tmp_path / "agent.sock"), listen="127.0.0.1:0", token=TOKEN)
    with running(configured(tmp_path, lease=STEADY), options) as agent:
        agent.await_ready()
        page.open(agent.address)
        page.give_token("another-token-than-this-one")
        page.await_text("#token-error", "Found another one was given")
        page.press(TOKEN, Keys.ENTER)
        page.await_text("#unlock", "Forget token")
        assert ["a"] * PARTITIONS == page.owners()

        page.click('tr[data-member="a"] .acts button + button')
        page.press("000000000")
        page.await_text("#wish-error", "Wanted", "Found", "Remedy", "a whole number from 0 to 1000000")
        page.press(Keys.BACKSPACE, Keys.BACKSPACE, Keys.BACKSPACE)
        page.await_text("#wish-summary", "This will move nothing now.")
        page.click("#wish-confirm")
        page.await_text('tr[data-member="a"] td:nth-child(4)', "1 000 000")

        page.click('tr[data-member="a"] .drain')
        page.await_text("#wish-summary", "This will move nothing now.")
        page.click("#wish-confirm")
        page.await_text('tr[data-member="a"]', "drained", "Undrain\u2026")
        page.click('tr[data-member="a"] .drain')
        page.await_text("#wish-summary", "This will move nothing now.")
        page.click("#wish-confirm")
        page.await_text('tr[data-member="a"]', "Drain\u2026")
        page.click_cell(3)
        page.click(".pinning button")
        page.await_text("#wish-summary", "This will move nothing now.")
        page.click("#wish-confirm")
        page.await_text("#detail", "Pinned to a")
        assert page.was_never_reloaded
