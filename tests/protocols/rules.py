"""Rules and stories: inputs in a text file, each followed by its answers. `--rewrite` writes the answers again."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from neli_router.protocols.protocol import Acquired, Fenced, News, Notice, Revoked, Standby, Stopped

__all__ = ["Rule", "answered", "news", "numbers", "performed", "rules_in", "stories_in"]

WIDTH_MAX = 120


@dataclass(frozen=True)
class Rule:
    """A part of a file, or all of it: inputs with their answers."""

    path: Path
    text: str

    def require(self, played: Callable[[list[str]], Iterable[str]], config: pytest.Config) -> None:
        """Play the inputs: the answers must be those of the file, unless they are to be rewritten."""
        expected, found = self.text.rstrip(), "\n".join(played(self.text.splitlines())).rstrip()
        if config.getoption("rewrite"):
            whole = self.path.read_text(encoding="utf-8")
            self.path.write_text(whole.replace(expected, found), encoding="utf-8")
        else:
            assert expected == found


def rules_in(*paths: Path) -> list[object]:
    """A parameter for each part of these files that begins with `## `."""
    parts = [(path, text) for path in paths for text in re.split(r"(?m)^## ", path.read_text(encoding="utf-8"))[1:]]
    return [
        pytest.param(Rule(path, f"## {text}"), id=re.sub(r"\W+", "_", text.splitlines()[0])) for path, text in parts
    ]


def stories_in(*paths: Path) -> list[object]:
    """A parameter for each of these files."""
    return [pytest.param(Rule(path, path.read_text(encoding="utf-8")), id=path.stem) for path in sorted(paths)]


def answered(asked: str, answers: list[str]) -> Iterator[str]:
    """An input with its answers behind it, or below it if they do not fit. A dot means nothing."""
    line = f"{asked} -> {', '.join(answers) or '.'}"
    if len(line) <= WIDTH_MAX and len(answers) < 3:
        yield line
        return
    yield asked
    for answer in answers:
        yield f"    -> {answer}"


class Scene(Protocol):
    """Several members in virtual time."""

    def run(self, end: float) -> object: ...


Staged = TypeVar("Staged", bound=Scene)


def performed(
    lines: list[str],
    begun: Callable[[list[str]], Staged],
    direct: Callable[[Staged, list[str]], object],
    answers: Callable[[Staged], list[str]],
) -> Iterator[str]:
    """A scene that begins as its first line says. Each other line is a time and what happens then; the answers until
    the next line are below it.
    """
    scene: Staged | None = None
    for line in lines:
        if line.startswith("    -> "):
            continue
        if not line or line.startswith("#"):
            yield line
        elif scene is None:
            scene = begun(line.split())
            yield line
        else:
            at, *words = line.split()
            scene.run(float(at))
            yield from (f"    -> {answer}" for answer in answers(scene))
            yield line
            direct(scene, words)
            yield from (f"    -> {answer}" for answer in answers(scene))


def news(effect: News) -> str:
    """An effect for the program or for operators, in words."""
    match effect:
        case Acquired(terms=terms) | Revoked(terms=terms):
            return f"{type(effect).__name__} {numbers(terms)}"
        case Fenced(terms=terms, reason=reason):
            return f"Fenced {numbers(terms)} ({reason})"
        case Standby(partitions):
            return f"Standby {' '.join(map(str, partitions)) or 'for nothing'}"
        case Notice(event, fields):
            return " ".join(["Notice", event, *(f"{key}={value}" for key, value in fields.items())])
        case Stopped(error):
            return "Stopped" if error is None else f"Stopped {type(error).__name__}: {error}"


def numbers(pairs: Mapping[int, int]) -> str:
    """Partitions with their terms, or with offsets."""
    return " ".join(f"{i}@{number}" for i, number in pairs.items())
