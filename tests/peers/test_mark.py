"""What members of one list must have alike: else they hear nothing of each other, and each says why."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from neli_router.clock import host_clock
from neli_router.config import Config, open_link
from neli_router.electors.events import Heard
from neli_router.errors import PeersUnusable
from neli_router.keyspace import Layout
from neli_router.protocol import Notice
from tests.peers.joining import addresses_at, take_until


def configured(peers: list[str], me: str, folder: Path, options: dict[str, Any], protocol: str) -> Config:
    return Config(f"peers://{','.join(peers)}/jobs?me={me}&state={folder}", protocol=protocol, **options)


def refusals(taken: list[Heard | Notice]) -> set[object]:
    return {one.fields["reason"] for one in taken if isinstance(one, Notice) and one.event == "peers.refused"}


@pytest.mark.parametrize(
    "options",
    [
        {"layout": Layout(partitions=255)},
        {"layout": Layout(slots=1000)},  # Or a key would be in two partitions, which two members lead.
        {"layout": Layout(tags=True)},
        {"replicas": 2},
        {"first_class": 1},
    ],
    ids=str,
)
def test_a_member_that_counts_voters_or_finds_keys_otherwise_is_refused(
    options: dict[str, Any], tmp_path: Path
) -> None:
    protocol = "gossip" if "first_class" in options else "term"
    peers = addresses_at(["127.0.0.1"] * 3)
    with ExitStack() as stack:
        ours, theirs = (
            open_link(configured(peers, me, tmp_path, told, protocol), host_clock)
            for me, told in ((peers[0], {}), (peers[1], options))
        )
        stack.callback(ours.close)
        stack.callback(theirs.close)
        others: list[Heard | Notice] = []  # Taken meanwhile, because each side tells it once a minute.
        taken = take_until(
            lambda taken: bool(refusals(taken) and refusals(others)),
            ours,
            again=lambda: others.extend(theirs.take()),
        )
        assert [{"protocol"}, {"protocol"}] == [refusals(taken), refusals(others)]


def test_what_was_kept_for_another_layout_is_not_taken_over(tmp_path: Path) -> None:
    peers = addresses_at(["127.0.0.1"] * 3)
    link = open_link(configured(peers, peers[0], tmp_path, {}, "term"), host_clock)
    link.keep(b"votes")
    link.close()
    with pytest.raises(PeersUnusable, match="for another protocol, or for another number of partitions"):
        open_link(configured(peers, peers[0], tmp_path, {"layout": Layout(tags=True)}, "term"), host_clock)


def test_the_lease_and_who_stands_first_may_differ(tmp_path: Path) -> None:
    """They are in what members say, or are each one's own, so that they can be changed on one host after another."""
    peers = addresses_at(["127.0.0.1"] * 3)
    other = {"lease": 9.0, "preferences": peers[1]}
    with ExitStack() as stack:
        ours, theirs = (
            open_link(configured(peers, me, tmp_path, told, "term"), host_clock)
            for me, told in ((peers[0], {}), (peers[1], other))
        )
        stack.callback(ours.close)
        stack.callback(theirs.close)
        take_until(lambda _: 1 in ours.heard_at, ours, theirs)
        assert {} == ours.refusals
