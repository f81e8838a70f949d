"""`neli ticks` and `neli pipeline`, as far as they go without Spark: what they make, and what they refuse."""

import subprocess
import sys
from pathlib import Path

import pytest

from neli_router.core.exit_codes import EXIT_USAGE
from neli_router.spark.feeds import NumberedFiles
from tests.support.commands import neli


def test_ticks_fills_a_folder_with_the_same_intervals_for_the_same_seed_unless_it_has_some(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    words = ("ticks", "--ticks", "1000", "--intervals", "4", "--seed", "7")
    done, *_, again = (neli(*words, str(folder)) for folder in (first, second, first))
    assert (0, f"1,000 ticks in 4 intervals are in {first}\n") == (done.exit_code, done.output)
    for number in range(1, 5):
        assert NumberedFiles(first).path(number).read_bytes() == NumberedFiles(second).path(number).read_bytes()
    assert (EXIT_USAGE, True) == (again.exit_code, "has intervals already: name another one" in again.output)
    assert 4 == NumberedFiles(first).tip(0, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--partitions", "2"], "partitions=2 must be at least 3"),
        (["--intervals", "3"], "intervals=3 must be at least 4"),
        (["--ticks", "0", "--pace", "-1"], "pace=-1 must be at least 0"),
    ],
)
def test_the_pipeline_refuses_options_that_it_cannot_use_before_it_starts_anything(
    arguments: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.html"
    done = neli("pipeline", *arguments, "--report", str(report))
    assert (EXIT_USAGE, False) == (done.exit_code, report.exists())
    assert said in done.output + capfd.readouterr().err


@pytest.mark.parametrize(
    ("package", "extra", "words"), [("pyarrow", "spark", ["ticks", "somewhere"]), ("uvicorn", "agent", ["pipeline"])]
)
def test_without_an_extra_a_command_says_which(package: str, extra: str, words: list[str], tmp_path: Path) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from neli_router.commands.cli import main; main()"
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (EXIT_USAGE, True) == (done.returncode, f"the extra '{extra}'" in done.stderr), done.stderr
