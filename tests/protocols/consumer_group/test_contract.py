"""Both borrowed protocols follow the files of `rules/`, and refuse topics of another size.

The rules that begin with `contract` are the same in both files: a leader finishes, gives back, closes and ends.
"""

from pathlib import Path

import pytest

from neli_router.errors import GroupMismatch
from tests.protocols.consumer_group.stage import begun, played
from tests.protocols.rules import Rule, rules_in

RULES = Path(__file__).parent / "rules"


@pytest.mark.parametrize("rule", rules_in(RULES / "neli.txt", RULES / "fast_neli.txt"))
def test_a_member_follows_the_rule(rule: Rule, pytestconfig: pytest.Config) -> None:
    rule.require(played, pytestconfig)


@pytest.mark.parametrize("protocol", ["exclusive", "fast-neli"])
def test_a_topic_with_another_number_of_partitions_is_refused(protocol: str) -> None:
    """Members that know the new number would map roles to other partitions, and both owners would be right."""
    with pytest.raises(GroupMismatch, match=r"M=4 partitions was wanted.* but it has 6") as caught:
        begun(protocol, partitions=6)
    assert "give all of them the layout" in caught.value.remedy
