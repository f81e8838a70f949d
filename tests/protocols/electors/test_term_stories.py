"""Stories of a few electors, as transcripts: `--rewrite` writes the answers again.

Each of the article's two stories is played twice. They happen without scouting, and do not happen with it.
"""

from pathlib import Path

import pytest

from tests.protocols.electors.scenes import play

TRANSCRIPTS = sorted(
    path for part in ("term", "priority") for path in (Path(__file__).parent / "transcripts").glob(f"{part}_*.txt")
)


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=[path.stem for path in TRANSCRIPTS])
def test_a_story_goes_as_written_down(path: Path, pytestconfig: pytest.Config) -> None:
    answered = play(path.read_text(encoding="utf-8"))
    if pytestconfig.getoption("rewrite"):
        path.write_text(answered, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == answered
