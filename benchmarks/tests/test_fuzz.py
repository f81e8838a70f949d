"""The fuzz finds nothing in a few seconds, and finds planted defects."""

import random
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import pytest

from benchmarks import fuzz
from benchmarks._fuzz import MARKER, FuzzPart
from neli_router.core.logs import logger
from neli_router.errors import ConfigError, NeliError
from tests.conftest import require
from tests.support.servers import redis as redis_servers

NOTHING = {"crashes": 0, "secrets_printed": 0}


def found(name: str, *, seconds: float = 2.0) -> dict[str, Any]:
    figures = fuzz.run(fuzz.Options(part=(name,), seconds=seconds))
    assert figures[f"{name}_inputs"], "a fuzz without inputs finds nothing"
    return {figure: figures[figure] for figure in NOTHING}


@pytest.mark.parametrize("name", ["addresses", "datagrams", "http_door", "neli_toml", "records"])
def test_no_input_of_a_few_seconds_crashes_a_door_or_has_it_print_a_secret(name: str) -> None:
    assert found(name) == NOTHING


@pytest.mark.redis
def test_no_junk_in_the_table_of_owners_crashes_its_readers_or_writers() -> None:
    require(redis_servers.missing())
    assert found("redis_table") == NOTHING


def part_of(work: Callable[[random.Random], Iterable[str]]) -> FuzzPart:
    return FuzzPart((ConfigError,), lambda: nullcontext(work))


def figures_of(work: Callable[[random.Random], Iterable[str]]) -> tuple[Any, Any, Any]:
    figures = fuzz.fuzz({"door": part_of(work)}, seconds=60, seed=1, only=7)
    return figures["door_crashes"], figures["door_secrets_printed"], figures["door_refused"]


def refuse(_: random.Random) -> Iterable[str]:
    raise ConfigError(["a lease is missing"])


def refuse_with_the_secret(_: random.Random) -> Iterable[str]:
    raise ConfigError([f"{MARKER} is missing"])


def refuse_because_of_the_secret(_: random.Random) -> Iterable[str]:
    try:
        raise ValueError(MARKER)
    except ValueError as error:
        raise ConfigError(["a lease is missing"]) from error


def raise_what_is_not_documented(_: random.Random) -> Iterable[str]:
    raise NeliError("a", "b", "c")


def end_a_thread_by_an_error(_: random.Random) -> Iterable[str]:
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    return []


def print_to_standard_error(_: random.Random) -> Iterable[str]:
    sys.__stderr__.write(MARKER) if sys.__stderr__ else None
    sys.__stderr__.flush() if sys.__stderr__ else None
    return []


def log(_: random.Random) -> Iterable[str]:
    logger().info("agent.started", token=MARKER)
    return []


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda _: ["fine"], (0, 0, 0)),
        (refuse, (0, 0, 1)),
        (refuse_with_the_secret, (0, 1, 1)),
        (refuse_because_of_the_secret, (0, 1, 1)),
        (raise_what_is_not_documented, (1, 0, 0)),
        (end_a_thread_by_an_error, (1, 0, 0)),
        (print_to_standard_error, (0, 1, 0)),
        (log, (0, 1, 0)),
        (lambda _: [f"a repr with {MARKER}"], (0, 1, 0)),
    ],
)
def test_crashes_and_secrets_are_counted_wherever_they_show(
    work: Callable[[random.Random], Iterable[str]], expected: tuple[int, int, int]
) -> None:
    assert expected == figures_of(work)


def test_an_input_without_an_end_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "HANG_MAX", 0.1)

    def hang(_: random.Random) -> Iterable[str]:
        while True:
            try:
                threading.Event().wait(60)
            except Exception:  # noqa: BLE001, S112 - as code would that goes on whatever happens.
                continue

    assert figures_of(hang) == (1, 0, 0)


def test_the_same_seed_and_number_give_the_same_input_again() -> None:
    drawn: list[float] = []

    def draw(rng: random.Random) -> Iterable[str]:
        drawn.append(rng.random())
        return []

    for _ in range(2):
        figures_of(draw)
    assert drawn[0] == drawn[1]
