"""The benchmarks' command line: its list, its output and its errors."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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

import argparse


def run(options):
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=1)
    times = parser.parse_args(options).times
    return {"took_ms_median": 0.25 * times, "overlaps": 0, "held": True, "peer": "none"}
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
    assert {"took_ms_median": 1.0, "overlaps": 0, "held": True, "peer": "none"} == printed["figures"]
    assert {"cores", "python", "implementation", "system"} == set(printed["machine"])
    assert printed["took_s"] >= 0


def test_without_json_it_prints_a_table(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == run("quick")
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("quick (")
    expected = ["  took_ms_median  0.25", "  overlaps        0", "  held            True", "  peer            none"]
    assert expected == rows


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
