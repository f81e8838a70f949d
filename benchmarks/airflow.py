"""The cost of waiting in Airflow: gates of tasks, triggers that fire, and a triggerer with 500 waiting sensors.

    a real installation: triggerer --one stream--> an agent in its own process, on the installation's host
                         tasks ------------------>   '---- a member "other" of the same group, in this process, to which
                                                           roles are pinned, and which gives one away again and again

    gate_ms               the lease of a role of this host, around work that takes no time, minus the same without:
                          connection, lease, end. Both take turns in one task; the median of all
    gate_first_ms         the same for the first gate of each task, which also imports missing modules
    xcom_ms               in addition, one XCom: through the worker and the API server to Airflow's database. The
                          link to the page is one, as with every operator link; so is the term, where it is pushed
    trigger_p50_ms        from the append of the Handover to "Trigger fired event" in the log of the task, while all
    trigger_p95_ms        the other sensors are woken, look, and go on waiting
    database_p50_ms       from that append to the end of the task in Airflow's database: the triggerer hands events over
                          once a second, for any trigger
    sensor_cpu            share of one core for all processes of the triggerer, while the sensors only wait
    sensor_cpu_changing   the same while a role that none of them waits for moves each second, and another one
                          takes its place: each move wakes them all
    bare_cpu              the same before there is a sensor

`load` is the machine's load at the beginning and at the end. Above one per core, all figures are too high.
"""

import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles

from benchmarks import BenchmarkOptions, Figures, option
from benchmarks._agent import LEASE, PARTITIONS, configured
from benchmarks._airflow.sizes import FIRING, GATES, HELD_HERE, ROLE, WAITED_FOR, WAITING
from benchmarks.agent import Stamping, started_agent
from neli_router.core.clock import host_clock
from neli_router.member.member import Member
from tests.support.given import spelled
from tests.support.servers.airflow import Airflow, until

__all__ = ["Options", "run"]

PATIENCE = 600.0
"""Seconds. A busy machine may take minutes to start five hundred triggers, fifty a round."""

SETTLING = 2.0
"""Seconds for the triggerer to finish earlier work."""

PACE = 1.0
"""Seconds between two changes that wake the sensors."""


class Options(BenchmarkOptions):
    runs: int = option(5, f"of {WAITING} sensors that wait")
    changes: int = option(20, f"of leader, for each of which {FIRING} sensors fire")
    tasks: int = option(5, f"that go through {GATES} gates")
    seconds: float = option(30.0, "for which processor time is counted")


def run(options: Options) -> Figures:
    runtime, cores, load = Stamping(), sorted(os.sched_getaffinity(0)), os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="neli-") as folder,
        started_agent(folder, cores[-1]),
        Member(configured(folder, "other"), runtime=runtime) as other,
        Airflow.started(_environment(folder), dags=Path(__file__).parent / "_airflow") as airflow,
    ):
        _pin(other, {ROLE, *WAITED_FOR}, "other")
        _pin(other, {HELD_HERE}, "agent")
        airflow.api.await_dag("waiting", "firing", "gated")
        tasks = [_gates(airflow) for _ in range(options.tasks)]
        bare = _core_share(airflow, options.seconds)
        waiting = [airflow.api.trigger("waiting") for _ in range(options.runs)]
        _await(lambda: WAITING * options.runs == sum(_begun(airflow, "waiting", one) for one in waiting), "the sensors")
        time.sleep(SETTLING)
        idle = _core_share(airflow, options.seconds)
        with _restless(other):
            changing = _core_share(airflow, options.seconds)
        times = [took for _ in range(options.changes) for took in _change(airflow, other, runtime)]
    fired, known = ([1e3 * took[kind] for took in times] for kind in range(2))
    gates, pushes = ([took for task in tasks for took in task[kind]] for kind in range(2))
    return {
        "gate_ms": median(gates),
        "gate_p95_ms": quantiles(gates, n=20)[18],
        "gate_first_ms": median(task[0][0] for task in tasks),
        "xcom_ms": median(pushes),
        "trigger_p50_ms": median(fired),
        "trigger_p95_ms": quantiles(fired, n=20)[18],
        "database_p50_ms": median(known),
        "database_p95_ms": quantiles(known, n=20)[18],
        "sensor_cpu": idle,
        "sensor_cpu_changing": changing,
        "bare_cpu": bare,
        "sensors": WAITING * options.runs,
        "partitions": PARTITIONS,
        "lease_s": LEASE,
        "load_before": load,
        "load_after": os.getloadavg()[0],
    }


def _environment(folder: str) -> dict[str, str]:
    connection = spelled(address=f"unix:{folder}/agent.sock")
    return {"AIRFLOW_CONN_NELI_DEFAULT": connection, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}


def _await(holds: Callable[[], bool], what: str) -> None:
    until(holds, what, patience=PATIENCE)


def _pin(other: Member, partitions: set[int], name: str) -> None:
    for partition in partitions:
        other.operator.pin(partition, name)
    _await(
        lambda: {name} == {other.router.owner_of_role(partition).name for partition in partitions},
        f"the roles of {name}",
    )


def _gates(airflow: Airflow) -> list[list[float]]:
    """Milliseconds for the gates of one task, and for its XComs."""
    started = airflow.api.trigger("gated")
    assert airflow.api.await_run("gated", started, patience=PATIENCE) == "success", airflow.api.log(
        "gated", started, "measure"
    )
    return [list(map(float, took)) for took in airflow.api.xcom("gated", started, "measure")]


def _change(airflow: Airflow, other: Member, runtime: Stamping) -> list[tuple[float, float]]:
    """One change: seconds until each waiting trigger fired, and until its task had ended."""
    started = airflow.api.trigger("firing")
    _await(lambda: _begun(airflow, "firing", started) == FIRING, "the sensors that shall fire")
    other.operator.pin(ROLE, "agent")
    assert airflow.api.await_run("firing", started, patience=PATIENCE) == "success"
    # Airflow uses the time of day, and the append was stamped by the host's clock: read both now.
    changed_at = time.time() - (host_clock() - runtime.stamped.handed_over_at)
    _pin(other, {ROLE}, "other")
    ended = {task["task_id"]: _seconds(task["end_date"]) for task in airflow.api.task_instances("firing", started)}
    return [(at - changed_at, ended[task] - changed_at) for task, at in _fired(airflow, started).items()]


@contextmanager
def _restless(other: Member) -> Iterator[None]:
    """Meanwhile a role moves back and forth, each second."""
    is_over = threading.Event()

    def move() -> None:
        name = "agent"
        while not is_over.wait(PACE):
            other.operator.pin(ROLE, name)
            name = "other" if name == "agent" else "agent"

    moving = threading.Thread(target=move, name="moving")
    moving.start()
    try:
        yield
    finally:
        is_over.set()
        moving.join()
        _pin(other, {ROLE}, "other")


def _begun(airflow: Airflow, dag_id: str, started: str) -> int:
    """How many triggers of a run have logged that they begin."""
    return sum("starting" in path.read_text(encoding="utf-8") for path in _log_files(airflow, dag_id, started))


def _fired(airflow: Airflow, started: str) -> dict[str, float]:
    """When each task's trigger fired, in seconds of the time of day."""
    found = {}
    for path in _log_files(airflow, "firing", started):
        (line,) = (line for line in path.read_text(encoding="utf-8").splitlines() if "Trigger fired event" in line)
        stamp = re.search(r'"timestamp":"([^"]+)"', line)
        assert stamp is not None, line
        found[path.parent.name.removeprefix("task_id=")] = _seconds(stamp.group(1))
    assert len(found) == FIRING, found
    return found


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _log_files(airflow: Airflow, dag_id: str, started: str) -> list[Path]:
    return list(Path(airflow.home, "logs", f"dag_id={dag_id}", f"run_id={started}").glob("*/*.trigger.*.log"))


def _core_share(airflow: Airflow, seconds: float) -> float:
    """The share of one core that all processes of the triggerer use."""
    before, started = _processor_seconds(airflow), time.perf_counter()
    time.sleep(seconds)
    return (_processor_seconds(airflow) - before) / (time.perf_counter() - started)


def _processor_seconds(airflow: Airflow) -> float:
    session, total = airflow.pid("triggerer"), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="ascii").rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue  # It has ended, or is not one of ours.
        if int(fields[3]) == session:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")
