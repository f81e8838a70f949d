"""docs/fencing.md: its examples run, one after the other, as a reader would type them."""

import re
from pathlib import Path

import pytest

import neli_router
from neli_router.fence import RESOURCE_MAX

PAGE = (Path(neli_router.__file__).parents[1] / "docs" / "fencing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(block, names)  # noqa: S102 - our own page.
    assert 7 == len(BLOCKS)
    assert [] == names["open_invoices"]


def test_the_page_knows_the_limit_of_a_name() -> None:
    assert f"of 1 to {RESOURCE_MAX} printable" in PAGE
