"""The provider on each Airflow that it may meet: `make airflows`, or `python -m tests.provider.airflow_versions UV`.

    for each of VERSIONS: an environment of its own --airflow dags test--> a tagged Dag: a sensor, two gates, tasks
                                                                              '-- they ask one real agent

It takes minutes and a network, so `make test` does not run it: there, the Airflow that is pinned is tested in full.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.agents.processes import AgentProcess, leader_of

ROOT = Path(__file__).parents[2]

VERSIONS = {
    "3.1": ("apache-airflow>=3.1,<3.2",),
    "3.2": ("apache-airflow==3.2.1", "fastapi<0.137", "pydantic<2.13"),  # It fails with newer ones.
    "3.3": ("apache-airflow>=3.3,<3.4",),
    "3.4": ("--prerelease=allow", "apache-airflow>=3.4.0b1,<3.5"),
}

NEEDS = (
    "apache-airflow-providers-common-compat>=1.23",
    "apache-airflow-providers-standard>=1.21",
    *("click", "httpx", "mmh3", "msgspec", "sortedcontainers", "structlog"),
)

STEP_MAX = 900.0
"""Seconds. Only what hangs reaches it."""

DAG = """
from datetime import datetime
from pathlib import Path
from airflow.sdk import dag, task
from airflow_provider.decorators.leader import leader_task
from airflow_provider.sensors.neli import LeaderGateSensor, LeaderSensor

@dag(schedule=None, start_date=datetime(2026, 1, 1), catchup=False, tags=["neli:partition=3"])
def story():
    @leader_task(role=3)
    def work(found, lease):
        return f"{{found['leader']}} {{found['term']}} {{lease.member}} {{lease.term}}"

    @task
    def tell(text, lease=None):
        Path({told!r}).write_text(f"{{text}} {{lease.term}}")

    @leader_task(role=3)
    def skipped():
        Path({told!r}).write_text("it ran below a closed gate")

    waits = LeaderSensor(task_id="waits", role=3)
    waits >> LeaderGateSensor(task_id="opens", role=3, start_from_trigger=False) >> tell(work(waits.output))
    LeaderGateSensor(task_id="closed", role=3, expect="nobody", start_from_trigger=False) >> skipped()

story()
"""


def main(uv: str, names: Sequence[str] = tuple(VERSIONS)) -> int:
    """Print a line for each version; return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder, AgentProcess("a", Path(folder)) as agent:
        leader_of(3, [agent])
        with agent.client() as client:
            term = client.owner_of_role(3).term
        for name in names:
            python = ROOT / ".make" / f"airflow-{name}" / "bin" / "python"
            home = Path(folder) / name
            found = _ran(uv, python, VERSIONS[name], home, agent.connection)
            is_right = found[0].split() == ["a", str(term), "a", str(term), str(term)]
            failed += not is_right
            sys.stdout.write(f"Airflow {found[1]}: {'as it should be' if is_right else 'FAILED: ' + found[0]}\n")
            sys.stdout.flush()
    return failed


def _ran(uv: str, python: Path, wanted: Sequence[str], home: Path, connection: str) -> tuple[str, str]:
    """The text that the Dag wrote, or the end of Airflow's output if it wrote none; and Airflow's exact version."""
    if not python.exists():
        _run([uv, "venv", "-q", "--python", sys.executable, str(python.parents[1])])
        _run([uv, "pip", "install", "-q", f"--python={python}", *wanted, *NEEDS])
    told, dags = home / "told", home / "dags"
    dags.mkdir(parents=True)
    (dags / "story.py").write_text(DAG.format(told=str(told)))
    (home / "neli-0.dist-info").mkdir()
    (home / "neli-0.dist-info" / "METADATA").write_text("Name: neli\nVersion: 0\n")
    (home / "neli-0.dist-info" / "entry_points.txt").write_text("[airflow.policy]\nneli = airflow_provider.policy\n")
    mark = {"AIRFLOW_HOME": str(home), "AIRFLOW_CONN_NELI_DEFAULT": connection, "PYTHONPATH": f"{ROOT}:{home}"}
    environment = {**os.environ, **mark, "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONWARNINGS": "ignore"}
    _run([str(python), "-m", "airflow", "db", "migrate"], environment)
    output = _run([str(python), "-m", "airflow", "dags", "test", "story"], environment)
    version = _run([str(python), "-c", "from importlib.metadata import version; print(version('apache-airflow'))"])
    return told.read_text() if told.exists() else output[-3000:], version.strip()


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    out = subprocess.PIPE
    return subprocess.run(
        command, check=False, env=environment, timeout=STEP_MAX, text=True, stdout=out, stderr=subprocess.STDOUT
    ).stdout


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:] or tuple(VERSIONS)))
