"""The SQLite ledger against what happens to files: full disks, kill -9, operators with `mv`, forks, damage, locks.

     this process:  a ledger in tmp_path          child(script):  another process, where `path` names the same ledger

Faults that break a whole process (no disk space, no privileges, a fork, a kill) happen in a child. Files that a ledger
has open are not opened here with plain `open` until all handles are closed: closing them would drop SQLite's locks.
"""

import os
import random
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from math import inf
from pathlib import Path

import pytest

from neli_router.drivers.ledgers.base import READ_BYTES_MAX, Entry
from neli_router.drivers.ledgers.sqlite import doorbell
from neli_router.drivers.ledgers.sqlite import file as sqlite_file
from neli_router.drivers.ledgers.sqlite.ledger import CHECKPOINT_EVERY, TRIM_MAX, SqliteLedger
from neli_router.errors import LedgerRewound, LedgerUnavailable, LedgerUnusable
from tests.support.processes.forked import Program
from tests.support.waiting import PATIENCE

MIB = 2**20

PREAMBLE = """
import contextlib, os, resource, signal, sys, threading
from errno import EIO, ENOSPC
from neli_router.errors import LedgerRewound, LedgerUnavailable, LedgerUnusable
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from tests.drivers.ledgers.broken_kernel import drop_privileges, refuse
path = sys.argv[1]
def told(act):
    try:
        return act()
    except (LedgerRewound, LedgerUnavailable, LedgerUnusable) as error:
        return f"{type(error).__name__}: {error.found}"
"""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="seccomp, capabilities and inotify are Linux's")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(path, busy_max=0.05)) as opened:
        yield opened


def start(script: str, path: Path) -> Program:
    return Program(PREAMBLE + script, str(path), folder=path.parent)


def child(script: str, path: Path) -> list[str]:
    """The lines that this script printed, run in another process."""
    with start(script, path) as process:
        output, errors = process.communicate()
        assert (0, "") == (process.wait(), errors)
    return output.splitlines()


def everything(ledger: SqliteLedger) -> list[Entry]:
    entries: list[Entry] = []
    while more := ledger.read(0):
        entries += more
    return entries


def stored(path: Path) -> list[Entry]:
    with closing(SqliteLedger(path)) as ledger:
        return everything(ledger)


def test_long_records_end_a_read_and_none_is_missed(ledger: SqliteLedger) -> None:
    """Anyone who may write may write a thousand records of a megabyte."""
    ledger.append([bytes(READ_BYTES_MAX // 2 + 1)] * 3)
    assert ([1, 2], inf) == ([entry.offset for entry in ledger.read(0)], ledger.age())
    assert [3] == [entry.offset for entry in ledger.read(0)]
    assert ledger.age() < inf


@pytest.mark.parametrize("last", [2 * TRIM_MAX + 500, 10 * TRIM_MAX])
def test_a_long_trim_is_done_in_parts_by_the_appends_that_follow_and_spares_them(
    ledger: SqliteLedger, last: int
) -> None:
    """One long transaction would hold up all heartbeats."""
    ledger.append([b"x"] * (3 * TRIM_MAX))
    ledger.trim(last)
    starts = [ledger.start()]
    for _ in range(4):
        ledger.append([b"y"], lasting=False)
        starts.append(ledger.start())
    end = min(last, 3 * TRIM_MAX + 1)
    assert [TRIM_MAX + 1, 2 * TRIM_MAX + 1, end, end, end] == starts


def test_the_files_stay_small_however_much_is_written(path: Path) -> None:
    """50 000 records of heartbeat size, in many commits, with readers and a trim now and then: a few MiB on disk."""
    descriptors: list[int] = []
    sizes: list[int] = []
    with closing(SqliteLedger(path)) as ledger, closing(SqliteLedger(path)) as reader:
        for _ in range(5):
            for _ in range(500):
                ledger.append([b"h" * 60], lasting=False)
            for _ in range(5):
                ledger.append([b"h" * 60] * 1900, lasting=False)
            everything(reader)
            # Two snapshots back, like members do: ten thousand records are kept.
            ledger.trim(ledger.tip() - 10_000)
            sizes.append(sum(file.stat().st_size for file in path.parent.iterdir()))
            descriptors.append(sum(opened.startswith(str(path)) for opened in opened_here()))
        assert 50_001 == ledger.tip()
        assert 20_000 > ledger.tip() - ledger.start()
    assert 8 * MIB > max(sizes)
    # A checkpoint borrows a second connection and gives it back.
    assert descriptors[1] >= descriptors[-1] > 0


def opened_here() -> Iterator[str]:
    """The path of each descriptor of this process, whose other threads open and close some meanwhile."""
    for descriptor in Path("/dev/fd").iterdir():
        with suppress(OSError):
            yield str(descriptor.readlink())


def test_long_records_do_not_pile_up_in_the_log(path: Path, ledger: SqliteLedger) -> None:
    for _ in range(20):
        ledger.append([bytes(MIB)])
        ledger.trim(ledger.tip() - 1)
        assert 12 * MIB > sum(file.stat().st_size for file in path.parent.iterdir())


def test_a_checkpoint_runs_while_no_process_can_commit(path: Path, ledger: SqliteLedger) -> None:
    seen: list[str] = []
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)) as other:
        connect = ledger._file._connect

        def try_to_commit() -> sqlite3.Connection:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            seen.append("tried")
            return connect()

        ledger._file._connect = try_to_commit  # type: ignore[method-assign]
        ledger.append([b"x"] * CHECKPOINT_EVERY)
        other.execute("BEGIN IMMEDIATE")  # And afterwards it is free again.
        other.execute("ROLLBACK")
    assert ["tried"] == seen
    # SQLite's own checkpoints may run while another process commits, which is where the WAL-reset bug lives.
    assert (0,) == ledger._file.run("a look", lambda it: it.execute("PRAGMA wal_autocheckpoint").fetchone())


def assert_refused_and_untouched(path: Path, match: str, *, create: bool = True) -> LedgerUnusable:
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    with pytest.raises(LedgerUnusable, match=match) as raised:
        SqliteLedger(path, create=create)
    assert before == {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    return raised.value


def test_a_file_that_is_no_database_is_refused_and_the_error_says_what_to_do(path: Path) -> None:
    path.write_bytes(b"n")
    assert_refused_and_untouched(path, "something else")
    for content in (b"not a database\n" * 1000, bytes(5000)):
        path.write_bytes(content)
        error = assert_refused_and_untouched(path, "not an SQLite database, or its header was overwritten")
        assert f"the opening of the ledger {path} was wanted" == error.wanted
        assert "name another file; this one was left unchanged" == error.remedy


def test_another_program_s_database_is_refused(path: Path) -> None:
    for mode in ("DELETE", "WAL"):
        with closing(sqlite3.connect(path)) as other:
            other.execute(f"PRAGMA journal_mode = {mode}")
            other.execute("CREATE TABLE IF NOT EXISTS records (offset INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB)")
        assert_refused_and_untouched(path, "holds something else")


def test_another_groups_ledger_and_a_layout_from_the_future_are_refused(path: Path) -> None:
    SqliteLedger(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE belongs_to SET group_name = 'orders'")
    assert_refused_and_untouched(path, "belongs to the group 'orders'")
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {sqlite_file.LAYOUT + 1}")
    said = f"layout is {sqlite_file.LAYOUT + 1}, and this release knows layout {sqlite_file.LAYOUT}"
    assert_refused_and_untouched(path, said)


def test_a_missing_ledger_is_not_made_unless_asked_for_nor_where_no_file_can_be(tmp_path: Path, path: Path) -> None:
    assert_refused_and_untouched(path, "no such file", create=False)
    path.touch()
    assert_refused_and_untouched(path, "the file is empty", create=False)
    SqliteLedger(path).close()  # An empty file may become one: a killed creation leaves one behind.
    SqliteLedger(path, create=False).close()
    assert_refused_and_untouched(tmp_path, "that is a folder")
    with pytest.raises(LedgerUnusable, match=r"there is no folder .*missing: make the folder"):
        SqliteLedger(tmp_path / "missing" / "ledger.db")
    with pytest.raises(LedgerUnusable, match="there is no folder"):
        SqliteLedger(path / "ledger.db")


def test_names_that_mean_something_in_a_uri_are_just_names_and_a_link_is_the_same_ledger(tmp_path: Path) -> None:
    path, link = tmp_path / "100% of? #1 & möre.db", tmp_path / "link.db"
    link.symlink_to(path)
    with closing(SqliteLedger(path)) as ledger, closing(SqliteLedger(link)) as linked:
        linked.append([b"a"])
        assert [Entry(1, b"a")] == ledger.read(0)
    assert path.exists()


@on_linux
def test_a_read_only_file_or_folder_is_refused_to_members_and_read_by_others_while_a_member_is_alive(
    path: Path, ledger: SqliteLedger
) -> None:
    ledger.append([b"a"])
    script = """
drop_privileges()
print(told(lambda: SqliteLedger(path)))
def read():
    global reader
    reader = SqliteLedger(path, create=False)
    return [entry.payload for entry in reader.read(0)]
print(told(read))
if sys.stdin.readline():  # The member has appended in the meantime.
    print([entry.payload for entry in reader.read(60)], told(lambda: reader.append([b"c"])))
"""
    refused = "LedgerUnusable: the file or its folder is read-only for this user"
    for place, mode in ((path, 0o444), (path.parent, 0o555)):
        before = place.stat().st_mode
        place.chmod(mode)
        with start(script, path) as process:
            assert [refused, str([entry.payload for entry in everything(ledger)])] == [
                process.stdout.readline().strip() for _ in range(2)
            ]
            ledger.append([b"b"])
            output, _ = process.communicate("go\n")
        assert output.startswith("[b'b'] LedgerUnusable: it is read-only")
        ledger.seek(1)
        place.chmod(before)
    ledger.close()
    path.chmod(0o444)
    assert [refused, "LedgerUnavailable: no member has it open, and then SQLite reads it only for users who may"] == [
        line.partition(" write there")[0] for line in child(script, path)
    ]
    assert [path.name] == [file.name for file in path.parent.iterdir()]  # The reader created no companions of its own.


def test_a_network_file_system_is_found_by_its_device_and_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
90 22 0:52 / /mnt/with\\040space rw,noatime shared:2 master:3 - nfs4 server:/export rw,vers=4.2
91 22 0:61 / /mnt/ssh rw - fuse.sshfs user@host: rw
"""
    monkeypatch.setattr(sqlite_file, "_mounts", lambda: mounts)
    for found, expected in (((0, 52), "nfs4"), ((8, 1), "ext4"), ((0, 61), "fuse.sshfs"), ((9, 9), "")):
        assert expected == sqlite_file.file_system(os.makedev(*found))
    device = path.parent.stat().st_dev
    mounts = f"22 1 {os.major(device)}:{os.minor(device)} / / rw - nfs4 server:/export rw"
    assert_refused_and_untouched(path, r"network file system \(nfs4\)")


def test_a_locked_file_stops_appends_and_trims_for_a_while_and_reads_not_at_all(
    path: Path, ledger: SqliteLedger
) -> None:
    ledger.append([b"a", b"b"])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable, match="look for a stopped process inside a transaction"):
            ledger.append([b"c"])
        ledger.trim(2)
        assert 1 == ledger.start()
        assert [Entry(1, b"a"), Entry(2, b"b")] == ledger.read(0)
        other.execute("ROLLBACK")
    ledger.append([b"d"])
    assert [Entry(3, b"d")] == ledger.read(0)
    assert 2 == ledger.start()


class Interrupted(list[bytes]):
    """Payloads, while the user presses Ctrl-C."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt


def test_an_interrupted_append_leaves_no_lock_and_no_half(path: Path, ledger: SqliteLedger) -> None:
    with pytest.raises(KeyboardInterrupt):
        ledger.append(Interrupted([b"half", b"other half"]))
    with closing(SqliteLedger(path, busy_max=0)) as other:
        other.append([b"whole"])
    assert [Entry(1, b"whole")] == ledger.read(0)


def test_who_comes_second_finds_the_ledger_made(path: Path, ledger: SqliteLedger) -> None:
    """Both saw an empty file before either had the lock."""
    ledger.append([b"a"])
    with closing(sqlite3.connect(path, isolation_level=None)) as second:
        sqlite_file._create(second)
    assert [Entry(1, b"a")] == ledger.read(0)
    assert [Entry(1, b"a")] == stored(path)


def test_kill_9_at_any_moment_loses_nothing_that_was_acknowledged(path: Path) -> None:
    script = """
ledger = SqliteLedger(path)
for number in range(ledger.tip(), 1_000_000):
    ledger.append([b"%d" % number] * (1 + number % 3), lasting=number % 5 == 0)
    os.write(1, b"".join(b"%d %d\\n" % (offset, number) for offset in ledger.acknowledged()))
    if number % 50 == 0:
        ledger.trim(1)  # A trim that finds nothing takes the write lock, too.
"""
    rng = random.Random(5)
    acknowledged: dict[int, bytes] = {}
    for _ in range(3):
        with start(script, path) as process:
            lines = [process.stdout.readline() for _ in range(rng.randrange(1, 1500))]
            process.kill()
            lines += process.stdout.readlines()
        for offset, number in (line.split() for line in lines if line.endswith("\n")):
            acknowledged[int(offset)] = number.encode()
        entries = stored(path)
        assert list(range(1, len(entries) + 1)) == [entry.offset for entry in entries]
        assert acknowledged.items() <= {entry.offset: entry.payload for entry in entries}.items()
    assert acknowledged


def test_kill_9_while_files_are_made_leaves_files_that_open(tmp_path: Path) -> None:
    script = """
for number in range(1_000_000):
    ledger = SqliteLedger(f"{path}.{number}")
    print(number, flush=True)
    ledger.close()
"""
    rng = random.Random(6)
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with start(script, folder / "ledger.db") as process:
            for _ in range(rng.randrange(1, 10)):
                process.stdout.readline()
            time.sleep(rng.random() / 100)  # Somewhere during the creation of the next one.
            process.kill()
        made = sorted(folder.glob("ledger.db.*[0-9]"))
        assert made
        for path in made:
            with closing(SqliteLedger(path)) as ledger:
                ledger.append([b"a"])
                assert [Entry(1, b"a")] == ledger.read(0)


@on_linux
@pytest.mark.parametrize(
    ("errors", "said", "heartbeats"),
    [
        ("pwrite64=ENOSPC, write=ENOSPC", "the disk is full (SQLite: database or disk is full)", False),
        ("fsync=EIO, fdatasync=EIO", "the operating system could not read or write it (SQLite: disk I/O error)", True),
    ],
    ids=["full", "no flush"],
)
def test_a_bad_disk_stops_appends_but_not_reads_and_without_flushes_heartbeats_go_on(
    path: Path, ledger: SqliteLedger, errors: str, said: str, heartbeats: bool
) -> None:
    """Without flushes, only an append that asks for one fails, and it is not acknowledged."""
    ledger.append([b"before"])
    script = f"""
ledger = SqliteLedger(path)
refuse({errors})
for lasting in (False, True, False):
    print(told(lambda: ledger.append([b"heartbeat"], lasting=lasting)))
print(ledger.acknowledged())
print([entry.payload for entry in ledger.read(0)])
"""
    refusal, read = f"LedgerUnavailable: {said}", [b"before", *[b"heartbeat"] * 2 * heartbeats]
    beat = "None" if heartbeats else refusal
    assert [beat, refusal, beat, str([2, 3] * heartbeats), str(read)] == child(script, path)
    ledger.append([b"after"])
    assert [*read, b"after"] == [entry.payload for entry in ledger.read(0)]


def test_overwritten_pages_and_a_single_changed_byte_are_noticed(path: Path, ledger: SqliteLedger) -> None:
    """SQLite has no checksums: two members could read two different records at one offset."""
    ledger.append([b"a", b"the quick brown fox", *[b"x" * 100] * 1000])
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"quick", b"quack"))
    with pytest.raises(LedgerUnusable, match="offset 2 does not match"):
        stored(path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + b"\xff" * 8192 + whole[middle + 8192 :])
    with pytest.raises(LedgerUnusable, match="it is damaged"):
        stored(path)


def test_a_record_that_was_deleted_is_not_skipped_nor_is_a_table(path: Path, ledger: SqliteLedger) -> None:
    """Members find the ledger rewound; newcomers find it unusable."""
    ledger.append([b"a", b"b", b"c"])
    with closing(sqlite3.connect(path, isolation_level=None)) as other, closing(SqliteLedger(path)) as reader:
        other.execute("DELETE FROM records WHERE offset = 2")
        with pytest.raises(LedgerRewound, match="offset 2 is missing among its neighbours"):
            ledger.read(0)
        other.execute("DROP TABLE records")
        with pytest.raises(LedgerRewound):
            reader.read(0)
    with pytest.raises(LedgerUnusable, match="no such table: records"):
        SqliteLedger(path)


def replace_by_a_copy(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)


@pytest.mark.parametrize(
    "act",
    [
        lambda path: path.rename(path.with_suffix(".old")),
        Path.unlink,
        lambda path: path.with_name(path.name + "-wal").unlink(),
        lambda path: path.with_name(path.name + "-shm").unlink(),
        replace_by_a_copy,
    ],
    ids=["renamed", "deleted", "the log deleted", "the shared memory deleted", "replaced by a copy"],
)
def test_a_file_that_was_moved_away_is_used_no_more(path: Path, act: Callable[[Path], object]) -> None:
    """A member that starts now would make a new file, and both halves of the group would lead."""
    with closing(SqliteLedger(path)) as appender, closing(SqliteLedger(path)) as reader:
        appender.append([b"a"])
        act(path)
        for use in (lambda: appender.append([b"b"], lasting=False), lambda: reader.read(0), reader.tip, reader.start):
            with pytest.raises(LedgerRewound, match=r"while it was in use: stop every member"):
                use()
        if (old := path.with_suffix(".old")).exists():  # It stays unusable: others may have appended.
            old.rename(path)
            with pytest.raises(LedgerRewound):
                appender.append([b"b"])


def test_a_link_that_points_elsewhere_is_noticed(tmp_path: Path, path: Path) -> None:
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    path.symlink_to(one)
    with closing(SqliteLedger(path)) as ledger, closing(SqliteLedger(two)):
        path.unlink()
        path.symlink_to(two)
        with pytest.raises(LedgerRewound, match="was replaced while it was in use"):
            ledger.append([b"a"])


def test_an_older_copy_restored_into_the_file_is_noticed(path: Path) -> None:
    """Like `.restore` of the sqlite3 shell: same file, same inode, but records that a reader had read are gone."""
    with ExitStack() as stack:
        handles = [stack.enter_context(closing(SqliteLedger(path))) for _ in range(4)]
        handles[0].append([b"a", b"b", b"c"])
        with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(path.with_suffix(".backup"))) as backup:
            live.backup(backup)
            handles[0].append([b"d", b"e"])
            for one in handles:
                one.read(0)
            backup.backup(live)
        uses = [lambda: handles[0].append([b"new"]), lambda: handles[1].read(0), handles[2].tip, handles[3].start]
        for use in uses:
            with pytest.raises(LedgerRewound, match=r"the last record in .* is at offset 3, and there was one at 5"):
                use()
        with closing(SqliteLedger(path)) as other:
            other.append([b"other d", b"other e", b"f"])
        for use in uses:  # Even after others have filled the offsets again.
            with pytest.raises(LedgerRewound):
                use()


def test_a_forked_child_opens_its_own_and_loses_nothing(path: Path) -> None:
    """With the parent's connection inherited, SQLite let the child write to a log that the parent then deleted."""
    output = child(
        """
ledger = SqliteLedger(path)
ledger.append([b"by the parent"])
closed, appended = os.pipe(), os.pipe()
if os.fork() == 0:
    ledger.close()
    own = SqliteLedger(path)
    os.write(appended[1], b".")
    os.read(closed[0], 1)
    own.append([b"by the child"])
    os._exit(0)
os.read(appended[0], 1)
print(ledger.read(0))  # The parent goes on as if nothing had been ...
ledger.close()
os.write(closed[1], b".")
os.wait()
print([entry.payload for entry in SqliteLedger(path).read(0)])
""",
        path,
    )
    expected = ["[Entry(offset=1, payload=b'by the parent', time=None)]", "[b'by the parent', b'by the child']"]
    assert expected == output


def test_a_fork_while_another_thread_uses_the_ledger_disturbs_neither(path: Path) -> None:
    """On a busy machine one of them may hold the lock for longer than a member waits for it."""
    output = child(
        """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and newer advise against what is tried here.
ledger = SqliteLedger(path, busy_max=180)
def work():
    for number in range(300):
        ledger.append([b"%d" % number], lasting=False)
        ledger.read(0)
thread = threading.Thread(target=work)
thread.start()
for _ in range(10):
    if os.fork() == 0:
        own = SqliteLedger(path, busy_max=180)
        own.append([b"child"], lasting=False)
        own.close()
        os._exit(0)
    assert os.wait()[1] == 0
thread.join()
ledger.seek(1)
entries = ledger.read(0)
mine = [entry.payload for entry in entries if entry.payload != b"child"]
print(len(entries), mine == [b"%d" % number for number in range(300)])
""",
        path,
    )
    assert ["310 True"] == output


def test_a_fork_behind_pythons_back_is_refused_rather_than_left_without_locks(path: Path) -> None:
    new, inherited, parents = child(
        """
import ctypes
ledger = SqliteLedger(path)
if ctypes.PyDLL(None).fork() == 0:
    print(told(lambda: SqliteLedger(path)), flush=True)
    print(told(lambda: ledger.read(0)), flush=True)
    ledger.close()
    os._exit(0)
os.wait()
ledger.append([b"a"])
print(ledger.read(0))
""",
        path,
    )
    assert "LedgerUnusable: this process was forked, past Python's fork hooks, from one that had a ledger open" == new
    assert inherited.startswith("LedgerUnusable: process ")
    assert "[Entry(offset=1, payload=b'a', time=None)]" == parents


def test_a_file_replaced_during_a_fork_is_noticed(path: Path, ledger: SqliteLedger) -> None:
    """The parent's connection is closed at that moment, so only the remembered identity of the file shows it."""
    ledger.append([b"a"])
    ledger._file.park()
    replace_by_a_copy(path)
    with pytest.raises(LedgerRewound, match="was replaced"):
        ledger.read(0)


@on_linux
def test_an_append_in_another_process_rings(path: Path, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """With unlimited patience, only the bell can end this wait in time."""
    monkeypatch.setattr(ledger.doorbell, "_patience_ms", 1000 * 1000)
    started = time.monotonic()
    with start("SqliteLedger(path).append([b'a'])", path) as process:
        assert [Entry(1, b"a")] == ledger.read(PATIENCE)
        assert time.monotonic() < started + PATIENCE
        process.communicate()


@on_linux
def test_a_read_ends_when_a_descriptor_that_is_watched_is_readable(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger.doorbell, "_patience_ms", 1000 * 1000)
    started, (there, here), called = time.monotonic(), os.pipe(), list[int]()
    ledger.doorbell.watch(there, lambda: called.append(len(os.read(there, 100))))
    timer = threading.Timer(0.05, os.write, (here, b"abc"))
    timer.start()
    assert ([], [3]) == (ledger.read(PATIENCE), called)
    assert time.monotonic() < started + PATIENCE
    timer.join()
    os.write(here, b"d")
    ledger.doorbell.unwatch(there)
    assert ([], [3]) == (ledger.read(0.05), called)
    os.close(there)
    os.close(here)


def test_a_reader_at_the_tip_sleeps(path: Path, ledger: SqliteLedger) -> None:
    """Even after the bell has rung, and with its own ring among what it hears."""
    ledger.append([b"a"])
    ledger.read(0)
    spent, started = time.process_time(), time.monotonic()
    assert [] == ledger.read(0.2)
    assert time.process_time() - spent < (time.monotonic() - started) / 2


def test_without_a_bell_it_looks_now_and_then(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "_watch", lambda _: None)
    with closing(SqliteLedger(path)) as ledger, closing(SqliteLedger(path)) as other:
        assert doorbell.BLIND_MS == ledger.doorbell._patience_ms
        appending = threading.Timer(0.05, other.append, ([b"a"],))
        appending.start()
        assert [Entry(1, b"a")] == ledger.read(PATIENCE)
        appending.join()


def test_a_process_with_no_descriptors_left_is_told_so(path: Path) -> None:
    output = child(
        """
SqliteLedger(path).close()
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
with contextlib.suppress(OSError):
    while True:
        held.append(os.dup(0))
for _ in range(2):
    os.close(held.pop())
print(told(lambda: SqliteLedger(path)))
""",
        path,
    )
    assert ["LedgerUnavailable: it cannot be opened (SQLite: unable to open database file)"] == output
