"""Java servers: their jars, downloaded by Maven once for each version, and how to start them.

    pom.xml --make fetch: mvn dependency:copy-dependencies--> .make/kafka-4.3.1/*.jar + ready --> java -cp ...

Only `make fetch` downloads them, before the first test. A test must not: it may run in a network namespace, from which
no host can be reached, and a download would count against its time.

`python -m tests.support.servers.jars` is that step. It prints what it downloads and its progress. Without Java, Maven
or a network, it prints why the tests that need these servers will be skipped; with CI=true that is a failure.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KAFKA", "LIGHT", "SPARK_CLASSES", "ZOOKEEPER", "Jars", "for_spark"]

ROOT = Path(__file__).parents[3]

LIGHT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""The C1 compiler alone starts faster, and nothing here runs long enough to benefit from the other compiler."""

SPARK_CLASSES = Path(sys.prefix, "spark.jsa")
"""See `spark.py`. It is part of the environment and is rebuilt with it, because Java ignores it with other jars."""


def archived(classes: Path) -> list[str]:
    """Options for Java to use an archive of classes. Another version of Java would print that it cannot."""
    return [f"-XX:SharedArchiveFile={classes}", "-Xlog:disable"] if classes.exists() else []


TRANSFER_MAX = 60_000
"""Milliseconds that Maven waits for the next byte. Without a limit, a dead connection would hang the step."""

TRIES = 3
"""How often a broken download is tried again: Maven keeps what it already has."""

DOWNLOADED = re.compile(r"Downloaded from \S+ \S+\.jar \((?P<size>[^)]*)\)")
SHOWN_EVERY = 25
"""How many jars come between two progress lines."""


@dataclass(frozen=True)
class Jars:
    """The jars of one server. `pom` is a file next to this one."""

    name: str
    version: str
    pom: str

    @property
    def folder(self) -> Path:
        return ROOT / ".make" / f"{self.name.lower()}-{self.version}"

    @property
    def ready(self) -> bool:
        return (self.folder / "ready").exists()

    @property
    def classes(self) -> Path:
        """An archive of classes, like Spark's."""
        return Path(sys.prefix, f"{self.name.lower()}.jsa")

    def missing(self) -> str:
        """Why they cannot run here; empty if they can."""
        if shutil.which("java") is None:
            return "java is not installed"
        return "" if self.ready else f"{self.folder} has no jars: run `make fetch`, which takes Maven and a network"

    def command(self, *arguments: str, heap: str) -> list[str]:
        """Java with these jars."""
        assert self.ready, self.missing()
        options = [f"-Xmx{heap}", f"-Xms{heap}", *LIGHT, *archived(self.classes)]
        return ["java", *options, "-cp", f"{self.folder}/*", *arguments]

    def fetch(self) -> str:
        """Download them, unless they are there. Returns why that failed, or an empty text."""
        for program in ("java", "mvn"):
            if not self.ready and shutil.which(program) is None:
                return f"{program} is not installed"
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.ready:
                say(f"{self.name} {self.version}: {self._count()} jars in {self.folder}")
                return ""
            say(f"{self.name} {self.version}: Maven brings its jars to {self.folder}")
            began_at, why = time.monotonic(), ""
            for _ in range(TRIES):
                if not (why := self._maven()):
                    (self.folder / "ready").touch()
                    say(f"{self.name} {self.version}: {self._count()} jars after {time.monotonic() - began_at:.0f} s")
                    break
            return why

    def _maven(self) -> str:
        """Run Maven once. Returns its first error, or an empty text."""
        options = [f"-Dmaven.wagon.rto={TRANSFER_MAX}", f"-Daether.connector.requestTimeout={TRANSFER_MAX}"]
        if not os.access(Path.home(), os.W_OK):
            options.append(f"-Dmaven.repo.local={ROOT / '.make' / 'maven'}")
        # -U: without it, Maven remembers a failed download and does not repeat it for a day.
        command = ["mvn", "-B", "-U", *options, "-f", str(Path(__file__).with_name(self.pom))]
        errors: list[str] = []
        count = 0
        with subprocess.Popen(
            [*command, "dependency:copy-dependencies", f"-DoutputDirectory={self.folder}"],
            env={**os.environ, "MAVEN_OPTS": " ".join([*LIGHT, os.environ.get("MAVEN_OPTS", "")])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as maven:
            assert maven.stdout is not None
            for line in maven.stdout:
                if (found := DOWNLOADED.search(line)) is not None:
                    count += 1
                    if count % SHOWN_EVERY == 0:
                        say(f"  {count} jars downloaded, the last of {found['size']}")
                elif line.startswith("[ERROR]"):
                    errors.append(line.strip())
        return "" if maven.returncode == 0 else f"Maven failed: {errors[0] if errors else maven.returncode}"

    def _count(self) -> int:
        return len(list(self.folder.glob("*.jar")))


KAFKA = Jars("Kafka", "4.3.1", "pom.xml")
ZOOKEEPER = Jars("ZooKeeper", "3.9.4", "zookeeper.xml")


def for_spark() -> str:
    """The options for each Java that runs Spark, quoted for its scripts: the path may contain a space."""
    return " ".join([*LIGHT, *(f'"{option}"' for option in archived(SPARK_CLASSES))])


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the step is for people to watch.


def main() -> None:
    failed = False
    for jars in (KAFKA, ZOOKEEPER):
        if why := jars.fetch():
            failed = True
            say(f"{jars.name} {jars.version}: no jars, so the tests that need it are skipped: {why}")
    sys.exit(1 if failed and os.environ.get("CI") == "true" else 0)


if __name__ == "__main__":
    main()
