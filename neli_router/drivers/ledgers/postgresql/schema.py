"""The schema of all groups in a database: tables and functions, made once from the files in `schema/`.

    install --> version() is ours? --no, lock--> ledger.sql, owners.sql, keys.sql, version() --commit--> ready
                        '--yes--> ready

Everything is made in one transaction under a lock, so any number of members may begin at the same time, and none finds
half of a schema. Each file only adds: a table that exists stays, and a function is replaced.

A schema that has this version is left alone. So an operator with more rights may install it once, and the members do
without the right to create anything.
"""

from importlib.resources import files
from typing import Any

import psycopg

__all__ = ["VERSION", "install"]

VERSION = 1
"""Raise it with every change of a file, or a schema that exists keeps the functions it has."""

FILES = ("ledger.sql", "owners.sql", "keys.sql")
"""In this order: a later file may use what an earlier one makes."""

LOCK = 0x6E656C69
"""An advisory lock of this database, for all schemas. The number is `neli` in ASCII."""


def install(connection: psycopg.Connection[Any], schema: str) -> None:
    """Make everything in `schema`, which is written as SQL quotes it. Raises psycopg's errors."""
    if _is_current(connection, schema):
        return
    with connection.transaction():
        # A client that hangs may keep its lock. Without a limit, the sessions that wait for it would pile up.
        connection.execute("SET LOCAL lock_timeout TO '400ms'")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        if _is_current(connection, schema):
            return
        # Not IF NOT EXISTS: that takes the right to create a schema even if this one exists.
        if _answer(connection, "SELECT to_regnamespace(%s) IS NULL", schema):
            connection.execute(f"CREATE SCHEMA {schema}".encode())
        for name in FILES:
            text = (files(__package__) / "schema" / name).read_text(encoding="utf-8")
            connection.execute(text.replace("{schema}", schema).encode())
        head = f"CREATE OR REPLACE FUNCTION {schema}.version() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE"
        connection.execute(f"{head} AS 'SELECT {VERSION}'".encode())


def _is_current(connection: psycopg.Connection[Any], schema: str) -> bool:
    """Without a lock: while an installation goes on, its schema is not there for others."""
    is_there = _answer(connection, "SELECT to_regprocedure(%s) IS NOT NULL", f"{schema}.version()")
    return bool(is_there and _answer(connection, f"SELECT {schema}.version()") >= VERSION)


def _answer(connection: psycopg.Connection[Any], question: str, *values: Any) -> Any:
    row = connection.execute(question.encode(), values or None).fetchone()
    assert row is not None
    return row[0]
