"""The worker of an Airflow: each attempt at the task of `test_spark_submissions.py` is a process forked from this one.

    test --a line of JSON--> this process, which has imported Airflow --fork--> attempt: Airflow's task runner
         <--its number------'                                                     |-- note: the point that it is at
                                                                                  '-- state: of the task, at its end

The metadata database, with the store of the task's state, is a file that all attempts use. So it keeps what a killed
attempt has stored. The supervisor of an attempt is in its own process, like in `dag.test()`: both are killed together.

An attempt that is to `stop_at` a point waits there until the test kills it or makes the file `go`.
"""

import json
import os
import signal
import sys
import time
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow import settings
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
from airflow.models.dagrun import DagRun, get_or_create_dagrun
from airflow.models.taskinstance import TaskInstance
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Context
from airflow.sdk.definitions.dag import _run_inline_trigger, _run_task
from airflow.sdk.execution_time.supervisor import in_process_api_server
from airflow.sdk.serde import deserialize, serialize
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils import db
from airflow.utils.state import TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType

from airflow_provider.operators.spark import LeaderSparkSubmitHook, LeaderSparkSubmitOperator
from airflow_provider.triggers.neli import LeaderTrigger

BUNDLE = "dags-folder"

LOOK_EVERY = 0.05

told: dict[str, Any] = {}
"""The orders of this attempt."""

kept = list[Any]()
"""The connection to the API server that a thread of this first process serves. Each attempt has another."""


def point(name: str) -> None:
    """Note that this attempt has come to a point, and wait there if it is to."""
    folder = Path(told["folder"])
    with (folder / "points").open("a") as notes:
        notes.write(f"{name}\n")
    while name == told["stop_at"] and not (folder / "go").exists():
        time.sleep(LOOK_EVERY)


class ObservedOperator(LeaderSparkSubmitOperator):
    """Like users', and it notes its points."""

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        point("saved")
        super().poll_until_complete(external_id, context)

    def execute(self, context: Context) -> Any:
        super().execute(context)
        point("ended")


_submit = LeaderSparkSubmitHook.submit


def submit(self: LeaderSparkSubmitHook, application: str = "", **options: Any) -> str | None:
    point("submit")
    submitted = _submit(self, application, **options)
    point("submitted")
    return submitted


def dag_of(mode: str, when_not_leading: Any) -> DAG:
    """Its task submits the job in this mode, by the connection of that name."""
    with DAG(f"{mode}_{when_not_leading}", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None) as dag:
        ObservedOperator(
            task_id="job",
            role=int(os.environ["ROLE"]),
            when_not_leading=when_not_leading,
            conn_id=mode,
            java_class="FencedRows",
            application=os.environ["JAR"],
            application_args=[os.environ["SINK"], "{{ run_id }}", "{{ ti.try_number }}", os.environ["ROWS"]],
            driver_memory="512m",
            executor_memory="512m",
            conf={
                "spark.cores.max": "1",
                "spark.task.maxFailures": "1",
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.extraJavaOptions": os.environ["JAVA_OPTIONS"],
                "spark.executor.extraJavaOptions": os.environ["JAVA_OPTIONS"],
            },
            retries=20,
            retry_delay=timedelta(0),
        )
    return dag


def instance_of(dag: DAG, run: str, session: Any) -> TaskInstance:
    """The task of this run, which is made at its first attempt."""
    found = session.query(DagRun).filter_by(dag_id=dag.dag_id, run_id=run).one_or_none()
    if found is None:
        now = datetime.now(UTC)
        found = get_or_create_dagrun(
            dag=DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)),
            run_id=run,
            logical_date=now,
            data_interval=(now, now),
            run_after=now,
            conf=None,
            triggered_by=DagRunTriggeredByType.TEST,
            triggering_user_name=None,
            start_date=now,
            session=session,
        )
    (task,) = found.get_task_instances(session=session)
    made: TaskInstance = task
    return made


def attempt(dag: DAG) -> None:
    assert settings.Session is not None
    session = settings.Session()
    task = instance_of(dag, told["run"], session)
    state = Path(told["folder"], "state")
    deferral = Path(told["deferral"])
    if told["way"] == "trigger":
        its = json.loads(deferral.read_text())
        kwargs: Any = deserialize(its["trigger_kwargs"])
        trigger = LeaderTrigger(**kwargs)
        point("waiting")
        event = _run_inline_trigger(trigger, task)  # type: ignore[no-untyped-call]
        task.next_method = its["next_method"]
        task.next_kwargs = {**its["next_kwargs"], "event": serialize(event.payload)}
        task.state = TaskInstanceState.SCHEDULED
        session.commit()
        state.write_text("fired")
        return
    if told["way"] != "resume":
        if task.try_number:
            task.prepare_db_for_next_try(session)
        task.try_number += 1
    task.state = TaskInstanceState.SCHEDULED
    session.commit()
    result = _run_task(ti=task, task=dag.task_dict["job"])
    ended = "failed" if result is None else TaskInstanceState(result.state).value
    if result is not None and ended == "deferred":
        told_by: Any = result.msg
        names = ("trigger_kwargs", "next_method", "next_kwargs")
        deferral.write_text(json.dumps({name: getattr(told_by, name) for name in names}))
    state.write_text(ended)


def main() -> None:
    warnings.simplefilter("ignore")  # Airflow's own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Airflow logs to the standard output.
    LeaderSparkSubmitHook.submit = submit  # type: ignore[method-assign]
    home = Path(os.environ["AIRFLOW_HOME"])
    (home / "dags").mkdir()
    db.initdb()
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    made = [dag_of(mode, way) for mode in ("client", "cluster") for way in ("fail", "wait")]
    dags = {dag.dag_id: dag for dag in made}
    with DAG("warm", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None) as dags["warm"]:
        BashOperator(task_id="job", bash_command="true")
    bag = BundleDagBag(home / "dags", bundle_path=home / "dags", bundle_name=BUNDLE)
    for dag in dags.values():
        bag.bag_dag(dag)
    sync_bag_to_db(bag, BUNDLE, None)
    # Everything that a task's first requests build and import takes several seconds of a core: so it is there already.
    told.update(run="warm", way="run", folder=str(home), deferral="", stop_at="")
    attempt(dags["warm"])
    kept.append(in_process_api_server().transport)
    del in_process_api_server().transport
    settings.dispose_orm()
    print("ready", file=answers, flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel reaps them.
    for line in sys.stdin:
        if pid := os.fork():
            print(pid, file=answers, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        told.update(json.loads(line))
        os.environ.update(told["environment"])
        log = os.open(f"{told['folder']}/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        settings.configure_orm()  # type: ignore[no-untyped-call]
        try:
            attempt(dags[told["dag"]])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


if __name__ == "__main__":
    main()
