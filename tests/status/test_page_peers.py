"""The status page of a group without a broker, which one agent after the other leaves."""

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.agent.test_peers import Group
from tests.member.test_peer_footing import PARTITIONS
from tests.support.browsing import Page
from tests.support.waiting import until


@pytest.mark.browser
def test_the_page_shows_peers_their_leads_who_is_drained_and_who_is_gone(tmp_path: Path, page: Page) -> None:
    with ExitStack() as stack:
        group = Group(tmp_path, stack, has_port=True)
        places = group.places
        group.await_even()
        group.await_well(3)
        page.open(group.agents[0].address)
        page.await_text("#fact-peers", "Peers that answer 3 of 3")
        page.await_text("#fact-partitions", f"Led {PARTITIONS} of {PARTITIONS}")
        page.await_text("#peers-count", "3 of 3 answer, 2 are a majority")
        page.await_text("#borrowed", "as this agent's own member sees them", "neli rebalance")
        # No mention of anything that such a group lacks.
        assert not [word for word in ("ledger", "record", "broker", "Witness", "Lag") if word in page.text("body")]
        assert not page.is_shown(".panel.members")
        until(lambda: ["this agent", "answers", "answers"] == page.texts("#peers .state"), "what they are")
        until(lambda: None not in page.owners(), "a leader of each")
        assert set(page.owners()) <= set(places)
        until(lambda: re.search(r" leads\b", page.text("#moves li")), "the last move")
        group.say("drain", "m0", "--yes")
        page.await_text("#peers .state", "this agent, drained: leads only while no other can")
        until(lambda: places[0] not in page.owners(), "others to lead")
        group.say("drain", "m0", "--undo")
        until(lambda: "this agent" == page.texts("#peers .state")[0], "the end of the drain")

        until(lambda: None not in page.owners(), "a leader of each")
        group.leave(1)
        page.await_text(f'tr[data-member="{places[1]}"]', "silent: down, or cut off", " ago")
        page.await_text("#fact-peers", "Peers that answer 2 of 3")
        page.await_text("#fact-partitions", f"Led {PARTITIONS} of {PARTITIONS}")
        until(lambda: places[1] not in page.owners(), "others in its place")
        page.await_text("#moves", f"{places[1]} is silent nothing is heard of it")
        until(lambda: not page.is_shown("#why"), "nothing to explain")

        group.leave(2)
        page.await_text("#why", "1 of 3 peers answer, this one included, and it takes 2 to elect a leader")
        page.await_text("#fact-partitions", f"Led 0 of {PARTITIONS}")
        until(lambda: {None} == set(page.owners()), "no owner")
        assert page.was_never_reloaded
