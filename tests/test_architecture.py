"""The house stands as planned, and the plan's own checks can fail."""

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests import architecture as plan

ROOT = Path(__file__).resolve().parent.parent
HOUSE = plan.sources(ROOT)
ROOMS_AT_THE_TOP = sorted(place.parent.name for place in (ROOT / plan.PROJECT).glob("*/__init__.py"))


def shapes(house: Mapping[str, str]) -> list[str]:
    return [lack for module, text in house.items() for lack in plan.shape(module, text)]


@pytest.mark.parametrize("breaches", [plan.misfits, plan.circles, plan.unoffered, plan.namesakes, shapes])
def test_no_module_breaks_the_plan(breaches: Callable[[Mapping[str, str]], object]) -> None:
    assert not breaches(HOUSE)


def test_airflow_s_provider_takes_nothing_of_the_agent_s_server_or_the_commands() -> None:
    served = re.compile(rf"{plan.PROJECT}\.(agent\.server|commands)\b")
    theirs = {module for module, text in HOUSE.items() if served.search(text)}
    assert [] == sorted(module for module in theirs if module.startswith(plan.PROVIDER))


def test_the_sheet_in_contributing_shows_the_arrows_and_all_of_them_point_down() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(?P<room>\w+)/?` \|[^|]*\|(?P<arrows>[^|]*)\|$", page, re.MULTILINE)
    shown = {room: re.findall(r"\w+", arrows) for room, arrows in rows}
    assert plan.arrows_between_rooms(HOUSE) == shown
    assert [] == [room for room, theirs in shown.items() if "lab" in theirs]
    order = list(shown)
    assert [] == [(room, below) for room in order for below in shown[room] if order.index(below) < order.index(room)]


def test_each_room_says_at_its_door_what_it_may_import() -> None:
    doors = {room: ast.get_docstring(ast.parse(HOUSE[room])) or "" for room in {*ROOMS_AT_THE_TOP} - {"core"}}
    said = {room: re.findall(r"\nIt may import (.*)\.$", text) for room, text in doors.items()}
    arrows = plan.arrows_between_rooms(HOUSE)
    assert {room: [_listed(arrows[room])] for room in doors} == said


def _listed(rooms: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(rooms[:-1]), rooms[-1]])) if rooms else "only the core"


def test_the_whole_house_was_walked_and_no_module_has_two_rooms() -> None:
    assert {"__init__", "errors", "core.keyspace", "drivers.ledgers.base", "protocols.induction.fold"} <= set(HOUSE)
    assert len(HOUSE) == sum(len(list((ROOT / name).rglob("*.py"))) for name in (plan.PROJECT, plan.PROVIDER))
    names = [name for room in plan.ROOMS for name in room.modules]
    assert sorted(set(names)) == sorted(names)


ESSAY = '"""What it is for.\n\nHow it works.\n"""\n'


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        ("core.keyspace", "import time", "neli_router/core/keyspace:1 imports time: a pure module has no"),
        ("protocols.gossip.new", "import random\nrandom.random()", "gossip/new:2 uses random.random: chance is"),
        ("protocols.term.new", "from random import choice", "imports random.choice: chance is"),
        ("protocols.term.new", "def wait():\n    import time", "protocols/term/new:2 imports time: a pure"),
        ("protocols.term.new", "order = hash('a')", "uses hash(): a pure module"),
        ("protocols.term.new", "from neli_router import NoOwner", "imports neli_router: it may import errors"),
        ("drivers.ledgers.sqlite", "import requests", "it may import of other packages confluent_kafka, psycopg"),
        ("drivers.ledgers.pump", "from neli_router.drivers.ledgers import memory, base", "ledgers.memory: it may"),
        ("member", "import neli_router.lab.sim.world", "imports neli_router.lab.sim.world: it may"),
        ("agent.client.client", "from neli_router.member.member import Member", "neli_router.member.member: it may"),
        ("config", "import neli_router.drivers.ledgers.kafka.ledger", "a package that a user may not have"),
        ("agent", "from airflow_provider.hooks.neli import NeliHook", "imports airflow_provider.hooks.neli: it may"),
        ("surprise", "", "neli_router/surprise has no room in the house: give it one in PLAN"),
    ],
)
def test_what_breaks_the_plan_is_named_with_its_place(module: str, text: str, expected: str) -> None:
    others = {"drivers.ledgers.base": "", "drivers.ledgers.memory": ""}
    assert [True] == [expected in sentence for sentence in plan.misfits({**others, module: text})]


def test_a_ring_of_imports_is_found_even_through_a_function_or_the_door_of_a_folder() -> None:
    ring = {
        "keyspace": "from neli_router.errors import BadKey",
        "errors": "from neli_router import protocol",
        "protocol": "def lazily():\n    from neli_router.keyspace import Layout",
    }
    assert ["keyspace -> errors -> protocol -> keyspace"] == plan.circles(ring)
    door = {"left": "from neli_router.left.one import a", "left.one": "from neli_router.left import a"}
    assert ["__init__ -> one -> __init__"] == plan.circles(door)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", ["opens without an essay", "has no `__all__`"]),
        ('"""One line."""\n__all__ = []', ["opens without an essay"]),
        (f"{ESSAY}__all__ = []\nLIMIT = 1\ndef go(): ...\ndef _own(): ...", ["leaves out of `__all__`: go (or"]),
    ],
)
def test_a_module_without_its_shape_is_told_what_it_lacks(text: str, expected: list[str]) -> None:
    lacks = plan.shape("keyspace", text)
    assert len(expected) == len(lacks)
    assert all(part in sentence for part, sentence in zip(expected, lacks, strict=True))


def test_taking_what_is_not_offered_is_told() -> None:
    house = {
        "__init__": f"{ESSAY}from neli_router.errors import BadKey\n__all__ = ['BadKey']",
        "errors": "__all__ = ['BadKey']\nHIDDEN = 1\nclass BadKey: ...",
        "keyspace": "from neli_router.errors import HIDDEN, BadKey",
        "cli": "from neli_router import BadKey, errors\nfrom neli_router.errors import BadKey\nfrom os import path",
    }
    expected = "neli_router/keyspace:1 takes HIDDEN from neli_router.errors, which does not list it in `__all__`"
    assert [expected] == plan.unoffered(house)


def test_folders_that_import_each_other_are_found_although_no_modules_do() -> None:
    house = {
        "__init__": "from neli_router.left.one import a",
        "left.__init__": "from neli_router.right.one import b",
        "left.one": "from neli_router.right.two import b",
        "left.two": "",
        "right.one": "from neli_router.left.two import a",
        "right.two": "",
    }
    assert ["left -> right -> left"] == plan.circles(house)


def test_two_classes_of_one_name_are_found() -> None:
    house = {"one": "class Feed: ...", "two": "class Feed: ...\nclass Watch: ...", "three": "def Watch(): ..."}
    assert {"Feed": ["one", "two"]} == plan.namesakes(house)
