"""A SparkSession for a program that Python started: local by default, and never overriding spark-submit.

    who sets it                          what wins
    spark-submit, its spark-defaults     over all that is said here: the operator knows the cluster
    session(master=, settings=)          over the spark-defaults.conf of a Spark that we start
    our defaults, below                  only where nothing else is set

A local Spark listens only on loopback, and serves no pages. By default it would do so on all addresses of the host. Any
Spark draws its progress only on a terminal. PYSPARK_PYTHON becomes this interpreter, because `python3` on the PATH is
often another one, without the packages of the job. JAVA_HOME is set if the Java on the PATH does not work (see
`runtime`). Spark reads these two, and SPARK_LOCAL_IP, from this process's environment; they are set there unless they
are set already.

Nothing else in `neli_router.spark` requires a session from here.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from neli_router.spark.runtime import java_home, require_pyspark

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["context_of", "described", "session"]

DESCRIPTION = "spark.job.description"

LOOPBACK = "127.0.0.1"

LOCAL_DEFAULTS = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.ui.enabled": "false",
}

MASTER_ELSEWHERE = frozenset({"MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"})
"""Variables from which Spark may take a master other than `local[*]` when it is given none."""


def session(
    name: str = "neli",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A new SparkSession, or the one that this program already has, unchanged.

    `master` is `local[4]`, `spark://HOST:7077`, `k8s://...`, or `sc://HOST:15002` for Spark Connect. Without it,
    Spark's configuration decides, and if it names none, `local[*]`. `settings` are Spark's, such as
    {"spark.driver.memory": "4g"}. Stop it with `stop()`, or use it as `with session() as spark:`, which sessions of
    Connect do not support. Raises SparkUnusable, and Spark's own errors.
    """
    said = dict(settings or {})
    remote = os.environ.get("SPARK_REMOTE") or (master if master and master.startswith("sc://") else None)
    if remote:
        return _reading_ledgers(SparkSession.builder.config(map={**said}).remote(remote).getOrCreate())
    require_pyspark()  # First of all: pyspark-client alone would end the program.
    if (there := SparkSession.getActiveSession()) is not None:
        return there
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - a client of Spark Connect has neither.

    said["spark.app.name"] = name
    if not sys.stderr.isatty():
        said.setdefault("spark.ui.showConsoleProgress", "false")
    if master is not None:
        said["spark.master"] = master
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit started Java, which started this program.
    _prepare(master, is_submitted=is_submitted)
    # Java first: only it can read Spark's settings files, and only then can our defaults yield to theirs. It gets our
    # settings on its command line, because some, such as its memory, cannot be set later.
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(said.items())))  # noqa: SLF001 - the only way.
    conf = SparkConf()
    for setting, value in said.items():
        conf.setIfMissing(setting, value) if is_submitted else conf.set(setting, value)
    if (conf.get("spark.master") or "").startswith("local"):
        for setting, value in LOCAL_DEFAULTS.items():
            conf.setIfMissing(setting, value)
    SparkContext.getOrCreate(conf)
    return _reading_ledgers(SparkSession.builder.getOrCreate())


def context_of(spark: SparkSession) -> "SparkContext | None":
    """The SparkContext; None over Spark Connect, which has none."""
    return getattr(spark, "sparkContext", None)


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Spark's page shows `text` for the jobs of this block. A Spark of Connect has no such page."""
    if (context := context_of(spark)) is None:
        yield
        return
    before = context.getLocalProperty(DESCRIPTION)
    context.setLocalProperty(DESCRIPTION, text)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, before)  # type: ignore[arg-type]  # None removes it.


def _reading_ledgers(started: SparkSession) -> SparkSession:
    """`started`, which knows the format `neli` from now on."""
    from neli_router.spark.ledger_source import register_ledgers  # noqa: PLC0415 - it needs a whole PySpark.

    register_ledgers(started)
    return started


def _prepare(master: str | None, *, is_submitted: bool) -> None:
    """Set the environment variables that Spark reads, unless they are set."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_submitted:
        return
    if home := java_home():
        os.environ["JAVA_HOME"] = home
    is_local = master.startswith("local") if master else not MASTER_ELSEWHERE & os.environ.keys()
    if is_local:
        # Without this, Java looks up the machine's name, and ends if the name has no address.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
