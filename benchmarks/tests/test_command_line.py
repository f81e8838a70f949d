"""The benchmarks' command line: its list, its output and its errors."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import TEXTS
from benchmarks.__main__ import EXIT_FAILED, EXIT_USAGE, main

ROOT = Path(__file__).resolve().parents[2]
MAIN = """
from benchmarks.__main__ import main

raise SystemExit(main(package="pretended"))
"""
QUICK = '''
"""How quickly nothing happens.

More about it.
"""

from benchmarks import BenchmarkOptions, option, switch


class Options(BenchmarkOptions):
    times: int = option(1, "how often nothing happens")
    lease: tuple[float, ...] = (0.5, 2.0)
    at_most: int | None = option(None, "seconds")
    ledger: str = option("sqlite", choices=("sqlite", "kafka"))
    soon: bool = switch("immediately")


def run(options):
    return {"took_ms_median": 0.25 * options.times, "overlaps": 0, "held": True, "options": repr(options)}
'''
LACKING = '''
"""What cannot be imported here.

Its peer is not installed.
"""

import a_peer_that_nobody_has
'''


Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`python -m pretended ARGUMENTS` on a package with one benchmark that works and one that does not."""
    package = tmp_path / "pretended"
    package.mkdir()
    modules = {"__init__": "", "__main__": MAIN, "_helper": "", "quick": QUICK, "lacking": LACKING}
    for name, source in modules.items():
        (package / f"{name}.py").write_text(source.lstrip(), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    for name in ("pretended", "pretended.quick"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # From the test before, in another folder.
    return lambda *arguments: main(arguments, package="pretended")


def test_the_list_has_each_name_with_its_first_line_and_imports_nothing(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == run()
    expected = "lacking  What cannot be imported here.\nquick    How quickly nothing happens.\n"
    assert expected == capsys.readouterr().out


def test_the_list_is_json_on_request(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run("--json")
    expected = {"lacking": "What cannot be imported here.", "quick": "How quickly nothing happens."}
    assert expected == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("arguments", [("quick", "--times", "4", "--json"), ("--json", "quick", "--times", "4")])
def test_a_benchmark_prints_one_json_object_with_its_figures(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert 0 == run(*arguments)
    printed = json.loads(capsys.readouterr().out)
    assert ["benchmark", "figures", "machine", "took_s"] == list(printed)
    assert "quick" == printed["benchmark"]
    assert {"took_ms_median": 1.0, "overlaps": 0, "held": True}.items() <= printed["figures"].items()
    assert {"cores", "python", "implementation", "system"} == set(printed["machine"])
    assert printed["took_s"] >= 0


def test_without_json_it_prints_a_table(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run("quick")
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("quick (")
    assert ["  took_ms_median  0.25", "  overlaps        0", "  held            True"] == rows[:3]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "times=1, lease=(0.5, 2.0), at_most=None, ledger='sqlite', soon=False"),
        (["--lease", "1", "3"], "times=1, lease=(1.0, 3.0), at_most=None, ledger='sqlite', soon=False"),
        (["--at-most", "3", "--soon"], "times=1, lease=(0.5, 2.0), at_most=3, ledger='sqlite', soon=True"),
    ],
)
def test_options_are_parsed_by_the_types_of_their_fields(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    run("quick", *arguments, "--json")
    assert f"Options({expected})" == json.loads(capsys.readouterr().out)["figures"]["options"]


def test_help_has_the_text_and_the_default_of_each_option(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("quick", "--help")
    printed = capsys.readouterr().out
    assert "How quickly nothing happens.\n\nMore about it.\n" in printed
    assert "--times TIMES         how often nothing happens (default: 1)\n" in printed
    assert f"{TEXTS['lease']} (default: 0.5 2.0)\n" in printed
    assert "--soon                immediately\n" in printed


def test_an_unknown_name_is_refused_with_the_nearest_known_one(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert EXIT_USAGE == run("quik", "--json")
    printed = capsys.readouterr()
    assert "" == printed.out
    expected = (
        "wanted the name of a benchmark, found 'quik': did you mean 'quick'?\n`python -m pretended` lists them all\n"
    )
    assert expected == printed.err


@pytest.mark.parametrize("arguments", [("--jsn",), ("--all", "quick"), ("quick", "--times", "many"), ("quick", "-x")])
def test_a_command_line_that_makes_no_sense_exits_2(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert EXIT_USAGE == caught.value.code
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("attack --kinds idling,shouting", "unknown attack: shouting; known attacks: "),
        ("failover --members 1", "--members 1: one must survive"),
        ("failover --witness --lease 1 0.5", "--witness takes one --lease"),
        ("failover --ledger sqlite redis", "only --witness measures them in one run"),
        ("large --partitions 8 --lease 1 2", "--lease [1.0, 2.0]: one is needed for each of --partitions"),
        ("large --members 8 --expiring 4", "--expiring 4: at least 5 of 8 must survive"),
        ("large --members 100000", "--members 100000: a group has at most "),
        ("protocols --members 1", "--members 1: one must survive"),
        ("protocols --electors --sizes 3 2", "--sizes 2: a majority must survive"),
        ("restart --members 1", "--members 1: at least 2 are needed"),
        ("sessions --members 9", "--members [9]: each must get one of 8 partitions"),
    ],
)
def test_a_benchmark_refuses_options_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], line: str, expected: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert EXIT_USAGE == caught.value.code
    assert f"{line.partition(' ')[0]}: error: " in (printed := capsys.readouterr().err)
    assert expected in printed


def test_all_runs_each_and_names_those_that_failed(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert EXIT_FAILED == run("--all", "--json")
    printed = capfd.readouterr()
    assert ["quick"] == [json.loads(line)["benchmark"] for line in printed.out.splitlines()]
    assert "wanted figures from every benchmark, found failures: lacking" in printed.err


def test_benchmarks_use_the_product_and_the_tests_and_neither_uses_benchmarks() -> None:
    imported = re.compile(r"^\s*(from|import) benchmarks\b", re.MULTILINE)
    sources = [path for folder in ("neli_router", "tests") for path in (ROOT / folder).rglob("*.py")]
    assert [] == [path for path in sources if imported.search(path.read_text(encoding="utf-8"))]


def test_our_own_benchmarks_each_say_what_they_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main([])
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert "import_time" in lines
    assert all(line.endswith(".") and "says nothing" not in line for line in lines.values())
