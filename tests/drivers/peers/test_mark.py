"""Settings that all members of one list must share: otherwise they hear nothing of each other, and each says why."""

from typing import Any

import pytest

from neli_router.config.config import Config
from neli_router.core.keyspace import Layout


def configured(protocol: str = "term", **options: Any) -> Config:
    peers = "127.0.0.1:7801,127.0.0.1:7802,127.0.0.1:7803"
    return Config.of({"ledger": f"peers://{peers}/jobs?me=127.0.0.1:7801", "protocol": protocol, **options})


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({"layout": Layout(partitions=255)}, True),
        ({"layout": Layout(slots=1000)}, True),  # Otherwise a key would be in two partitions, which two members lead.
        ({"layout": Layout(tags=True)}, True),
        ({"replicas": 2}, True),
        ({"protocol": "gossip"}, True),
        # These are part of what members say, or belong to one member, so they can be changed on one host after another.
        ({"lease": 9.0}, False),
    ],
    ids=str,
)
def test_members_that_count_voters_or_find_keys_otherwise_have_another_mark(
    options: dict[str, Any], *, is_refused: bool
) -> None:
    """A link refuses datagrams and kept votes with another mark: see test_seal.py and test_udp.py."""
    assert is_refused == (configured().peers_mark != configured(**options).peers_mark)
    gossip = configured(protocol="gossip")
    assert gossip.peers_mark != configured(protocol="gossip", first_class=1).peers_mark
