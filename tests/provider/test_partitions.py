"""Keys of asset events map to the same partitions as in the group's members, wherever Airflow maps them."""

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, Asset
from airflow.sdk import ChainMapper, FixedKeyMapper, IdentityMapper, PartitionedAssetTimetable, RollupMapper
from airflow.serialization.decoders import decode_partition_mapper, decode_window
from airflow.serialization.encoders import encode_partition_mapper, encode_window
from hypothesis import given
from hypothesis import strategies as some

from airflow_provider._arguments import asked_role, configured_layout, layout_of_run
from airflow_provider.partitions import AllPartitions, SlotPartitionMapper
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from tests.support.spellings import SPELLINGS, require_same

pytestmark = pytest.mark.airflow

EIGHT = Layout(partitions=8)
ODD = Layout(slots=1000, partitions=7, tags=True)


@given(some.text())
@pytest.mark.parametrize("layout", [EIGHT, ODD])
def test_a_key_gets_the_partition_that_members_give_it(layout: Layout, key: str) -> None:
    assert str(layout.partition(key)) == SlotPartitionMapper(layout).to_downstream(key)


def test_a_mapper_and_a_window_travel_with_their_dag_and_a_roll_up_wants_each_partition() -> None:
    for most in (None, 3):
        there = decode_partition_mapper(encode_partition_mapper(SlotPartitionMapper(ODD, max_downstream_keys=most)))
        assert isinstance(there, SlotPartitionMapper)
        assert (ODD, most) == (there.layout, there.max_downstream_keys)
    window: Any = decode_window(encode_window(AllPartitions(EIGHT)))
    assert (AllPartitions, EIGHT) == (type(window), window.layout)
    roll_up = RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=window)
    rolled: Any = decode_partition_mapper(encode_partition_mapper(roll_up))
    assert {str(partition) for partition in range(8)} == rolled.to_upstream("all")


@pytest.mark.parametrize(("word", "text", "expected"), SPELLINGS)
def test_each_spelling_means_what_it_does_elsewhere_or_is_rejected(word: str, text: str, expected: int | None) -> None:
    def airflow(word: str, text: str) -> int:
        given: Any = {word: text}
        return Layout().partition_of_role(asked_role(**given))

    require_same(airflow, word, text, expected)


def test_the_layout_is_by_default_that_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Layout() == configured_layout()
    for name, value in {"SLOTS": "1000", "PARTITIONS": "7", "TAGS": "True"}.items():
        monkeypatch.setenv(f"AIRFLOW__NELI__{name}", value)
    assert ODD == SlotPartitionMapper().layout == AllPartitions().layout
    sent = encode_partition_mapper(SlotPartitionMapper())
    monkeypatch.setenv("AIRFLOW__NELI__PARTITIONS", "9")  # Another process, configured differently, maps alike.
    there: Any = decode_partition_mapper(sent)
    assert ODD == there.layout
    monkeypatch.setenv("AIRFLOW__NELI__PARTITIONS", "0")
    with pytest.raises(ConfigError, match="partitions=0 must be a whole number of at least 1"):
        AllPartitions()


def test_a_task_can_learn_by_which_layout_its_run_was_made() -> None:
    ours: Any = SlotPartitionMapper(EIGHT)
    prices, other = Asset("prices"), Asset("other")
    for mappers, expected in (
        ({"default_partition_mapper": ours}, EIGHT),
        ({"partition_mapper_config": {prices: ours}}, EIGHT),
        ({"default_partition_mapper": ChainMapper(IdentityMapper(), ours)}, EIGHT),
        ({"default_partition_mapper": ChainMapper(ours, IdentityMapper())}, None),
        ({}, None),
    ):
        schedule: Any = PartitionedAssetTimetable(assets=prices & other, **mappers)
        assert expected == layout_of_run(DAG("by_partition", schedule=schedule))
    assert None is layout_of_run(DAG("plain", schedule=None))
    assert None is layout_of_run(None)
