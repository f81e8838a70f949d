"""The package as users get it: a light import, a wheel with only the package, and pinned, complete requirements."""

import re
import subprocess
import sys
import tomllib
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

import neli_router

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = [path for package in ("airflow_provider", "neli_router") for path in (ROOT / package).rglob("*.py")]
OPTIONAL = {"airflow", "click", "confluent_kafka", "fastavro", "pyspark", "redis", "rich", "starlette", "uvicorn"}
"""Packages for one purpose (a driver, a page, a terminal), which importing the library must not load."""

PINNED = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>[^ ;]+)", re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return ZipFile(built)


def pins(name: str) -> dict[str, str]:
    """The packages in a requirements file, with their versions."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return {match["name"]: match["version"] for match in PINNED.finditer(text)}


def test_the_import_pulls_in_no_optional_package() -> None:
    program = "import sys, neli_router; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).split())
    assert "neli_router" in loaded
    assert set() == loaded & OPTIONAL


def test_every_name_that_is_offered_is_there() -> None:
    """Ruff finds names that are imported but not listed (F401), and a list that is not in order (RUF022)."""
    assert all(hasattr(neli_router, name) for name in neli_router.__all__)


def test_the_wheel_holds_every_module_of_the_packages_and_nothing_beside_them(wheel: ZipFile) -> None:
    folders = {name.partition("/")[0] for name in wheel.namelist()}
    assert {"airflow_provider", "neli_router", f"neli_router-{PROJECT['version']}.dist-info"} == folders
    assert "neli_router/py.typed" in wheel.namelist()
    found = {name for name in wheel.namelist() if name.endswith(".py")}
    assert {str(path.relative_to(ROOT)) for path in MODULES} == found


def test_the_wheel_says_what_it_is_and_what_it_needs(wheel: ZipFile) -> None:
    folder = f"neli_router-{PROJECT['version']}.dist-info"
    metadata = HeaderParser().parsestr(wheel.read(f"{folder}/METADATA").decode())
    assert "neli-router" == metadata["Name"]
    assert ">=3.11" == metadata["Requires-Python"]
    assert "Apache-2.0" == metadata["License-Expression"]
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(PROJECT["dependencies"]) == sorted(needed)
    assert sorted(PROJECT["optional-dependencies"]) == sorted(metadata.get_all("Provides-Extra", []))
    points = wheel.read(f"{folder}/entry_points.txt").decode()
    assert "neli = neli_router.commands.cli:main" in points
    assert "[apache_airflow_provider]\nprovider_info = airflow_provider.get_provider_info:get_provider_info" in points
    assert (ROOT / "LICENSE").read_bytes() == wheel.read(f"{folder}/licenses/LICENSE")


def test_every_entry_point_names_a_module_of_the_wheel_and_something_in_it(wheel: ZipFile) -> None:
    folder = f"neli_router-{PROJECT['version']}.dist-info"
    points = re.findall(r"^\S+ = ([\w.]+):?(\w*)$", wheel.read(f"{folder}/entry_points.txt").decode(), re.MULTILINE)
    assert points
    for module, name in points:
        source = wheel.read(module.replace(".", "/") + ".py").decode()
        assert not name or re.search(rf"^(?:def|class) {name}\b", source, re.MULTILINE), f"{module} has no {name}"


def test_the_version_is_only_in_the_project_file() -> None:
    assert [] == [path for path in MODULES if PROJECT["version"] in path.read_text(encoding="utf-8")]


def test_the_runtime_requirements_are_what_the_project_asks_for_in_the_versions_that_developers_test() -> None:
    asked = {re.split(r"[<>=~!;\[ ]", dependency)[0] for dependency in PROJECT["dependencies"]}
    needed_by_rich = {"markdown-it-py", "mdurl", "pygments"}
    core, dev = pins("core.txt"), pins("dev.txt")
    assert asked | needed_by_rich == set(core)
    assert core == {name: dev.get(name) for name in core}


@pytest.mark.parametrize("name", ["build.txt", "core.txt", "dev.txt", "docs.txt", "release.txt", "test.txt", "uv.txt"])
def test_every_requirement_is_pinned_with_hashes_and_names_no_address(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    statements = [line for line in text.replace("\\\n", "").splitlines() if line and not line.lstrip().startswith("#")]
    # A package may be pinned twice: one version for older Pythons and one for newer ones.
    assert set(pins(name)) == {statement.partition("==")[0] for statement in statements} != set()
    assert [] == [statement for statement in statements if "--hash=sha256:" not in statement]
    assert [] == re.findall(r"https?://|--\S*(?:index|find-links|trusted-host)\S*", text)
