"""Servers that are Java: their jars by Maven, once for each version, and the way to start them.

NAME.xml --mvn dependency:copy-dependencies--> .make/NAME-VERSION/*.jar + ready --> java -cp ...
"""

import fcntl
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Jars"]

ROOT = Path(__file__).parents[2]

FETCH_MAX = 600.0
"""Seconds that Maven may take on a machine that has none of the jars yet."""


@dataclass(frozen=True)
class Jars:
    """Of one server. `pom` is a file beside this one."""

    name: str
    version: str
    pom: str

    @property
    def folder(self) -> Path:
        return ROOT / ".make" / f"{self.name.lower()}-{self.version}"

    def missing(self) -> str:
        """Why they cannot be had or run here, or nothing."""
        if shutil.which("java") is None:
            return "java is not installed"
        if not (self.folder / "ready").exists() and shutil.which("mvn") is None:
            return f"mvn is not installed, and {self.folder} has no jars"
        return ""

    def command(self, *arguments: str, heap: str) -> list[str]:
        """Java with these jars, fetched by the first who asks."""
        # The C1 compiler alone starts sooner and leaves the cores to the tests.
        options = [f"-Xmx{heap}", f"-Xms{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        return ["java", *options, "-cp", self._classpath(), *arguments]

    def _classpath(self) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.folder / "ready").exists():
                pom, output = Path(__file__).with_name(self.pom), f"-DoutputDirectory={self.folder}"
                made = subprocess.run(
                    ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", output],  # noqa: S607
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=FETCH_MAX,
                    check=False,
                )
                said = f"{made.stdout[-2000:]}{made.stderr[-2000:]}"
                assert made.returncode == 0, f"mvn could not bring {self.name}:\n{said}"
                (self.folder / "ready").touch()
        return f"{self.folder}/*"
