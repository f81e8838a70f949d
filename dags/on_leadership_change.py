"""On leadership change: a run of this Dag for each new leader of a role, triggered by push, without polling.

    agent --push--> OwnershipTrigger, in the triggerer --event, with a payload--> asset --> run

A triggerer that is killed at the wrong moment may report a change twice, under the same term. A leader never has a
lower term than its predecessor. So a task that must act once for each leader stores the highest term that it has seen.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider.triggers.neli import OwnershipTrigger

ROLE = "nightly"

leadership = Asset(
    f"leadership_of_{ROLE}",
    watchers=[AssetWatcher("change", trigger=OwnershipTrigger(role=ROLE, on=["acquired", "lost"]))],
)

with DAG("on_leadership_change", schedule=[leadership], start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):

    @task
    def tell(triggering_asset_events: Mapping[Asset, Sequence[Any]] | None = None) -> list[dict[str, Any]]:
        told = [event.extra["payload"] for events in (triggering_asset_events or {}).values() for event in events]
        for change in told:
            logging.getLogger(__name__).info(
                "%s is %s by %s, under term %d", ROLE, change["event"], change["member"], change["term"]
            )
        return told

    tell()
