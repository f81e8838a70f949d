"""docs/figures.md and its plots come from the committed runs, and from these commands."""

import json
import shutil
from pathlib import Path

from benchmarks._figures_page import DOCS, RUNS, publish


def test_the_page_and_its_plots_show_the_committed_runs(tmp_path: Path) -> None:
    shutil.copytree(DOCS / "figures", tmp_path / "figures")
    shutil.copy(DOCS / "figures.md", tmp_path)
    publish(tmp_path)
    for path in (tmp_path / "figures.md", *(tmp_path / "figures").iterdir()):
        assert (DOCS / path.relative_to(tmp_path)).read_bytes() == path.read_bytes(), path.name


def test_the_committed_runs_are_those_that_a_reader_can_repeat() -> None:
    runs = json.loads((DOCS / "figures" / "runs.json").read_text(encoding="utf-8"))
    assert RUNS == {block: run["command"] for block, run in runs.items()}
