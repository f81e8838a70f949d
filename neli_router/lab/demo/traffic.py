"""The traffic: keys that are routed throughout, whatever happens to the members.

    round: a batch of keys --Router.owner, for each--> answers --> counts    ROUND_EVERY    the next round ...

The router observes the ledger from the demo's own process, without being a member. For a while after a kill -9 its
answers are outdated, because no process knows yet. That is not an error. A term that goes back would be an error, and
so would a missing answer.

Everything is counted on one thread; other threads read it at any time and see numbers that may be a round old.
"""

import threading
from dataclasses import dataclass, field
from random import Random
from time import perf_counter

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.core.closing import Closing
from neli_router.errors import NeliError
from neli_router.router.router import Router
from neli_router.router.table import Owner

__all__ = ["LookUpLoop", "LookUps"]

KEYS = 4096
"""Enough to ask for each of 256 partitions about sixteen times in one pass through all keys."""

BATCH = 512
"""Keys in a round, which takes a fraction of a millisecond."""

ROUND_EVERY = 0.003
"""The pause between two rounds. Without it, the demo would show how members suffer from a busy core."""

SAMPLES = 3
"""Number of keys whose owner is shown."""


@dataclass(slots=True)
class LookUps:
    """The look-ups of the demo's router, counted."""

    lookups: int = 0
    seconds: float = 0.0
    """Spent in look-ups only."""
    answers: dict[str, int] = field(default_factory=dict)
    """Answers that named each member."""
    unanswered: int = 0
    """Look-ups that raised NoOwner, StaleTable or another error."""
    why_unanswered: str = ""
    outdated: int = 0
    """Answers that named a member whose process was dead or stopped, before the others had noticed."""
    outdated_for: float = 0.0
    """The longest time after which an answer was still outdated."""
    terms_lowered: int = 0
    """Answers with a lower term for a partition than an earlier answer."""
    samples: dict[str, str] = field(default_factory=dict)
    """Some keys, and the member that each was last routed to."""


class LookUpLoop(Closing):
    """Routes keys until `end`, and counts the results in `routed`. Raises what a Router raises."""

    def __init__(self, config: Config, rng: Random, routed: LookUps) -> None:
        self.absent: dict[str, float] = {}
        """Members whose process was killed or stopped, and since when. Set by the story."""
        self._keys = [f"user-{number}" for number in rng.sample(range(10_000), KEYS)]
        self._routed = routed
        self._terms: dict[int, int] = {}
        self._router = Router(config)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-traffic", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.end()
        self._router.close()

    def end(self) -> None:
        """Stop looking up. Calling it twice is fine."""
        self._ending.set()
        self._thread.join()

    def refusal(self) -> str:
        """The error that a look-up raises now, and why; empty if it raises none."""
        try:
            self._router.owner(self._keys[0])
        except NeliError as error:
            return f"{type(error).__name__}, because {error.found}"
        return ""

    def _run(self) -> None:
        at = 0
        while not self._ending.wait(ROUND_EVERY):
            self._round(self._keys[at : at + BATCH])
            at = (at + BATCH) % len(self._keys)

    def _round(self, batch: list[str]) -> None:
        owner, routed, answers = self._router.owner, self._routed, []
        started = perf_counter()
        try:
            answers = [owner(key) for key in batch]
        except NeliError:
            answers = self._one_by_one(batch)
        routed.seconds += perf_counter() - started
        routed.lookups += len(batch)
        for answer in answers:
            routed.answers[answer.name] = routed.answers.get(answer.name, 0) + 1
            if (since := self.absent.get(answer.name)) is not None:
                routed.outdated += 1
                routed.outdated_for = max(routed.outdated_for, host_clock() - since)
            if answer.term < self._terms.get(answer.partition, 0):
                routed.terms_lowered += 1
            self._terms[answer.partition] = answer.term
        for key in self._keys[:SAMPLES]:
            try:
                routed.samples[key] = owner(key).name
            except NeliError:
                routed.samples[key] = "nobody"

    def _one_by_one(self, batch: list[str]) -> list[Owner]:
        answers = []
        for key in batch:
            try:
                answers.append(self._router.owner(key))
            except NeliError as error:
                self._routed.unanswered += 1
                self._routed.why_unanswered = str(error)
        return answers
