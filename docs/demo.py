"""The picture on the front page: lines of a run of the demo, as a terminal shows them.

    neli demo --plain | python -m docs.demo     writes docs/demo.svg

The lines are those of one real run, cut at WIDTH. The text stays text, in whatever monospaced font there is.
"""

import re
import sys
from html import escape
from pathlib import Path

__all__ = ["drawn"]

WIDTH = 108
LINE, CHARACTER, MARGIN = 18, 7.83, 16

STEPS = "share|kill|lead|stop|wake|fence|leave"
CHECKS = "one at|terms|kill|SIGSTOP|SIGTERM|no needless"
SHOWN = re.compile(rf"NELI Router demo| ({STEPS})  |^PASS  ({CHECKS})|^all ")
COLOURS = (
    (re.compile(r"^PASS|^all "), "#8fc7ff"),
    (re.compile(r" (kill|stop|fence)  "), "#ff8b7e"),
    (re.compile(r" (lead|share|wake)  "), "#7ee2a8"),
)
PLAIN, GROUND = "#d6dae2", "#1b1f27"

FONT = "13px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
TITLE = "neli demo: processes are killed, stopped and asked to leave, and others lead their partitions"


def drawn(text: str) -> str:
    """The picture of the demo's output."""
    lines = [line.partition(" (at most")[0][:WIDTH] for line in text.splitlines() if SHOWN.search(line)]
    width, height = round(WIDTH * CHARACTER + 2 * MARGIN), len(lines) * LINE + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f"<title>{TITLE}</title>",
            f"<style>text {{ font: {FONT}; white-space: pre }}</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{GROUND}"/>',
            *(
                f'<text x="{MARGIN}" y="{MARGIN + LINE * number + 13}" fill="{_colour(line)}">{escape(line)}</text>'
                for number, line in enumerate(lines)
            ),
            "</svg>\n",
        ]
    )


def _colour(line: str) -> str:
    return next((colour for pattern, colour in COLOURS if pattern.search(line)), PLAIN)


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(drawn(sys.stdin.read()), encoding="utf-8")
