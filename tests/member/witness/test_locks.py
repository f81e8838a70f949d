"""Members of one SQLite ledger notice each other's ends: real processes, whose seats only a certificate can end."""

import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from neli_router.config.config import Config
from neli_router.config.protocols import Induction
from neli_router.drivers.ledgers.sqlite.file import beside, delete_file
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.drivers.open import open_ledger
from neli_router.errors import Unsupported
from neli_router.member.runtime import THREADS
from neli_router.member.witness import locks
from neli_router.member.witness.base import NO_WITNESS, OwnLife
from neli_router.member.witness.locks import PEERS, WATCHED_MAX, LifeLocks, PeerWitness
from neli_router.protocols.induction.records import Certify, Join
from neli_router.protocols.protocol import Notice
from tests.member.witness.peers import Nursery, Peers
from tests.member.witness.records_of import open_files
from tests.support.processes.forked import Program, lives
from tests.support.records import founded
from tests.support.waiting import PATIENCE, until

LIFE, OTHER = "0123456789ab", "ba9876543210"
WITH_OTHER = founded(Join(by=f"{OTHER}0000", name="other", versions=(2, 2), at=1, witness=PEERS))

LONG_TURN = 4 * PATIENCE
"""If only one peer should write, the others must leave it more time than it needs, even on a busy machine."""


@pytest.fixture(name="nursery", scope="module")
def one_nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(name="peers")
def some_peers(nursery: Nursery, tmp_path: Path) -> Iterator[Peers]:
    with Peers(tmp_path, nursery) as peers:
        yield peers


def descriptors(folder: Path) -> int:
    """How many descriptors this process has open for processes, epolls and files in `folder`."""
    ours = (str(folder), "anon_inode:[pidfd]", "anon_inode:[eventpoll]")
    return sum(path.startswith(ours) for path in open_files(os.getpid()))


def test_a_killed_process_is_certified_once_by_the_member_that_joined_before_it(peers: Peers) -> None:
    peers.turn = LONG_TURN
    first, second, third = (peers.start() for _ in range(3))
    peers.await_watch()
    third.kill()
    peers.await_end(third)
    second.kill()
    peers.await_end(second)
    assert [(second.incarnation, third.incarnation), (first.incarnation, second.incarnation)] == peers.certificates


def test_another_says_it_when_the_first_to_do_so_stands_still_which_is_certified_only_when_killed(peers: Peers) -> None:
    first, second, third = (peers.start() for _ in range(3))
    peers.await_watch()
    second.stop()
    third.kill()
    peers.await_end(third)
    assert [(first.incarnation, third.incarnation)] == peers.certificates
    second.kill()
    peers.await_end(second)
    assert [first.incarnation] == list(peers.read().seats)


def test_two_that_die_at_once_are_certified_by_the_third_and_the_last_one_by_none(peers: Peers) -> None:
    first, second, third = (peers.start() for _ in range(3))
    peers.await_watch()
    for one in (second, third):
        one.kill()
    peers.await_end(second, third)
    assert {first.incarnation} == {by for by, _ in peers.certificates}
    first.kill()
    until(lambda: not lives(first.pid))
    later = peers.start()  # It finds no holder of that lock.
    last = peers.start()
    peers.await_watch(by=[later, last], of=[later, last])
    last.kill()
    peers.await_end(last)
    assert first.incarnation in peers.read().seats


def test_who_has_not_joined_says_it_if_no_member_is_left_to(peers: Peers) -> None:
    first, second = peers.start(), peers.start(joined=False)
    peers.await_watch(by=[second], of=[first])
    first.kill()
    peers.await_end(first)
    assert [(second.incarnation, first.incarnation)] == peers.certificates


def test_of_two_members_in_one_process_one_closes_and_the_other_is_still_found(peers: Peers) -> None:
    both = peers.start(lives=2, then="witnesses.pop(lives[0]).close(); say('closed')")
    assert "closed" == peers.let_do(both)
    peers.leave(both.life)
    other, together = peers.start(), peers.start(lives=2)
    peers.await_watch()
    both.kill()
    together.kill()
    dead = {f"{life}0000" for life in (both.lives[1], *together.lives)}
    until(lambda: {one for _, one in peers.certificates} == dead, "the end of the other, and of both")
    assert [other.incarnation] == list(peers.read().seats)


FORKS = """
child = os.fork()
if child == 0:
    for witness in witnesses.values():
        witness.close()  # They are the parent's, and so nothing happens.
    own = SqliteLedger(str(ledger.path), create=False)
    PeerWitness(own, lives[0][::-1]).close()
    os._exit(0)
_, status = os.waitpid(child, 0)
if os.fork() == 0:
    say(f"{status}")
    __import__("time").sleep(600)
"""


def test_a_child_takes_no_lock_from_its_parent_and_does_not_hide_its_death(peers: Peers) -> None:
    """One child joins and leaves. The other one lives on."""
    parent, other = peers.start(then=FORKS), peers.start()
    peers.await_watch()
    assert "0" == peers.let_do(parent)
    other.kill()
    peers.await_end(other)  # The parent still notices it.
    newcomer = peers.start()
    peers.await_watch(by=[newcomer], of=[parent])
    parent.kill()
    peers.await_end(parent)
    assert (newcomer.incarnation, parent.incarnation) == peers.certificates[-1]


@pytest.mark.parametrize("replaced", [False, True])
def test_members_find_a_newcomer_also_if_the_file_of_the_locks_was_deleted(peers: Peers, replaced: bool) -> None:
    for _ in range(2):
        peers.start()
    peers.await_watch()
    *_, place = beside(peers.path)
    place.unlink()
    if replaced:
        place.touch()
    newcomer = peers.start()
    peers.await_watch()
    newcomer.kill()
    peers.await_end(newcomer)


def test_locks_that_the_program_itself_closed_by_accident_are_taken_again(peers: Peers) -> None:
    first = peers.start(then="open(ledger.members_path).close(); say('lost')")
    assert "lost" == peers.let_do(first)
    second = peers.start()
    peers.await_watch()
    first.kill()
    peers.await_end(first)
    assert second.incarnation in peers.read().seats


def test_a_program_that_locks_the_whole_file_is_not_taken_for_a_member(tmp_path: Path) -> None:
    # Starting at the byte after ours, because ours is taken.
    script = f"""
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX, 0, {int(LIFE, 16) + 1})
print("ready", flush=True)
input()
"""
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger:
        mine = LifeLocks.hold(ledger.members_path, ledger.path, LIFE)
        with Program(script, str(ledger.members_path), folder=tmp_path) as child:
            assert "ready\n" == child.stdout.readline()
            with open(ledger.members_path) as file, pytest.raises(BlockingIOError):  # noqa: PTH123 - ours is gone too.
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, int(OTHER, 16))
            assert mine.holder(OTHER) is None
        mine.let_go(LIFE)


def test_the_file_of_locks_is_for_those_who_may_write_the_ledger_and_is_deleted_with_it(tmp_path: Path) -> None:
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger:
        ledger.path.chmod(0o664)
        if os.geteuid() == 0:
            os.chown(ledger.path, 1234, 4321)
        before = os.umask(0o077)
        try:
            LifeLocks.hold(ledger.members_path, ledger.path, LIFE).let_go(LIFE)
        finally:
            os.umask(before)
        told, like = ledger.members_path.stat(), ledger.path.stat()
        assert (0o664, like.st_uid, like.st_gid) == (stat.S_IMODE(told.st_mode), told.st_uid, told.st_gid)
        assert 0 == told.st_size
        assert ledger.members_path.exists()
    locks_and_all = {str(path) for path in tmp_path.iterdir()}
    assert locks_and_all == set(delete_file(tmp_path / "ledger.db"))


LOCKING = """
import ctypes, fcntl, os, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(file, fcntl.LOCK_EX, 1, int(sys.argv[2]))
os.setgroups([int(group) for group in sys.argv[4:]])
ctypes.CDLL(None).setfsgid(int(sys.argv[3]))  # These decide over files, and the process stays root in all else.
ctypes.CDLL(None).setfsuid(65534)
print("locked", flush=True)
time.sleep(3600)
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


@needs_root
@pytest.mark.parametrize(
    ("owner", "mode", "is_taken"),
    [
        (0, 0o640, True),
        (1234, 0o660, True),  # The ledger's owner.
        (1235, 0o600, False),  # A stranger, who may replace it in a sticky folder.
        (0, 0o666, False),  # A stranger may lock it.
        (0, 0o664, False),
    ],
)
def test_a_strangers_file_of_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int, *, is_taken: bool
) -> None:
    """He would lock the lives of others and end, and a newcomer would certify members that live."""
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger:
        os.chown(ledger.path, 1234, 4321)
        ledger.path.chmod(0o660)
        ledger.members_path.touch()
        os.chown(ledger.members_path, owner, 4321)
        ledger.members_path.chmod(mode)
        monkeypatch.setenv("NELI_AGENT", f"{tmp_path}/no-agent.sock")
        before = descriptors(tmp_path)
        if is_taken:
            LifeLocks.hold(ledger.members_path, ledger.path, LIFE).let_go(LIFE)
        else:
            told: list[Notice] = []
            config = Config(ledger.address, protocol=Induction(witness="auto"))
            assert "" == THREADS.witness(config, "worker", OwnLife(LIFE), ledger, told.append).name
            (notice,) = told
            assert "witness.missing" == notice.event
            assert f"user {owner} and group 4321 have it, with mode {mode:o}" in str(notice.fields["why"])
        assert before == descriptors(tmp_path)


@needs_root
@pytest.mark.parametrize("groups", [["65534"], ["65534", "4321"], ["4321"]])
def test_the_lock_of_a_process_that_may_not_write_the_ledger_is_ignored(tmp_path: Path, groups: list[str]) -> None:
    """However it came by the file: its end says nothing about a member."""
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger, closing(PeerWitness(ledger, LIFE)) as witness:
        os.chown(ledger.path, 0, 4321)
        ledger.path.chmod(0o660)
        with Program(LOCKING, str(ledger.members_path), f"{int(OTHER, 16)}", *groups, folder=tmp_path) as liar:
            assert "locked\n" == liar.stdout.readline()
            assert [] == witness.look(WITH_OTHER, f"{LIFE}0000", 0.0)
            liar.kill()
            liar.wait()
            found = witness.look(WITH_OTHER, f"{LIFE}0000", 1000.0)
        assert ("4321" in groups) == (found == [Certify(by=f"{LIFE}0000", incarnation=f"{OTHER}0000")])


def test_a_pipe_or_another_machines_file_holds_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger:
        before = descriptors(tmp_path)
        os.mkfifo(ledger.members_path)
        with pytest.raises(Unsupported):  # And it does not block anything.
            PeerWitness(ledger, LIFE)
        ledger.members_path.unlink()
        monkeypatch.setattr(locks, "LOCAL_FILE_SYSTEMS", frozenset({"none"}))
        with pytest.raises(Unsupported, match="not a file on a local file system") as caught:
            PeerWitness(ledger, LIFE)
        assert before == descriptors(tmp_path)
        del caught  # Until now, it had all that the witness had.


def test_a_number_that_was_given_again_is_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder of the lock was gone before its pidfd was opened."""
    numbers = iter([os.getppid(), None])
    monkeypatch.setattr(LifeLocks, "holder", lambda *_: next(numbers))
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger, closing(PeerWitness(ledger, LIFE)) as witness:
        before = descriptors(tmp_path)
        assert [] == witness.look(WITH_OTHER, f"{LIFE}0000", 0.0)
        assert before == descriptors(tmp_path)


def test_from_a_pid_namespace_of_its_own_a_process_is_seen_and_sees_none(
    peers: Peers, namespace: Sequence[str]
) -> None:
    with Nursery(*namespace) as apart:
        outside, other = peers.start(), peers.start()
        inside = peers.start(nursery=apart)
        peers.await_watch(by=[outside, other])
        inside_too = peers.start(nursery=apart)
        peers.await_watch(by=[inside], of=[inside_too])
        assert not any(peers.watches(inside, one) for one in (outside, other))
        inside_too.kill()
        peers.await_end(inside_too)
        other.kill()
        peers.await_end(other)
        inside.kill()
        peers.await_end(inside)
        assert {outside.incarnation} == {by for by, dead in peers.certificates if dead == other.incarnation}
        assert [outside.incarnation] == list(peers.read().seats)


def test_however_many_members_there_are_one_watches_a_bounded_number(peers: Peers, tmp_path: Path) -> None:
    many = peers.start(lives=2 * WATCHED_MAX)
    with closing(SqliteLedger(peers.path)) as ledger:
        before = descriptors(tmp_path)
        with closing(PeerWitness(ledger, LIFE)) as witness:
            empty = descriptors(tmp_path)
            assert [] == witness.look(peers.read(), f"{LIFE}0000", 0.0)
            with closing(PeerWitness(ledger, OTHER)) as brief:
                assert [] == brief.look(peers.read(), f"{OTHER}0000", 0.0)
            assert WATCHED_MAX == descriptors(tmp_path) - empty
            many.kill()
            ticks = count(1.0)

            def said() -> list[str]:
                ledger.read(1.0)  # Returns when the last process has ended, or a moment later.
                return [one.incarnation for one in witness.look(peers.read(), f"{LIFE}0000", next(ticks))]

            until(lambda: WATCHED_MAX == len(said()), "the ends of all that it watches")
        assert before == descriptors(tmp_path)


@pytest.mark.parametrize(
    ("kind", "asked", "found"),
    [("sqlite", "auto", PEERS), ("sqlite", "none", ""), ("sqlite", "agent", ""), ("memory", "auto", "")],
)
def test_members_of_an_embedded_ledger_are_witnesses_by_default(
    kind: str, asked: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NELI_AGENT", f"{tmp_path}/no-agent.sock")
    ledger_address = f"sqlite://{tmp_path}/ledger.db" if kind == "sqlite" else "memory://test-locks"
    config = Config(ledger_address, protocol=Induction(witness=asked))
    with closing(open_ledger(config.ledger, create=True, patience=60.0)) as ledger:
        chosen = THREADS.witness(config, "worker", OwnLife("0" * 32), ledger, lambda _: None)
        assert found == chosen.name
        assert (asked == "none") == (chosen is NO_WITNESS)
        chosen.close()
        chosen.close()
