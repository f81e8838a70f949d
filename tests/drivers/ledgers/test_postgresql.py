"""PostgreSQL as a ledger, and its mishaps: crashes, failovers, lost records, locks, full disks, roles.

     Postgresql.started() --> a server for one test --> ledgers of it, and SQL for what an operator would do

A loss must be noticed before anything new is handed over, whatever stands in its place.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psycopg
import pytest

from neli_router.drivers.ledgers.base import Promise
from neli_router.drivers.ledgers.postgresql.address import parse
from neli_router.drivers.ledgers.postgresql.link import SqlLink
from neli_router.drivers.open import delete_ledger
from neli_router.errors import LedgerError, LedgerRewound, LedgerUnavailable, LedgerUnusable
from tests.conftest import require
from tests.support.asking import (
    Open,
    append_through_trouble,
    entries,
    next_through_trouble,
    rewinds,
    take,
    through_trouble,
    trouble_of,
    write,
)
from tests.support.servers.postgresql import DURABLE, Postgresql, missing
from tests.support.servers.redis import make_certificates
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.postgresql

GONE = "it is gone, and there was a record at offset 3"
ANOTHER = "the record at offset 3 is not the one that was read there"


def started() -> Iterator[Postgresql]:
    require(missing())
    with Postgresql.started(settings=DURABLE) as server:
        yield server


server = pytest.fixture(scope="module")(started)
"""A server that no test here kills, or changes for the next one."""

own = pytest.fixture(started)
"""A server for one test."""


@pytest.fixture(name="url")
def _url(server: Postgresql, request: pytest.FixtureRequest) -> str:
    return server.url(f"t{hash(request.node.name) % 2**32}")


def test_any_client_can_read_records_and_the_oldest_are_dropped(server: Postgresql, url: str, opened: Open) -> None:
    ledger = opened(url)
    assert (1, 1) == (ledger.start(), ledger.tip())
    assert [1, 2] == write(ledger, b"one", b"two")
    found = server.ask(
        'SELECT "offset", payload FROM neli.records JOIN neli.ledgers ON ledger = id '
        f"WHERE name = '{url.rpartition('=')[2]}' ORDER BY 1"
    )
    assert [(1, b"one"), (2, b"two")] == found
    write(ledger, *(b"%d" % number for number in range(3, 3001)))
    ledger.trim(2500)  # In more than one step.
    until(lambda: ledger.start() == 2500)
    assert 3001 == ledger.tip()
    ledger.trim(9999)  # All but the last one, from which the next append counts on.
    until(lambda: ledger.start() == 3000)
    assert [3001] == write(ledger, b"more")


def test_offsets_are_in_the_order_of_commits_and_without_holes_whatever_the_roles_settings_are(
    server: Postgresql, opened: Open
) -> None:
    """With its snapshot from before it waited, an append would count on from the past. There are eight writers."""
    server.ask("CREATE ROLE strict LOGIN SUPERUSER")
    server.ask("ALTER ROLE strict SET default_transaction_isolation TO 'serializable'")
    server.ask("ALTER ROLE strict SET synchronous_commit TO off")
    url = server.url("strict").replace("neli@", "strict@")
    reader, writers = opened(url), [opened(url) for _ in range(8)]
    for number in range(40):
        for writer in writers:
            writer.append([b"%d" % number] * (1 + number % 3))
    count = sum(1 + number % 3 for number in range(40)) * len(writers)
    assert list(range(1, count + 1)) == [entry.offset for entry in entries(reader, count)]


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        ("DROP SCHEMA neli CASCADE", GONE),
        ("DROP TABLE neli.records", GONE),
        ("TRUNCATE neli.records", "it ends at 1, and there was a record at offset 3"),
        ('DELETE FROM neli.records WHERE "offset" > 1', "it ends at 2, and there was a record at offset 3"),
        # Like a restored copy that has grown.
        ("DELETE FROM neli.records WHERE \"offset\" > 2; SELECT neli.append(1, '{a, b, c}')", ANOTHER),
        ("DELETE FROM neli.ledgers; DELETE FROM neli.records; INSERT INTO neli.ledgers (name) VALUES ('jobs')", GONE),
    ],
)
def test_what_takes_records_away_is_a_rewound_ledger(own: Postgresql, begun: Open, harm: str, found: str) -> None:
    ledger = begun(own.url("jobs"), b"one", b"two", b"three")
    own.ask(harm)
    assert found == rewinds(ledger)


def test_a_crash_loses_nothing_that_was_acknowledged(own: Postgresql, opened: Open) -> None:
    ledger = opened(own.url("jobs"))
    offsets = write(ledger, *(b"%d" % number for number in range(100)))
    assert 100 == len(take(ledger, 100))
    own.restart()
    last = append_through_trouble(ledger, b"more")
    assert last > offsets[-1]
    assert b"more" == next_through_trouble(ledger)


def test_a_failover_to_a_synchronous_standby_loses_nothing(own: Postgresql, begun: Open) -> None:
    with own.standby(synchronous=True) as standby:
        ledger = begun(own.url("jobs", standby), b"one", b"two")
        assert Promise.NEVER_REWINDS in ledger.promises
        own.kill()
        trouble_of(lambda: ledger.read(0))
        standby.promote()
        own.follow(standby, synchronous=True)
        assert 3 <= append_through_trouble(ledger, b"three")
        assert b"three" == next_through_trouble(ledger)


def test_a_failover_that_lost_records_is_a_rewound_ledger(own: Postgresql, begun: Open) -> None:
    with own.standby() as standby:
        ledger = begun(own.url("jobs", standby), b"one", b"two")
        assert Promise.NEVER_REWINDS not in ledger.promises
        assert any("the standbys are asynchronous: a failover may lose" in doubt for doubt in ledger.doubts)
        copied = "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication"
        until(lambda: [(True,)] == own.ask(copied))
        standby.freeze()
        own.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")  # Or it would find them in its socket.
        write(ledger, b"three", b"four")
        assert [b"three", b"four"] == take(ledger, 2)
        own.kill()
        standby.thaw()
        standby.promote()
        assert "it ends at 3, and there was a record at offset 4" == rewinds(ledger)


def test_a_standby_alone_is_refused(own: Postgresql, opened: Open) -> None:
    with own.standby() as standby, pytest.raises(LedgerUnavailable, match="give the primary's address, or all hosts"):
        opened(standby.url("jobs"))


def test_a_lock_that_a_stopped_client_holds_is_named_as_each_role_may_see_it_and_a_long_transaction_harms_nothing(
    url: str, server: Postgresql, opened: Open, begun: Open
) -> None:
    ledger = begun(url, b"one")
    server.ask("CREATE ROLE unprivileged LOGIN")
    server.ask(GRANTS.format(role="unprivileged"))
    of_another_role = opened(url.replace("neli@", "unprivileged@"))
    with closing(psycopg.connect(server.database, application_name="forgotten")) as other:
        other.execute("SELECT count(*) FROM neli.records")  # Its transaction stays open.
        assert [2] == write(ledger, b"two")
        other.execute("SELECT FROM neli.ledgers FOR UPDATE")
        pid = other.info.backend_pid
        error = trouble_of(lambda: ledger.append([b"three"]), f"PID {pid}, forgotten, idle in transaction")
        assert "pg_terminate_backend" in error.remedy
        other.execute("SET application_name TO ''")
        trouble_of(lambda: of_another_role.append([b"three"]), f"PID {pid}, of another role")
        server.ask(f"SELECT pg_terminate_backend({pid})")
        append_through_trouble(ledger, b"four")


def test_a_server_without_a_free_connection_says_so_and_heals(begun: Open) -> None:
    require(missing())
    few = {"max_connections": "6", "superuser_reserved_connections": "1", "max_wal_senders": "0"}
    with Postgresql.started(settings=few) as small, ExitStack() as stack:
        small.ask("CREATE ROLE usual LOGIN; GRANT CREATE ON DATABASE postgres TO usual")
        url = small.url("jobs").replace("neli@", "usual@")
        ledger = begun(url, b"one")
        with suppress(psycopg.OperationalError):
            while True:
                stack.enter_context(psycopg.connect(small.database.replace("neli@", "usual@")))
        with pytest.raises(LedgerUnavailable, match=r"raise max_connections"):
            ledger.tip()
        assert [2] == write(ledger, b"two")  # It keeps the connections that it has.
        stack.close()
        assert [3] == through_trouble(lambda: [ledger.tip()])


def test_a_full_disk_is_said_and_heals(own: Postgresql, begun: Open, as_root: Path) -> None:
    disk = own.folder / "disk"
    disk.mkdir()
    subprocess.run([as_root, "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
    try:
        subprocess.run([as_root, "chown", str(own.folder.stat().st_uid), disk], check=True)
        ledger = begun(own.url("jobs"), b"one")
        own.ask(f"CREATE TABLESPACE small LOCATION '{disk}'")
        own.ask("ALTER TABLE neli.records SET TABLESPACE small")
        with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        error = trouble_of(lambda: ledger.append([bytes(range(256)) * 30]), "53100")
        assert "make room" in error.remedy
        (disk / "filler").unlink()
        append_through_trouble(ledger, b"two")
        own.ask("ALTER TABLE neli.records SET TABLESPACE pg_default")
    finally:
        own.stop()
        subprocess.run([as_root, "umount", disk], check=True)
        shutil.rmtree(disk)


GRANTS = """
GRANT USAGE ON SCHEMA neli TO {role};
GRANT SELECT, INSERT, UPDATE ON neli.ledgers TO {role};
GRANT SELECT, INSERT, DELETE ON neli.records TO {role};
"""


def test_the_least_rights_are_enough_and_may_come_back_and_fewer_or_a_wrong_password_are_refused(
    own: Postgresql, opened: Open
) -> None:
    write(opened(own.url("jobs")), b"one")
    own.ask("CREATE ROLE member LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE asker LOGIN PASSWORD 'word'")
    own.ask(GRANTS.format(role="member"))
    own.ask("GRANT USAGE ON SCHEMA neli TO asker; GRANT SELECT ON ALL TABLES IN SCHEMA neli TO asker")

    def by(who: str, group: str = "jobs") -> str:
        return own.url(group).replace("neli@", f"{who}@")

    ledger = opened(by("member"))
    assert [2] == write(ledger, b"two")
    assert [b"one", b"two"] == take(ledger, 2)
    ledger.trim(2)
    assert (2, 3) == (ledger.start(), ledger.tip())
    assert [b"two"] == take(opened(by("asker"), create=False), 1)  # A router, which writes nothing.
    own.ask("REVOKE ALL ON neli.records FROM member")
    assert "42501" in trouble_of(lambda: ledger.read(0)).found
    own.ask(GRANTS.format(role="member"))
    append_through_trouble(ledger, b"three")
    assert b"three" == next_through_trouble(ledger)
    with pytest.raises(LedgerUnusable, match=r"42501.*docs/postgresql.md"):
        delete_ledger(by("member"))
    with pytest.raises(LedgerUnusable, match=r"42501.*docs/postgresql.md"):
        opened(by("stranger"))
    with pytest.raises(LedgerUnusable, match=r"42501.*docs/postgresql.md"):
        opened(by("stranger") + "&schema=other")
    (own.folder / "data" / "pg_hba.conf").write_text("local all neli trust\nhost all all all scram-sha-256\n")
    own.ask("SELECT pg_reload_conf()")
    for who in ("asker:hidden", "nobody:hidden", "asker"):
        with pytest.raises(LedgerUnusable, match=r"check the user and the password") as caught:
            opened(by(who), create=False)
        assert "hidden" not in str(caught.value)
    opened(by("asker:word"), create=False)


def test_a_deleted_ledger_leaves_no_row(own: Postgresql, opened: Open) -> None:
    write(opened(own.url("jobs")), b"one")
    assert ["neli.records of jobs"] == delete_ledger(own.url("jobs"))
    assert [(0, 0)] == own.ask("SELECT (SELECT count(*) FROM neli.records), (SELECT count(*) FROM neli.ledgers)")


def test_tls_a_password_file_and_a_service_file_are_libpq_s_own(
    own: Postgresql, opened: Open, begun: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(own.folder)
    make_certificates(tmp_path)  # A stranger's.
    os.chown(own.folder / "server.key", own.folder.stat().st_uid, -1)
    files = {f"ssl_{kind}_file": str(own.folder / f"server.{end}") for kind, end in (("cert", "crt"), ("key", "key"))}
    own.settings |= {"ssl": "on", **files}
    own.ask("CREATE ROLE member LOGIN SUPERUSER PASSWORD 'word'")
    (own.folder / "data" / "pg_hba.conf").write_text("local all neli trust\nhostssl all all all scram-sha-256\n")
    own.stop()
    own.start()
    passwords, services = tmp_path / "passwords", tmp_path / "services"
    passwords.write_text(f"127.0.0.1:{own.port}:*:member:word\n")
    passwords.chmod(0o600)
    services.write_text(f"[group]\nhost=127.0.0.1\nport={own.port}\nuser=member\ndbname=postgres\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    secure = f"passfile={passwords}&sslmode=verify-full&sslrootcert="
    begun(f"postgresql:///?service=group&group=jobs&{secure}{own.folder}/ca.crt", b"one")
    url = own.url("jobs").replace("neli@", "member@")
    for doubtful, said in (
        (f"{url}&{secure}{tmp_path}/ca.crt", "certificate verify failed"),
        (f"{url}&passfile={passwords}&sslmode=disable", "no encryption"),
    ):
        with pytest.raises(LedgerError, match=said):
            opened(doubtful)


def test_without_notifications_a_reader_polls(url: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a pooler in transaction mode, which accepts LISTEN and delivers nothing."""
    monkeypatch.setattr(SqlLink, "listen", lambda link, channel: None)
    ledger, other = opened(url), opened(url)
    for number in range(5):
        write(other, b"%d" % number)
        assert [b"%d" % number] == take(ledger, 1)
    assert ledger._reader._link.is_polling  # type: ignore[attr-defined]


def test_a_link_polls_only_while_notifications_are_missing(url: str) -> None:
    at, _ = parse(*url.split(":", 1))
    assert at is not None
    with closing(SqlLink(at, "a test")) as link:
        link.listen("heard")
        for number in (1, 2, 3):
            assert not link.is_polling, number
            link.missed()
        while link.is_polling:
            link.ask("SELECT pg_notify('heard', '')")
            assert link.wait(PATIENCE)
        link.missed()
        assert not link.is_polling


def test_what_it_promises_and_what_endangers_it_follow_from_the_settings(own: Postgresql, opened: Open) -> None:
    safe = {Promise.DURABLE, Promise.NEVER_REWINDS}
    for name, value, promises, doubt in (
        ("fsync", "on", safe, "one disk has all records"),
        ("fsync", "off", set(), "fsync is off: a crash of the server's host loses records"),
        ("full_page_writes", "off", set(), "full_page_writes is off: a crash of the server's host may damage"),
    ):
        own.settings[name] = value
        own.stop()
        own.start()
        ledger = opened(own.url("jobs"))
        assert {Promise.MULTI_HOST, *promises} == ledger.promises
        assert any(doubt in sentence for sentence in ledger.doubts), ledger.doubts
        assert promises == opened(own.unix_url("jobs")).promises  # Only this host can reach a socket.
        own.settings[name] = "on"
    own.stop()
    own.start()
    own.ask("SELECT pg_create_physical_replication_slot('away')")  # Of a standby that may come back.
    ledger = opened(own.url("jobs"))
    assert {Promise.MULTI_HOST, Promise.DURABLE} == ledger.promises
    assert any("the standbys are asynchronous" in doubt for doubt in ledger.doubts)


def test_nothing_is_appended_to_a_ledger_that_is_gone(own: Postgresql, begun: Open) -> None:
    ledger = begun(own.url("jobs"), b"one")
    own.ask("DELETE FROM neli.ledgers")
    with pytest.raises(LedgerRewound):
        until(lambda: ledger.append([b"two"]))
    assert [(1,)] == own.ask("SELECT count(*)::int FROM neli.records")
