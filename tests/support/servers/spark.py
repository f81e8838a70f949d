"""A standalone Spark cluster for tests: a master and its workers, from the jars inside PySpark, on loopback.

    bin/spark-class Master                spark://127.0.0.1:4711
                    Worker, Worker        a core and 512 MB each, which start the executors of a job

    with Spark.started(workers=2) as spark:
        session(master=spark.master)          a separate driver; tests start it as a process
    begun(start_a_stream)                     in any Spark; on a busy machine, a stream may have to be started again

The workers use different names for the same host, because Spark retries a task only on another host.

`python -m tests.support.servers.spark`, a part of `make fetch`, runs a small job and archives the classes that it
loaded. With that archive, Spark needs about half of the processor time to start.
"""

import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pyspark
from pyspark.errors import StreamingQueryException

from neli_router.spark import java_home
from tests.support.servers.jars import LIGHT, SPARK_CLASSES, for_spark
from tests.support.servers.process import ServerProcess, free_port
from tests.support.waiting import until

__all__ = ["MEMORY", "Spark", "begun"]

EXERCISE = """
import sys
from pyspark.sql import SparkSession, functions as F
settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
rows = spark.range(100).select("id", F.concat(F.lit("k"), "id").alias("key"), F.lit(1).alias("part"))
rows.mapInArrow(lambda batches: batches, rows.schema).write.partitionBy("part").parquet(sys.argv[1])
read = spark.read.parquet(sys.argv[1])
read.groupBy("key").agg(F.sum("id")).join(read, "key").orderBy("key").collect()
stream = spark.readStream.schema(read.schema).parquet(sys.argv[1]).writeStream.trigger(availableNow=True)
stream.foreachBatch(lambda batch, _: batch.count()).start().awaitTermination()
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""
"""The job uses each part of Spark that tests use. Java writes the archive when it exits, and the job waits for that."""

HOSTS = ("127.0.0.1", "localhost")
MEMORY = 512
"""MB of memory for each core of a worker, and so of its executor. Spark refuses less than 450 MB."""

START_MAX = 600.0


class Spark:
    """One master, and workers with as many cores each."""

    def __init__(self, folder: Path, *, workers: int, cores: int = 1) -> None:
        self._port, self._pages, self.rest_port = free_port(), free_port(), free_port()
        self._folder, self._cores = folder, cores
        self._master = ServerProcess(folder / "master.log")
        self._workers = [ServerProcess(folder / f"worker-{number}.log") for number in range(workers)]

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def driver_state(self, driver: str) -> str:
        """The state of a driver that runs on the cluster, according to the API for submissions."""
        return str(_told(self.rest_port, f"/v1/submissions/status/{driver}")["driverState"])

    def executors(self) -> list[int]:
        """The processes of the executors: each has a folder below its worker's folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # It has ended in the meantime, or belongs to another user.
                is_ours = (process / "cwd").readlink().is_relative_to(self._folder)
                if is_ours and b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return found

    @classmethod
    @contextmanager
    def started(cls, *, workers: int = 2, cores: int = 1) -> Iterator[Self]:
        """A context with a cluster whose workers are ready; it is removed at the end."""
        with tempfile.TemporaryDirectory(prefix="neli-spark-") as folder:
            spark = cls(Path(folder), workers=workers, cores=cores)
            try:
                spark.start()
                yield spark
            finally:
                # A worker's executors are in its process group, and end with it.
                for process in (*spark._workers, spark._master):
                    process.kill()

    def start(self) -> None:
        pages = ("--webui-port", str(self._pages))
        self._master.begin(self._command("master.Master", "--host", "127.0.0.1", "--port", str(self._port), *pages))
        for number, worker in enumerate(self._workers):
            worker.begin(
                self._command(
                    "worker.Worker",
                    *("--host", HOSTS[number % len(HOSTS)], "--cores", str(self._cores)),
                    *("--memory", f"{MEMORY * self._cores}m"),
                    *("--webui-port", "0", "--work-dir", str(self._folder / f"work-{number}"), self.master),
                )
            )
        until(self._has_all_workers, "a cluster of Spark with all its workers", patience=START_MAX)

    def _command(self, role: str, *arguments: str) -> list[str]:
        environment = {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{for_spark()} -Djava.io.tmpdir={self._folder}",
            # Also for the executors: a killed one leaves its blocks behind.
            "SPARK_LOCAL_DIRS": str(self._folder),
            "SPARK_MASTER_OPTS": f"-Dspark.master.rest.enabled=true -Dspark.master.rest.port={self.rest_port}",
            **({"JAVA_HOME": home} if (home := java_home()) else {}),
        }
        program = Path(pyspark.__file__).parent / "bin" / "spark-class"
        assigned = [f"{name}={value}" for name, value in environment.items()]
        return ["env", *assigned, str(program), f"org.apache.spark.deploy.{role}", *arguments]

    def _has_all_workers(self) -> bool:
        """Whether the master knows the workers."""
        for process in (self._master, *self._workers):
            assert process.running, process.log()
        with suppress(OSError, http.client.HTTPException, ValueError):
            return bool(_told(self._pages, "/json/")["aliveworkers"] == len(self._workers))
        return False


def _told(port: int, path: str) -> dict[str, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        return dict(json.loads(connection.getresponse().read()))


def begun(begin: Callable[[], object]) -> None:
    """Begin until Spark has started the Python process that reads a stream. Spark gives it ten seconds, which cannot be
    configured, and then ends the query. How often that happens depends only on how busy the machine is."""
    while True:
        try:
            begin()
            break
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="neli-spark-") as folder:
        unfinished = Path(folder, SPARK_CLASSES.name)
        options = [*LIGHT, f"-XX:ArchiveClassesAtExit={unfinished}", "-Xlog:disable", f"-Djava.io.tmpdir={folder}"]
        done = subprocess.run(
            [sys.executable, "-c", EXERCISE, f"{folder}/table"],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_LOCAL_DIRS": folder,
                "SPARK_SUBMIT_OPTS": " ".join(options),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0 and unfinished.exists():
            shutil.move(unfinished, SPARK_CLASSES)
            said = f"its classes are in {SPARK_CLASSES}"
        else:
            said = f"it starts slowly, without an archive: {done.stderr[-300:]}"
    print(f"Spark {pyspark.__version__}: {said}")  # noqa: T201 - the step is for people to watch.


if __name__ == "__main__":
    main()
