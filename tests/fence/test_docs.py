"""docs/fencing.md: its examples run, one after the other, as a reader would type them."""

from pathlib import Path

import pytest

from neli_router.fence import RESOURCE_MAX
from tests.pages import examples, page

PAGE = page("fencing.md")
BLOCKS = examples(PAGE)


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(block, names)  # noqa: S102 - our own page.
    assert 7 == len(BLOCKS)
    assert [] == names["open_invoices"]


def test_the_page_knows_the_limit_of_a_name() -> None:
    assert f"of 1 to {RESOURCE_MAX} printable" in PAGE
