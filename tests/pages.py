"""The pages below `docs/`, and the examples in them, which tests run as a reader would type them."""

import re
from pathlib import Path

import neli_router

__all__ = ["examples", "page"]


def page(name: str) -> str:
    return (Path(neli_router.__file__).parents[1] / "docs" / name).read_text(encoding="utf-8")


def examples(text: str) -> list[str]:
    """What stands in the Python blocks of a page, in their order."""
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
