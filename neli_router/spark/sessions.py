"""A SparkSession for a program that was started by Python: local unless told otherwise, and never over spark-submit.

    who sets it                          what wins
    spark-submit, its spark-defaults     over all that is said here: the operator knows the cluster
    session(master=, settings=)          over the spark-defaults.conf of a Spark that we start
    our defaults, below                  only where nothing else is said

A local Spark listens on loopback only, and serves no pages. By default it would do so on all addresses of the host.
PYSPARK_PYTHON becomes this interpreter, because `python3` on the PATH is often another one, without the packages of the
job. JAVA_HOME is set where the Java on the PATH does not do (see `runtime`). Spark reads these two, and SPARK_LOCAL_IP,
from this process's environment; they are set there, where they are not set yet.

Nothing else of `neli_router.spark` needs a session from here.
"""

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from neli_router.spark.runtime import java_home, require_pyspark

__all__ = ["session"]

LOOPBACK = "127.0.0.1"

LOCAL_DEFAULTS = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.ui.enabled": "false",
}

MASTER_ELSEWHERE = frozenset({"MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"})
"""Variables by which Spark may learn of another master than `local[*]` when it is given none."""


def session(
    name: str = "neli",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A SparkSession, or the one that this program has already, as it is.

    `master` is `local[4]`, `spark://HOST:7077`, `k8s://...`, or `sc://HOST:15002` for Spark Connect. Without it, the
    configuration of Spark decides, and if it has none, `local[*]`. `settings` are Spark's, such as
    {"spark.driver.memory": "4g"}.
    Stop it with `stop()`, or use it as `with session() as spark:`, which those of Connect cannot do. Raises
    SparkUnusable, and what Spark raises.
    """
    said = dict(settings or {})
    remote = os.environ.get("SPARK_REMOTE") or (master if master and master.startswith("sc://") else None)
    if remote:
        return _reading_ledgers(SparkSession.builder.config(map={**said}).remote(remote).getOrCreate())
    require_pyspark()  # Before anything else is asked of it: pyspark-client alone ends the program.
    if (there := SparkSession.getActiveSession()) is not None:
        return there
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - a client of Spark Connect has neither.

    said["spark.app.name"] = name
    if master is not None:
        said["spark.master"] = master
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started Java, and this program from it.
    _prepare(master, is_submitted=is_submitted)
    # Java first: only it can read Spark's files of settings, and only then can our defaults give way to theirs. It gets
    # our settings with its command, because some, such as its memory, come too late afterwards.
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(said.items())))  # noqa: SLF001 - the one way.
    conf = SparkConf()
    for setting, value in said.items():
        conf.setIfMissing(setting, value) if is_submitted else conf.set(setting, value)
    if (conf.get("spark.master") or "").startswith("local"):
        for setting, value in LOCAL_DEFAULTS.items():
            conf.setIfMissing(setting, value)
    SparkContext.getOrCreate(conf)
    return _reading_ledgers(SparkSession.builder.getOrCreate())


def _reading_ledgers(started: SparkSession) -> SparkSession:
    """`started`, which knows the format `neli` from now on."""
    from neli_router.spark.ledger_source import register_ledgers  # noqa: PLC0415 - only a whole PySpark has all of it.

    register_ledgers(started)
    return started


def _prepare(master: str | None, *, is_submitted: bool) -> None:
    """Set what Spark reads from the environment, where nothing is set."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_submitted:
        return
    if home := java_home():
        os.environ["JAVA_HOME"] = home
    is_local = master.startswith("local") if master else not MASTER_ELSEWHERE & os.environ.keys()
    if is_local:
        # Without this, Java looks up the name of the machine, and ends if that has no address.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
