"""Fenced transactions of hooks, and the operator: a deposed task is refused, and leaves nothing behind."""

import importlib
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowOptionalProviderFeatureException, Context
from airflow.providers.common.sql.hooks.sql import DbApiHook

from airflow_provider.fencing import fenced, install
from airflow_provider.operators import sql
from neli_router.fence import FenceMisused, Refused
from tests.fence.test_fence import lease
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.airflow

READ, WAITING = "SELECT body FROM notes", "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


class BooksHook(DbApiHook):
    conn_name_attr = "books_conn_id"

    def __init__(self, connect: Any, place: object) -> None:
        super().__init__()
        self.get_conn, self.supports_autocommit = partial(connect, place), connect is psycopg.connect  # type: ignore[method-assign]
        install(self)
        self.run("CREATE TABLE IF NOT EXISTS notes (body TEXT)")

    def write(self, body: str, term: int, meanwhile: Any = bool) -> None:
        with fenced(self, lease(term), "notes") as connection:
            self.run(f"INSERT INTO notes VALUES ('{body}')", autocommit=True)
            meanwhile(connection)


def test_a_block_is_one_transaction_and_a_lower_term_writes_nothing(tmp_path: Path) -> None:
    hook, other = (BooksHook(sqlite3.connect, tmp_path / "books.db") for _ in range(2))

    def lose_the_admission(connection: Any) -> None:
        connection.rollback()
        other.write("newer", 9)
        hook.run("INSERT INTO notes VALUES ('zombie')")

    hook.write("first", 7)
    for term, act, error in (9, int, TypeError), (8, lose_the_admission, Refused), (7, bool, Refused):
        with pytest.raises(error):
            hook.write("zombie", term, act)
    assert [("first",), ("newer",)] == hook.get_records(READ)


@pytest.mark.postgresql
def test_of_two_leases_that_race_the_older_one_is_refused(database: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        newer, older, watching = (BooksHook(psycopg.connect, database) for _ in range(3))
        with fenced(newer, lease(9), "notes"):
            late = pool.submit(older.write, "zombie", 7)
            until(lambda: watching.get_first(WAITING) == (1,), "the older one waits for the row of the fence")
        assert isinstance(late.exception(PATIENCE), Refused)
        assert [] == older.get_records(READ)


@pytest.mark.usefixtures("neli_default")
def test_the_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, insert = sql.LeaderSQLExecuteQueryOperator, "INSERT INTO notes VALUES (:body)"
    make_hook = partial(BooksHook, sqlite3.connect, tmp_path / "books.db")
    make_hook().write("newer", 2**62)
    monkeypatch.setattr(operator, "get_db_hook", lambda _: make_hook())
    given = {"role": 0, "parameters": {"body": "{{ task.task_id }}"}, "handler": lambda cursor: str(cursor.fetchall())}
    with DAG("books", default_args=given) as dag:
        good = operator(task_id="good", sql=[insert, READ], resource="{{ dag.dag_id }}", return_last=False)
        deposed = operator(task_id="deposed", sql=insert, resource="notes")
    for task in (good, deposed):
        task.render_template_fields(Context(task=task, dag=dag))
    assert ["[]", "[('newer',), ('good',)]"] == good.execute(Context())
    with pytest.raises(Refused):
        deposed.execute(Context())
    assert [("newer",), ("good",)] == make_hook().get_records(READ)
    with pytest.raises(FenceMisused, match="autocommit=True commits each"):
        operator(task_id="task", sql=READ, resource="notes", autocommit=True)
    monkeypatch.setitem(sys.modules, "airflow.providers.common.sql.operators.sql", None)
    with pytest.raises(AirflowOptionalProviderFeatureException, match="install apache-airflow-providers-common-sql"):
        importlib.reload(sql)
