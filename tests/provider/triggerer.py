"""Airflow's triggerer in this process: its real runner, with its shared streams, but without its database.

Triggerer.start(trigger) --kwargs in the form of a database row ------> TriggerRunner --> run_trigger, a task
             events <-----------------------------------------------------'
             store() --"they are in the database"--> the shared stream's acknowledgement
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count
from unittest.mock import patch

from airflow.executors.workloads.trigger import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.trigger import Trigger
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider.triggers import neli
from tests.support.agents.running import PATIENCE
from tests.support.waiting import until_in_loop

__all__ = ["Triggerer", "triggerer"]


class Triggerer:
    """The runner, with the part of its supervisor that a test plays."""

    def __init__(self) -> None:
        self.runner = TriggerRunner()  # type: ignore[no-untyped-call]
        self._numbers = count(1)

    async def start(self, trigger: BaseTrigger, *, timeout_after: datetime | None = None) -> int:
        """Start the trigger; return its number."""
        classpath, arguments = trigger.serialize()
        number = next(self._numbers)
        self.runner.to_create.append(
            RunTrigger(
                id=number,
                classpath=classpath,
                encrypted_kwargs=Trigger.encrypt_kwargs(arguments),
                timeout_after=timeout_after,
            )
        )
        await self.runner.create_triggers()  # type: ignore[no-untyped-call]
        return number

    async def event(self, number: int) -> TriggerEvent:
        """The next event of that trigger, taken from the queue and stored. Raises what ended the trigger without an
        event."""
        found: list[TriggerEvent] = []

        def holds() -> bool:
            for entry in [entry for entry in self.runner.events if entry.trigger_id == number][:1]:
                self.runner.events.remove(entry)
                found.append(entry.event)
                if entry.persist_seq is not None:
                    self.runner._shared_streams.confirm_persisted([entry.persist_seq])
            task = self.runner.triggers[number]["task"]
            if not found and task.done():
                task.result()
            return bool(found)

        await until_in_loop(holds)
        return found[0]

    def is_waiting(self, number: int) -> bool:
        return not self.runner.triggers[number]["task"].done() and not any(
            entry.trigger_id == number for entry in self.runner.events
        )

    async def stop(self, number: int) -> None:
        self.runner.triggers[number]["task"].cancel()
        await asyncio.gather(self.runner.triggers[number]["task"], return_exceptions=True)

    async def close(self) -> None:
        for number in self.runner.triggers:
            await self.stop(number)
        await self.runner._shared_streams.stop_all()


@asynccontextmanager
async def triggerer(*, settle: float = 0.0) -> AsyncIterator[Triggerer]:
    """No worker's process has to end here before its task is resumed, so `settle` is short."""
    one = Triggerer()
    with patch.object(neli, "SETTLE", settle):
        try:
            async with asyncio.timeout(2 * PATIENCE):
                yield one
        finally:
            await one.close()
