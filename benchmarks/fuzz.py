"""Whether any input to a door crashes it, hangs it, or makes it print a secret.

    seed, part, number --> its own random source ------> one input --> a door of ours
                                                                           |--an answer, or a documented error   fine
                                                                           |--another error, or no end           a crash
    the answer, the error, its traceback, the log, standard error ---------'--the marker of a secret in them     printed

Each part (`benchmarks/_fuzz`) draws its inputs from shapes that people write, with accidents and junk. The inputs have
a secret wherever a secret could be, with a marker that no visible text may contain.

The first find at each place is reported on standard error, with the options that reproduce it:

    python -m benchmarks fuzz --part addresses --seed 7 --input 1234        shows that one input's errors in full

`crashes` and `secrets_printed` are the sums, and each part has its own figures. By default, each part takes a minute.
The run that counts is `--seconds 600`.
"""

import faulthandler
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn, TextIO

from benchmarks import BenchmarkOptions, Figures, option
from benchmarks._fuzz import MARKER, FuzzPart, addresses, datagrams, http_door, neli_toml, records, redis_table
from tests.support.waiting import PATIENCE

__all__ = ["PARTS", "Options", "fuzz", "run"]

PARTS: Mapping[str, FuzzPart] = {
    "addresses": FuzzPart(addresses.DOCUMENTED, addresses.opened),
    "datagrams": FuzzPart(datagrams.DOCUMENTED, datagrams.opened),
    "http_door": FuzzPart(http_door.DOCUMENTED, http_door.opened),
    "records": FuzzPart(records.DOCUMENTED, records.opened),
    "redis_table": FuzzPart(redis_table.DOCUMENTED, redis_table.opened),
    "neli_toml": FuzzPart(neli_toml.DOCUMENTED, neli_toml.opened),
}

HANG_MAX = 2 * PATIENCE
"""Seconds for one input. The slowest inputs wait for a second or two; a busy machine must not look like a hang. It is
longer than the wait for an answer, which names the line that waits."""


class Hung(BaseException):
    """An input took longer than HANG_MAX. Code that continues after an `Exception` must not swallow this."""


@dataclass
class _Tally:
    """The outcome of one part's inputs."""

    inputs: int = 0
    refused: int = 0
    crashes: int = 0
    secrets_printed: int = 0
    places: set[str] = field(default_factory=set)
    """Places of finds. Each place is reported once."""


class Options(BenchmarkOptions):
    part: tuple[str, ...] = option((), "only this one; may be repeated", action="extend", choices=sorted(PARTS))
    seconds: float = option(60.0, "for each part")
    seed: int = 1
    input: int | None = option(None, "only the input with this number, reported in full")


def run(options: Options) -> Figures:
    parts = {name: PARTS[name] for name in options.part or PARTS}
    return fuzz(parts, seconds=options.seconds, seed=options.seed, only=options.input)


def fuzz(parts: Mapping[str, FuzzPart], *, seconds: float, seed: int, only: int | None = None) -> Figures:
    """The figures of `parts`, with `seconds` for each. `only` makes one input, and reports everything about it."""
    tallies = {name: _fuzz_part(name, part, seconds, seed, only) for name, part in parts.items()}
    figures: Figures = {
        "crashes": sum(tally.crashes for tally in tallies.values()),
        "secrets_printed": sum(tally.secrets_printed for tally in tallies.values()),
    }
    for name, tally in tallies.items():
        figures |= {f"{name}_inputs": tally.inputs, f"{name}_refused": tally.refused}
        figures |= {f"{name}_crashes": tally.crashes, f"{name}_secrets_printed": tally.secrets_printed}
    return {**figures, "seconds_each": seconds, "seed": seed}


def _fuzz_part(name: str, part: FuzzPart, seconds: float, seed: int, only: int | None) -> _Tally:
    tally = _Tally()
    with _Ears.listening() as ears, part.opened() as attempt:
        ears.heard()  # Output from opening the part belongs to no input.
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            number = tally.inputs if only is None else only
            # Seed with a text, because the hash of a tuple differs between processes.
            source = random.Random(f"{seed}/{name}/{number}")
            shown: list[str] = []
            refused, crash = False, None
            try:
                with _bounded():
                    shown.extend(attempt(source))
            except part.documented as error:
                refused = True
                shown.append(_told(error))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - the purpose is to find unexpected errors.
                crash = error
            crash = ears.crash() or crash
            shown.append(ears.heard())
            tally.inputs += 1
            tally.refused += refused
            if crash is not None:
                tally.crashes += 1
                _tell(tally, ears.terminal, f"{name} crashes", _place(crash), _told(crash), (name, seed, number))
            if printed := [text for text in shown if MARKER in text]:
                tally.secrets_printed += 1
                at = printed[0].index(MARKER)
                _tell(
                    tally,
                    ears.terminal,
                    f"{name} prints a secret",
                    _shape(printed[0]),
                    printed[0][max(0, at - 300) : at + 300],
                    (name, seed, number),
                )
            if only is not None:
                print(*shown, f"refused: {refused}; crash: {crash!r}", sep="\n", file=ears.terminal)
                break
    return tally


class _Ears:
    """Captures this process's other output: standard error, the log, and errors that end threads."""

    def __init__(self, terminal: TextIO, said: Any) -> None:
        self.terminal, self._said = terminal, said
        self._lost: list[BaseException] = []
        self._at = 0

    @classmethod
    @contextmanager
    def listening(cls) -> Iterator["_Ears"]:
        # Replace the descriptor itself, because librdkafka and a dying interpreter do not use `sys.stderr`.
        sys.stderr.flush()
        kept = os.dup(2)
        log, level = logging.getLogger(), logging.getLogger().level
        threads, unraisable = threading.excepthook, sys.unraisablehook
        with tempfile.TemporaryFile("w+b", buffering=0) as said, os.fdopen(kept, "w", buffering=1) as terminal:
            os.dup2(said.fileno(), 2)
            ears = cls(terminal, said)
            spoken = os.fdopen(os.dup(said.fileno()), "a", encoding="utf-8", errors="backslashreplace")
            handler = logging.StreamHandler(spoken)
            log.addHandler(handler)
            log.setLevel(logging.DEBUG)
            threading.excepthook = lambda lost: ears._lose(lost.exc_value)
            sys.unraisablehook = lambda lost: ears._lose(lost.exc_value)
            # For a hang that holds Python's lock, where no signal handler runs.
            faulthandler.enable(terminal)
            try:
                yield ears
            finally:
                faulthandler.disable()
                threading.excepthook, sys.unraisablehook = threads, unraisable
                log.removeHandler(handler)
                log.setLevel(level)
                spoken.close()
                os.dup2(kept, 2)

    def _lose(self, error: BaseException | None) -> None:
        if error is not None:
            self._lost.append(error)

    def crash(self) -> BaseException | None:
        """An error since the last call that ended a thread, or that came where Python cannot raise one."""
        lost, self._lost = self._lost, []
        return lost[0] if lost else None

    def heard(self) -> str:
        """The output since the last call."""
        size = os.fstat(self._said.fileno()).st_size
        text = os.pread(self._said.fileno(), size - self._at, self._at)
        self._at = size
        return text.decode(errors="backslashreplace")


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise Hung if the block takes longer than HANG_MAX; end the process if it cannot even be interrupted."""

    def hang(_: int, __: FrameType | None) -> NoReturn:
        raise Hung(f"no end within {HANG_MAX} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, HANG_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _told(error: BaseException) -> str:
    return f"{error!r}\n{''.join(traceback.format_exception(error))}"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} {frames[-1].filename}:{frames[-1].lineno}" if frames else type(error).__name__


def _shape(text: str) -> str:
    """The common part of finds with the same cause: the words before the secret."""
    return "".join(
        character for character in text[: text.index(MARKER)][-60:] if character.isalpha() or character == " "
    )


def _tell(tally: _Tally, terminal: TextIO, what: str, place: str, told: str, again: tuple[str, int, int]) -> None:
    if place not in tally.places:
        tally.places.add(place)
        part, seed, number = again
        options = f"--part {part} --seed {seed} --input {number}"
        print(f"{what}: {place}; again: python -m benchmarks fuzz {options}\n{told}", file=terminal)
