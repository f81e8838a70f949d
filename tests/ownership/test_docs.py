"""docs/redis.md: its examples run against a real Redis, one after the other, as a reader would type them."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

import neli_router
from neli_router.keyspace import Layout
from tests.conftest import require
from tests.pages import examples, page
from tests.servers.redis import Redis, missing

pytest.importorskip("redis")

pytestmark = pytest.mark.redis

PAGE = page("redis.md")
PYTHON = examples(PAGE)
CONSOLE = re.findall(r"^\$ redis-cli (.*?)\n((?:[^$`].*\n)*)", PAGE, flags=re.MULTILINE)
RIGHTS = re.findall(r"ACL SETUSER (\w+) on >PASSWORD (.*)", PAGE)


@pytest.fixture
def server() -> Iterator[Redis]:
    require(missing())
    with Redis.started() as started:
        yield started


def test_every_example_runs(server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"address": server.url("jobs"), "server": f"redis://127.0.0.1:{server.port}"}
    with ExitStack() as stack:
        exec(PYTHON[0], names)  # noqa: S102 - our own page.
        member = stack.enter_context(cast("neli_router.Member", names["member"]))
        while server.cli("HLEN", "jobs:owners:v1") != "256":
            assert member.pulse(20.0)
        for block in PYTHON[1:]:
            exec(block, names)  # noqa: S102 - as above.
        stack.enter_context(names["router"])
        stack.callback(names["client"].close)
        assert 3 == len(PYTHON)
        assert ("worker-1", 150) == (names["owner"].name, names["owner"].partition)
        says = {"HOLDER": member.incarnation}
        assert 4 == len(CONSOLE)
        for command, answer in CONSOLE:
            words = [says.get(word, word) for word in command.split()]
            told = server.cli(*words)
            pattern = re.escape(answer.removesuffix("\n"))
            for placeholder in ("TERM", "EXPIRES_MS", "MICROSECONDS", "SECONDS"):
                pattern = pattern.replace(placeholder, "[0-9]+")
            assert re.fullmatch(pattern.replace("HOLDER", member.incarnation), told), told


def test_the_table_of_hashes_is_right() -> None:
    rows = re.findall(r"^\| (?:`(.*)`|\(empty\)) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, flags=re.MULTILINE)
    assert 4 == len(rows)
    for key, whole, slot, partition, tagged in rows:
        expected = [Layout(slots=2**32).slot(key), Layout().slot(key), Layout().partition(key)]
        assert [*expected, Layout(tags=True).slot(key)] == [int(whole), int(slot), int(partition), int(tagged)]


def test_the_rights_that_it_names_are_rights_of_redis(server: Redis) -> None:
    assert ["member", "teller", "asker"] == [name for name, _ in RIGHTS]
    for name, rights in RIGHTS:
        assert "OK" == server.cli("ACL", "SETUSER", name, "on", ">word", *rights.split())
