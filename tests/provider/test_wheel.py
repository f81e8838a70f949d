"""The provider as users have it: from the wheel, in an environment that knows nothing of this clone.

    wheel --unpacked--> site-packages of a new environment --neli.pth--> the packages of the one that runs the tests

So a file that the wheel lacks, or an entry point that is wrong there, is found here. Each command is one that Airflow's
own providers answer, too. One process answers them all, because Airflow takes seconds to import.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.provider.test_provider_info import ROOT, modules
from tests.support.given import spelled

pytestmark = pytest.mark.airflow

PATIENCE = 900.0
"""Seconds for what takes ten on an idle machine."""

ASK = """
import contextlib, importlib, io, json, sys, warnings
modules, commands = map(json.loads, sys.argv[1:])
for name in modules:
    importlib.import_module(name)
warnings.resetwarnings()  # They are errors up to here.
from airflow.cli.cli_parser import get_parser
answers = {"where": sys.modules["airflow_provider"].__path__[0]}
for command in commands:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        options = get_parser().parse_args([*command.split(), "--output", "json"])
        options.func(options)
    answers[command] = said.getvalue()
print(json.dumps(answers))
"""

COMMANDS: dict[str, dict[str, Any] | None] = {
    "providers list": {"package_name": "neli-router"},
    "providers hooks": {
        "connection_type": "neli",
        "class": "airflow_provider.hooks.neli.NeliHook",
        "conn_id_attribute_name": "neli_conn_id",
    },
    "providers links": {"extra_link_class_name": "airflow_provider.links.NeliLink"},
    "connections get neli_default": {"conn_id": "neli_default", "conn_type": "neli"},
    "plugins": {"name": "neli"},
    "dags list-import-errors --local": None,
}
"""A command -> what stands in one of its rows; None if there must be none."""


@pytest.fixture(name="python")
def _python(tmp_path: Path) -> Path:
    """The interpreter of that environment."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", symlinks=True)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(tmp_path / "venv")})
    ZipFile(wheel).extractall(packages)
    # A .pth beside those packages, such as the one of this clone, is not read.
    (Path(packages) / "neli.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return tmp_path / "venv" / "bin" / "python"


@pytest.mark.usefixtures("airflow_home")
def test_airflow_finds_all_of_the_wheel_and_no_import_brings_a_warning(python: Path) -> None:
    environment = {
        "AIRFLOW_CONN_NELI_DEFAULT": spelled(address="unix:/run/neli/agent.sock"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
    }
    ended = subprocess.run(
        [str(python), "-P", "-W", "error", "-c", ASK, json.dumps(modules()), json.dumps(list(COMMANDS))],
        cwd=python.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    assert "airflow_provider" not in ended.stderr, "a warning or an error that names us"
    told: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    assert told["where"].startswith(str(python.parent.parent))
    for command, expected in COMMANDS.items():
        *_, last = ["", *told[command].strip().splitlines()]
        rows = json.loads(last) if last.startswith("[") else []
        assert [] == rows if expected is None else any(expected.items() <= row.items() for row in rows), ended
