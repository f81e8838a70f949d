"""The provider as users have it: from the wheel, in an environment that knows nothing of this clone.

    wheel --unpacked--> site-packages of a new environment --neli.pth--> the packages of the one that runs the tests

So a file that the wheel lacks, or an entry point that is wrong there, is found here. Each command is one that Airflow's
own providers answer, too.
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
"""Seconds for a command of Airflow. On an idle machine it takes three."""

IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


@pytest.fixture(name="python", scope="module")
def _python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of that environment."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder / "venv")})
    ZipFile(wheel).extractall(packages)
    # A .pth beside those packages, such as the one of this clone, is not read.
    (Path(packages) / "neli.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder / "venv" / "bin" / "python"


def said(python: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    ended = subprocess.run(
        [str(python), "-P", *arguments],
        cwd=python.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    return ended


def test_it_is_the_wheel_that_is_asked(python: Path) -> None:
    where = said(python, "-c", "import airflow_provider, neli_router; print(airflow_provider.__path__[0])").stdout
    assert where.startswith(str(python.parent.parent))


@pytest.mark.usefixtures("airflow_home")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("providers list", {"package_name": "neli-router"}),
        ("providers hooks", {"connection_type": "neli", "class": "airflow_provider.hooks.neli.NeliHook"}),
        ("providers links", {"extra_link_class_name": "airflow_provider.links.NeliLink"}),
        ("connections get neli_default", {"conn_id": "neli_default", "conn_type": "neli"}),
        ("plugins", {"name": "neli"}),
        ("dags list-import-errors --local", None),
    ],
)
def test_airflow_finds_all_of_it(python: Path, command: str, expected: dict[str, Any] | None) -> None:
    ended = said(
        python,
        *("-m", "airflow", *command.split(), "--output", "json"),
        AIRFLOW_CONN_NELI_DEFAULT=spelled(address="unix:/run/neli/agent.sock"),
        AIRFLOW__CORE__DAGS_FOLDER=str(ROOT / "dags"),
    )
    told = ended.stdout.strip().splitlines()
    rows = json.loads(told[-1]) if told and told[-1].startswith("[") else []
    assert [] == rows if expected is None else any(expected.items() <= row.items() for row in rows), ended
    assert "airflow_provider" not in ended.stderr, "a warning or an error that names us"


@pytest.mark.usefixtures("airflow_home")
def test_no_import_brings_a_warning(python: Path) -> None:
    said(python, "-W", "error", "-c", IMPORT, *modules())
