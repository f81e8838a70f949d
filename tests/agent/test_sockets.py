"""The sockets: their owners, the files that were there before, and the files that stay behind."""

import fcntl
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from neli_router.agent.server.sockets import listen_tcp, listen_unix
from neli_router.config.agent_address import PATH_MAX, Address, distrust
from neli_router.errors import NeliError
from tests.support.processes.forked import Program

HOLDER = """
import socket, sys
holder = socket.socket(socket.AF_UNIX)
holder.bind(sys.argv[1])
holder.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(path: Path) -> Iterator[int]:
    """Another process that listens there. Yields its process ID."""
    with Program(HOLDER, str(path), folder=path.parent) as holder:
        assert "listening\n" == holder.stdout.readline()
        yield holder.pid


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as once:
        once.bind(str(path))


def test_a_stale_socket_and_its_lock_are_replaced_and_at_the_end_only_the_own_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    dead_socket(path)
    Path(f"{path}.lock").write_text("999999\n", encoding="ascii")
    with listen_unix(str(path)):
        assert answers(path)
    assert [] == list(tmp_path.iterdir())
    with listen_unix(str(path)):
        path.unlink()
        dead_socket(path)
    assert path.is_socket()


def test_a_socket_that_another_agent_holds_or_starts_to_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with held(path) as pid:
        wanted = f"{path}, but process {pid} listens there already: use that agent, stop it"
        with pytest.raises(NeliError, match=re.escape(wanted)), listen_unix(str(path)):
            pass
        assert path.is_socket()
    path.unlink()
    with listen_unix(str(path)):
        path.unlink()  # The second one finds the lock held, whatever became of the first.
        with pytest.raises(NeliError, match=f"process {os.getpid()} listens there already"), listen_unix(str(path)):
            pass


MAKES: dict[str, Callable[[Path], object]] = {
    "file": Path.touch,
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to(path.with_name("target")),
    "pipe": os.mkfifo,
}
"""Creates something else in the place of a socket or a lock."""


@pytest.mark.parametrize("kind", [*MAKES, "link to a socket"])
def test_what_is_no_socket_is_never_touched(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "agent.sock", tmp_path / "target"
    if kind == "link to a socket":
        dead_socket(target)
    MAKES[kind.partition(" ")[0]](path)
    before = path.lstat().st_ino
    with pytest.raises(NeliError, match="something is there that is not a socket"), listen_unix(str(path)):
        pass
    assert before == path.lstat().st_ino
    assert (kind == "link to a socket") == target.exists()


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.mark.parametrize("what", ["socket", "folder"])
def test_a_socket_and_its_folder_are_their_users_alone_also_when_they_are_made_again(tmp_path: Path, what: str) -> None:
    path = tmp_path / "folder" / "agent.sock"

    def modes() -> list[int]:
        return [mode(path.parent), mode(path), mode(Path(f"{path}.lock"))]

    umask = os.umask(0)
    try:
        with listen_unix(str(path)) as own:
            assert ([0o700, 0o600, 0o600], None) == (modes(), own.restored())
            path.unlink()
            if what == "folder":
                Path(f"{path}.lock").unlink()
                path.parent.rmdir()
            assert own.restored() is own.listener
            assert answers(path)
            assert ([0o700, 0o600, 0o600], None) == (modes(), own.restored())
            assert 0 == os.umask(0)
    finally:
        os.umask(umask)
    assert [] == list(path.parent.iterdir())


def test_a_socket_whose_number_the_file_system_changed_is_still_ones_own(tmp_path: Path) -> None:
    """This happens on file systems without stable inode numbers. Here a move to another file system causes it."""
    path = tmp_path / "agent.sock"
    with listen_unix(str(path)) as own, socket.socket(socket.AF_UNIX) as again:
        path.unlink()
        again.bind(str(path))
        again.listen()
        assert own.restored() is None
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("kind", MAKES)
def test_a_strangers_lock_in_a_shared_folder_does_not_block_the_start(tmp_path: Path, kind: str) -> None:
    tmp_path.chmod(0o1777)
    path, lock = tmp_path / "agent.sock", tmp_path / "agent.sock.lock"
    MAKES[kind](lock)
    if kind == "file":
        lock.chmod(0o666)
    os.lchown(lock, 1234, -1)
    with lock.open("r+") if kind == "file" else nullcontext() as held:
        if held is not None:
            fcntl.flock(held, fcntl.LOCK_EX)
        with listen_unix(str(path)):
            assert answers(path)
            with pytest.raises(NeliError, match=f"process {os.getpid()} listens there already"), listen_unix(str(path)):
                pass
    assert [lock] == list(tmp_path.iterdir())


def test_a_file_of_ours_that_was_linked_to_the_locks_name_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious", encoding="ascii")
    os.link(tmp_path / "precious", tmp_path / "agent.sock.lock")
    with listen_unix(str(tmp_path / "agent.sock")):
        pass
    assert "precious" == (tmp_path / "precious").read_text(encoding="ascii")


def test_agent_and_clients_agree_about_links(tmp_path: Path) -> None:
    """Both follow links that only this user or root can have created, and both refuse those of others."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    through = tmp_path / "link" / "agent.sock"
    with listen_unix(str(through)):
        assert "" == distrust(Address(path=str(through)))
        assert answers(through)
    if os.geteuid() == 0:
        os.lchown(tmp_path / "link", 1234, -1)
        expected = "link belongs to another user, number 1234"
        with pytest.raises(NeliError, match=expected), listen_unix(str(through)):
            pass
        with listen_unix(f"{tmp_path}/real/agent.sock"):
            assert expected in distrust(Address(path=str(through)), uid=1235)


def test_a_path_at_which_no_socket_can_be_or_be_safe_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    (tmp_path / "file").write_text("", encoding="ascii")
    for path, problem in (
        ("/" + "x" * 200, f"has 201 bytes, and a socket's path has at most {PATH_MAX}:"),
        ("agent.sock", "must be an absolute path"),
        (f"{folder}/agent.sock", "others may write into its folder"),
        (f"{tmp_path}/file/a/b", "the system refused: Not a directory"),
    ):
        with pytest.raises(NeliError, match=problem), listen_unix(path):
            pass


def test_a_port_in_use_and_an_address_that_this_host_does_not_have_are_told() -> None:
    with listen_tcp("127.0.0.1", 0) as one:
        port = one.getsockname()[1]
        wanted = f"the agent was to listen on 127.0.0.1 port {port}, but another process holds that port"
        with pytest.raises(NeliError, match=wanted), listen_tcp("127.0.0.1", port):
            pass
    with pytest.raises(NeliError, match="the system refused"), listen_tcp("192.0.2.1", 0):
        pass
    for name in ("localhost", "LOCALHOST."):  # Always the IPv4 address.
        with listen_tcp(name, 0) as listener:
            assert "127.0.0.1" == listener.getsockname()[0]
