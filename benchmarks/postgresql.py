"""The cost of a ledger in PostgreSQL: an append, a notification with many groups, and the space of a million records.

    a handle --append--> a row --NOTIFY--> another handle --read      next to a bare INSERT and SELECT, in turn
    N groups, each with one client that appends --pgbench--> appends a second, with and without notifications
    a million records, the old ones trimmed --autovacuum--> the size of the table, at every tenth

One server, with PostgreSQL's own settings, and psycopg for both sides of the first comparison.

    append_to_read_over_bare        median over median
    append_to_read_polled_ms_p50    where no notification arrives, as behind a pooler in transaction mode
    notified_over_silent@N          appends a second with N groups, as the driver does it: in a transaction of its own
    notified_within_over_silent@N   the same with NOTIFY in the transaction of the append, whose lock waits for the disk
    records_growth                  the table's size at the end over that at half time
"""

import re
import subprocess
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from statistics import median
from unittest.mock import patch

import psycopg

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.postgresql.link import SqlLink
from neli_router.drivers.open import open_ledger
from neli_router.errors import LedgerUnavailable
from tests.support.servers.postgresql import DURABLE, Postgresql, program

__all__ = ["Options", "run"]

BEAT = b"an append of about the size of a heartbeat, which says who, when, what it has read, and a digest of that" * 2
KEPT = 10_000
"""Records that a trim leaves, as a group does."""
RUN = 250
REST = 0.05
"""Seconds of rest before each append and each bare INSERT: a core that sleeps takes its time to wake."""
SILENT = "SELECT neli.append(:client_id + 1, ARRAY[repeat('x', 200)::bytea]);\n"
NOTIFY = "SELECT pg_notify('neli_' || :client_id, '') FROM set_config('synchronous_commit', 'off', true);\n"
WITHIN = SILENT.replace("]);", "]), pg_notify('neli_' || :client_id, '');")


class Options(BenchmarkOptions):
    appends: int = option(500, "of a record, each read by another handle")
    groups: tuple[int, ...] = option((1, 32), "that append at the same time")
    seconds: int = option(5, "for each way to notify")
    records: int = option(1_000_000, "whose space is measured")
    rate: int = option(3_600, "records a second: a busy host's hour of heartbeats in five minutes")


def run(options: Options) -> Figures:
    with Postgresql.started(settings=DURABLE) as server:
        figures = _appends(server, options.appends)
        for groups in options.groups:
            figures |= _notifications(server, groups, options.seconds)
        return {**figures, **_space(server, options)}


def _appends(server: Postgresql, count: int) -> Figures:
    with ExitStack() as stack:
        writer, reader = (_opened(stack, server, "appends") for _ in range(2))
        one, other = (stack.enter_context(psycopg.connect(server.database, autocommit=True)) for _ in range(2))
        one.execute("CREATE TABLE bare (number bigserial PRIMARY KEY, payload bytea)")
        ours, bare = list[float](), list[float]()
        for number in range(count):
            ours.append(_seconds_to_read(writer, reader))
            time.sleep(REST)
            began = time.perf_counter()
            one.execute("INSERT INTO bare (payload) VALUES (%s)", (BEAT,))
            assert other.execute("SELECT * FROM bare WHERE number > %s", (number,)).fetchall()
            bare.append(time.perf_counter() - began)
        with patch.object(SqlLink, "listen"):
            polling = _opened(stack, server, "appends")
            polled = [_seconds_to_read(writer, polling) for _ in range(count // 5)]
    return {
        "append_to_read_over_bare": median(ours) / median(bare),
        "append_to_read_ms_p50": 1e3 * median(ours),
        "append_to_read_polled_ms_p50": 1e3 * median(polled),
    }


def _opened(stack: ExitStack, server: Postgresql, group: str) -> Ledger:
    return stack.enter_context(closing(open_ledger(server.url(group), create=True, patience=1.0)))


def _seconds_to_read(writer: Ledger, reader: Ledger) -> float:
    while reader.read(REST):
        pass
    began = time.perf_counter()
    writer.append([BEAT])
    while not reader.read(1.0):
        pass
    return time.perf_counter() - began


def _notifications(server: Postgresql, groups: int, seconds: int) -> Figures:
    with ExitStack() as stack:
        for number in range(groups):
            _opened(stack, server, f"notified-{number}")
    silent, after, within = (
        _appends_per_second(server, groups, seconds, script) for script in (SILENT, SILENT + NOTIFY, WITHIN)
    )
    return {
        f"notified_over_silent@{groups}": after / silent,
        f"notified_within_over_silent@{groups}": within / silent,
        f"appends_per_second@{groups}": after,
    }


def _appends_per_second(server: Postgresql, groups: int, seconds: int, script: str) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        many = ("-c", str(groups), "-j", "2", "-T", str(seconds), "-n", "-f", file.name, "-p", str(server.port))
        words = [program("pgbench"), "-h", server.host, "-U", "neli", *many, "postgres"]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = re.search(r"tps = ([0-9.]+)", said)
    assert found is not None, said
    return float(found[1])


def _space(server: Postgresql, options: Options) -> Figures:
    sizes = list[int]()
    with ExitStack() as stack:
        ledger = _opened(stack, server, "space")
        began, appended, tenth = time.monotonic(), 0, options.records // 10
        while appended < options.records:
            with suppress(LedgerUnavailable):
                ledger.append([BEAT] * RUN)
            while not (offsets := ledger.acknowledged()):
                time.sleep(0.001)
            before, appended = appended, offsets[-1]
            if appended // KEPT > before // KEPT:
                ledger.trim(appended - KEPT)
            if appended // tenth > before // tenth:
                sizes += [int(server.ask("SELECT pg_total_relation_size('neli.records')")[0][0])]
            time.sleep(max(0.0, appended / options.rate - (time.monotonic() - began)))
    return {"records_growth": sizes[-1] / sizes[len(sizes) // 2 - 1], "records_bytes": sizes[-1], "records": appended}
