"""The file: find one `neli.toml`, read it carefully, and remember the line of each option.

    --config, NELI_CONFIG      must exist
    ./neli.toml                the first one that exists ...
    /etc/neli/neli.toml        ... and a file that exists but cannot be read is an error, never skipped

Only one file is read. With two merged files, there would be two places to look for one mistake.

tomllib does not report the line of a value, so the text is searched for its heading and its name. This is right for the
files that people write. It might be wrong for a text that contains multi-line values, so no lines are given for those.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neli_router.core.private import Unreadable, read_checked

__all__ = ["PLACES", "SIZE_MAX", "Document", "find", "load"]

PLACES = ("neli.toml", "/etc/neli/neli.toml")
"""Where to look if neither --config nor NELI_CONFIG is given."""

SIZE_MAX = 1 << 20
"""Bytes. A configuration has a few hundred; a much larger file must be something else."""

_HEADING = re.compile(r"\s*\[\s*([A-Za-z0-9_.-]+)\s*\]")
_NAME = re.compile(r"\s*[\"']?([A-Za-z0-9_.-]+)[\"']?\s*=")


@dataclass(frozen=True, slots=True)
class Document:
    """A file's raw options, by table. The path is empty if no file was found."""

    path: str = ""
    tables: Mapping[str, Any] = field(default_factory=dict, repr=False)
    lines: Mapping[str, int] = field(default_factory=dict, repr=False)

    def where(self, key: str) -> str:
        """Where the option `key` was set."""
        return f"{self.path} line {self.lines[key]}" if key in self.lines else self.path


def find(named: str | None, environ: Mapping[str, str], places: Sequence[str]) -> tuple[str, str]:
    """The path of the file to read and who named it; both are empty if there is none."""
    if named:
        return named, "flag --config"
    if named := environ.get("NELI_CONFIG"):
        return named, "environment NELI_CONFIG"
    return next(((place, "the default place") for place in places if os.path.lexists(place)), ("", ""))


def load(path: str, named_by: str) -> Document:
    """The file's content. Raises Unreadable."""
    import tomllib  # noqa: PLC0415 - an agent's client imports this package for its token, and reads no TOML.

    what = f"the configuration {path!r:.200} ({named_by})"
    text = read_checked(path, what, SIZE_MAX)[0].removeprefix(b"\xef\xbb\xbf")
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"{what} is not UTF-8: see line {line}, and save it as UTF-8") from None
    try:
        tables = tomllib.loads(decoded)
    except tomllib.TOMLDecodeError as error:
        raise Unreadable(f"{what} is not TOML: {_without_text(str(error))}") from None
    except (ValueError, RecursionError, OverflowError):
        # A number with five thousand digits, or a deeply nested list: tomllib passes on Python's errors.
        raise Unreadable(f"{what} cannot be read: it has a number too long or a list too deep; take it out") from None
    return Document(path, tables, _lines(decoded))


def _without_text(complaint: str) -> str:
    """tomllib's message and position, but no part of the file's text, which may be the part with the password."""
    place = re.search(r"\(at (?:line (\d+), column (\d+)|end of document)\)", complaint)
    where = "at its end" if place is None or place.group(1) is None else f"line {place[1]}, column {place[2]}"
    words = complaint[: place.start()] if place else complaint
    return f"{where}: {re.sub(chr(39) + '.*' + chr(39), '...', words).strip()[:80]}"


def _lines(text: str) -> Mapping[str, int]:
    """Key -> line of the first place that looks like the key."""
    if '"""' in text or "'''" in text:
        return {}
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if heading := _HEADING.match(line):
            table = f"{heading[1]}."
            found.setdefault(heading[1], number)
        elif name := _NAME.match(line):
            found.setdefault(table + name[1], number)
    return found
