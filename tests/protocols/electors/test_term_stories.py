"""Stories of a few electors, as transcripts: `--rewrite` writes the answers again.

Each of the article's two stories is played twice. They happen without scouting, and do not happen with it.
"""

from pathlib import Path

import pytest

from tests.protocols.electors.scenes import played
from tests.protocols.rules import Rule, stories_in

STORIES = Path(__file__).parent / "transcripts"


@pytest.mark.parametrize("story", stories_in(*STORIES.glob("term_*.txt"), *STORIES.glob("priority_*.txt")))
def test_a_story_goes_as_written_down(story: Rule, pytestconfig: pytest.Config) -> None:
    story.require(played, pytestconfig)
