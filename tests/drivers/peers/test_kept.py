"""The memory on disk: whole at every moment, used by one process at a time, and never overwritten if unreadable."""

import errno
import os
import resource
import signal
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from neli_router.drivers.peers.kept import MEMORY_MAX, KeptMemory, default_folder
from neli_router.errors import Closed, ConfigError, PeersUnusable
from tests.drivers.peers.joining import addresses_at, link_at
from tests.support.forking import raised_by
from tests.support.processes.forked import Program
from tests.support.waiting import PATIENCE, until


def kept(folder: Path, *, group: str = "jobs", me: str = "a:7801", mark: bytes = b"term 8") -> KeptMemory:
    return KeptMemory(folder, group=group, me=me, mark=mark)


def stored(folder: Path, memory: bytes) -> Path:
    one = kept(folder)
    one.keep(memory)
    one.close()
    return one.path


def test_the_last_memory_is_kept_until_it_is_closed_for_each_place_of_each_group_and_one_process_has_it(
    tmp_path: Path,
) -> None:
    one = kept(folder := tmp_path / "made" / "for" / "it")
    assert (b"", True) == (one.memory, one.is_first)
    for memory in (b"term 1", b"", longest := b"3" * MEMORY_MAX):
        one.keep(memory)
    with pytest.raises(PeersUnusable, match="more than"):
        one.keep(bytes(MEMORY_MAX + 1))
    one.close()
    one.close()
    with pytest.raises(Closed):
        one.keep(b"late")
    again = kept(folder)
    assert (longest, False) == (again.memory, again.is_first)
    assert (0o700, 0o600) == (folder.stat().st_mode & 0o777, again.path.stat().st_mode & 0o777), "others can read it"
    made = [kept(tmp_path), kept(tmp_path, me="[::1]:7801"), kept(tmp_path, group="others")]
    for i, one in enumerate(made):
        one.keep(str(i).encode())
    assert [b"0", b"1", b"2"] == [one.memory for one in made]
    with pytest.raises(PeersUnusable, match="another process has it"):
        kept(tmp_path)
    made[0].close()
    kept(tmp_path).close()


def test_the_votes_of_another_protocol_or_place_are_refused_and_stay(tmp_path: Path) -> None:
    path = stored(tmp_path, b"term 1")
    before = path.read_bytes()
    for mark in (b"gossip 8", b"term 16"):
        with pytest.raises(PeersUnusable, match="written for another protocol, or for"):
            kept(tmp_path, mark=mark)
        assert before == path.read_bytes()
    path.rename(path.with_name("jobs@b:7801.votes"))
    with pytest.raises(PeersUnusable, match="or it was renamed"):
        kept(tmp_path, me="b:7801")


def test_a_file_that_was_cut_or_changed_is_refused_and_stays_and_what_a_crash_left_beside_it_does_no_harm(
    tmp_path: Path,
) -> None:
    path = stored(tmp_path, b"term 1")
    whole = path.read_bytes()
    torn = [whole[:size] for size in range(len(whole))] + [whole + b"x"]
    torn += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    refused = [(text, r"cut or changed|none of ours|is of version") for text in torn]
    refused += [(b"my thesis\n", "none of ours"), (b"NELIVOTE\x02another form", "of version 2, and this is 1")]
    for text, said in refused:
        path.write_bytes(text)
        with pytest.raises(PeersUnusable, match=said):
            kept(tmp_path)
        assert text == path.read_bytes()
    path.write_bytes(whole)
    path.with_name(f"{path.name}.new").write_bytes(b"NELIVOT")
    one = kept(tmp_path)
    assert b"term 1" == one.memory
    one.keep(b"term 2")
    one.close()
    assert b"term 2" == kept(tmp_path).memory


def test_what_is_no_file_and_no_folder_is_refused_and_a_folder_that_others_may_write_is_used_with_a_doubt(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs@a:7801.votes"
    makers: list[Callable[[], None]] = [
        lambda: path.symlink_to(tmp_path / "elsewhere"),
        path.mkdir,
        lambda: os.mkfifo(path),
    ]
    for i, make in enumerate(makers):
        make()
        with pytest.raises(PeersUnusable):
            kept(tmp_path)
        path.rename(tmp_path / f"no file {i}")
    (tmp_path / "file").touch()
    with pytest.raises(PeersUnusable, match=r"/file cannot be used \(it is not a folder\)"):
        kept(tmp_path / "file")
    with closing(kept(tmp_path)) as one:
        assert [] == one.doubts
    tmp_path.chmod(0o777)
    with closing(kept(tmp_path)) as one:
        (doubt,) = one.doubts
    assert "another user can change or bring back this member's votes" in doubt
    assert f"others may write into its folder {tmp_path} (mode 0777)" in doubt
    assert "chmod 700 it" in doubt


@pytest.mark.parametrize("name", ["jobs@a:7801.votes.lock", "below"])
def test_what_cannot_be_used_is_named_and_nobody_is_sent_to_another_folder(tmp_path: Path, name: str) -> None:
    """A link to itself cannot be opened by any user, not even by root."""
    (tmp_path / name).symlink_to(name)
    with pytest.raises(PeersUnusable) as raised:
        kept(tmp_path / "below" / "it" if name == "below" else tmp_path)
    assert raised.value.found.startswith(f"{tmp_path / name}")
    assert "let this user read and write it" in raised.value.remedy
    assert "in another folder it has forgotten its votes" in raised.value.remedy
    assert "term_base above every term" in raised.value.remedy


def test_a_disk_that_takes_no_more_is_an_error_and_the_last_memory_stays(tmp_path: Path) -> None:
    """A limit on the size of files fails in the middle of a write, like a full disk does."""
    one = kept(tmp_path)
    one.keep(b"term 1")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
        with pytest.raises(PeersUnusable, match=os.strerror(errno.EFBIG)):
            one.keep(bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert b"term 1" == one.memory
    one.close()
    assert b"term 1" == kept(tmp_path).memory


def test_a_memory_is_flushed_before_it_gets_its_name_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, str]] = []
    flush, rename = os.fsync, Path.rename

    def noted_flush(descriptor: int) -> None:
        steps.append(("flush", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        flush(descriptor)

    def noted_rename(path: Path, target: Path) -> Path:
        steps.append(("rename", str(path)))
        return rename(path, target)

    with closing(kept(tmp_path)) as one:
        monkeypatch.setattr(os, "fsync", noted_flush)
        monkeypatch.setattr(Path, "rename", noted_rename)
        one.keep(b"a vote")
        new = f"{one.path}.new"
    assert [("flush", new), ("rename", new), ("flush", str(tmp_path))] == steps


@pytest.mark.process
def test_a_process_killed_at_any_moment_leaves_a_whole_memory_and_none_older_than_it_told(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from neli_router.drivers.peers.kept import KeptMemory
        one = KeptMemory(Path(sys.argv[1]), group="jobs", me="a:7801", mark=b"term 8")
        number = int(one.memory[:20] or b"0")
        while True:
            number += 1
            one.keep(b"%020d" % number * 100)
            print(number, flush=True)
    """)
    told = 0
    for life in range(3):
        with Program(program, str(tmp_path), folder=tmp_path) as process:
            for _ in range(3 + 17 * life % 40):
                told = int(process.stdout.readline())
            process.kill()
            told = int((process.stdout.read().split() or [str(told)])[-1])
        one = kept(tmp_path)
        number = int(one.memory[:20])
        assert b"%020d" % number * 100 == one.memory
        assert number >= told
        one.close()


@pytest.mark.process
def test_a_child_that_outlives_its_member_does_not_keep_the_memory_from_the_next(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import os, sys, time
        from pathlib import Path
        from neli_router.core.clock import host_clock
        from neli_router.drivers.peers.address import parse
        from neli_router.drivers.peers.udp import open_link
        address, problems = parse(sys.argv[1])
        link = open_link(address, mark=b"", clock=host_clock)
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(600)
    """)
    (me,) = addresses_at(["127.0.0.1"])
    with Program(program, f"//{me}/jobs?state={tmp_path}", folder=tmp_path) as process:
        child = int(process.stdout.readline())
        try:
            process.wait(PATIENCE)
            until(lambda: "nothing" == raised_by(lambda: link_at([me], me, tmp_path, mark=b"").close()))
        finally:
            os.kill(child, signal.SIGKILL)


def test_by_default_it_lies_with_the_users_other_state_and_without_a_home_a_folder_must_be_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a container, a user may be a number that the image has no name for."""
    assert Path("/home/u/state/neli") == default_folder({"XDG_STATE_HOME": "/home/u/state"})
    assert Path.home() / ".local" / "state" / "neli" == default_folder({"XDG_STATE_HOME": "relative"})
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with pytest.raises(ConfigError, match=r"this user has no home .* name a folder with --state PATH"):
        default_folder({})
