"""What all tests share: how to ask for transcripts to be written anew."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the answers of every transcript anew; commit a difference only if you can explain it",
    )
