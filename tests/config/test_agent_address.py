"""The places where clients look for the agent, and the texts that are addresses."""

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from neli_router.config import agent_address
from neli_router.config.agent_address import Address, default_address, default_folder, default_socket, distrust, parse
from neli_router.drivers.addresses import group_name
from neli_router.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/neli/agent.sock", Address(path="/run/neli/agent.sock")),
        ("unix:///run/neli/agent.sock", Address(path="/run/neli/agent.sock")),
        ("/run/a b/agent.sock", Address(path="/run/a b/agent.sock")),
        ("http://127.0.0.1:7635", Address(host="127.0.0.1", port=7635)),
        ("http://localhost/", Address(host="localhost", port=7635)),
        ("http://[::1]:80", Address(host="::1", port=80)),
    ],
)
def test_an_address_is_read_and_spelled_so_that_it_is_read_again(text: str, address: Address) -> None:
    assert (address, address, True) == (parse(text), parse(str(parse(text))), parse(text).is_loopback)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is none of them"),
        ("agent.sock", "is none of them"),
        ("https://127.0.0.1", "is none of them"),
        ("http://user:secret@127.0.0.1", "is none of them"),
        ("http://127.0.0.1:7635/v1", "is none of them"),
        ("http://127.0.0.1:port", "is none of them"),
        ("http://127.0.0.1:99999", "is none of them"),
        ("/run/neli/", "names a folder"),
        ("/run/\0", "must be an absolute path"),
        ("/" + "x" * agent_address.PATH_MAX, f"at most {agent_address.PATH_MAX}:"),
    ],
)
def test_what_is_no_address_is_refused_with_what_would_be_one(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse(text)
    assert "secret" not in str(caught.value)


def test_the_sockets_are_in_a_folder_of_the_login_of_the_system_or_of_the_user() -> None:
    assert "unix:/x.sock" == default_address("", {"NELI_AGENT": "unix:/x.sock", "XDG_RUNTIME_DIR": "/run/user/7"})
    assert "/run/user/7/neli" == default_folder({"XDG_RUNTIME_DIR": "/run/user/7/"})
    assert default_folder({}, uid=7) in {"/run/neli", "/tmp/neli-7"}  # noqa: S108 - it is that.


@pytest.mark.parametrize(
    ("spellings", "name"),
    [
        ("sqlite:jobs.db sqlite:./x/../jobs.db sqlite://HERE/jobs.db sqlite:HERE/link.db", "sqlite://HERE/jobs.db"),
        ("kafka://B:9,a:9/jobs kafka://u:secret@a:9,b:9/jobs?client.id=x kafka:a:9,b:9/jobs", "kafka://a:9,b:9/jobs"),
        ("redis://H/jobs redis://u:secret@h:6379/jobs?db=0 redis:h/jobs", "redis://h:6379/jobs"),
        ("redis://h/jobs?db=3", "redis://h:6379/jobs?db=3"),
        ("postgres://u:p@B,A:1/d?group=j&sslmode=require", "postgresql://a:1,b:5432/d?group=j"),
        ("postgresql+psycopg2:///d?group=j&host=a,b&port=1,5432", "postgresql://a:1,b:5432/d?group=j"),
        ("postgresql:///db?host=/Run&group=j&schema=neli", "postgresql:///db?group=j&host=/Run"),
        ("peers://b:2,A:1/jobs peers://a:1,b:2/jobs?me=a:1&key_file=/k&state=/s", "peers://a:1,b:2/jobs"),
        ("memory://jobs", "memory://jobs"),
    ],
)
def test_each_spelling_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spellings: str, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to("jobs.db")
    (tmp_path / "x").mkdir()
    addresses, name = spellings.replace("HERE", str(tmp_path)).split(), name.replace("HERE", str(tmp_path))
    assert [name] * (len(addresses) + 1) == [group_name(address) for address in (*addresses, name)]


def test_a_client_asks_the_agent_of_its_group_and_without_a_group_the_only_one(tmp_path: Path) -> None:
    environment, folder = {"XDG_RUNTIME_DIR": str(tmp_path)}, tmp_path / "neli"
    jobs, orders, chosen = default_socket(f"{folder}", "a/jobs"), default_socket(f"{folder}", "a/orders"), "agent.sock"
    assert jobs == default_address("a/jobs", environment)
    assert f"{folder}/agent-*.sock" == default_address("", environment)
    assert "agent-jobs-" in default_socket("", "postgresql://a:5432/db?schema=s&group=jobs")
    folder.mkdir()
    with ExitStack() as agents:

        def start(path: str) -> None:
            listener = agents.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(path)
            listener.listen()

        start(jobs)
        assert [jobs] * 3 == [default_address(group, environment) for group in ("", "a/jobs", "a/orders")]
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(orders)
        assert jobs == default_address("", environment), "the other was killed and left its socket"
        Path(orders).unlink()
        start(orders)
        assert [jobs, orders] == [default_address(group, environment) for group in ("a/jobs", "a/orders")]
        names = ", ".join(Path(path).name for path in (jobs, orders))
        with pytest.raises(ConfigError, match=rf"2 agents listen in .* \({names}\): set NELI_LEDGER .* or NELI_AGENT"):
            default_address("", environment)
        start(f"{folder}/{chosen}")
        assert f"{folder}/{chosen}" == default_address("a/third", environment), "an operator chose its name"


def test_a_folder_that_another_user_made_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_address, "_SHARED", str(tmp_path))
    folder = tmp_path / "neli-1"
    address = Address(path=str(folder / "agent.sock"))
    assert "" == distrust(address)
    folder.mkdir(mode=0o700)
    assert "" == distrust(address)
    owner = folder.stat().st_uid
    if owner == 0:  # Root may do everything anyway.
        os.chown(folder, 1234, -1)
        assert "belongs to another user, number 1234" in distrust(address, uid=0)
    assert "belongs to another user" in distrust(address, uid=1235)
    os.chown(folder, owner, -1)
    folder.chmod(0o777)
    assert "others may write into its folder" in distrust(address)


def test_a_socket_of_another_user_is_trusted_by_root_alone_and_only_in_a_safe_folder(tmp_path: Path) -> None:
    """Root queries a service that runs as another user; if the test runs as root, it makes the socket that user's."""
    path = tmp_path / "agent.sock"
    path.touch()
    address, owner = Address(path=str(path)), path.stat().st_uid
    assert "" == distrust(address, uid=owner)
    if owner == 0:
        os.chown(path, 1234, -1)
    # Other users cannot give their files away, so the folder is that user's as well, and is checked first.
    found = f"{path.name if owner == 0 else tmp_path.name} belongs to another user"
    assert found in distrust(address, uid=path.stat().st_uid + 1)
    assert "" == distrust(address, uid=0)
    tmp_path.chmod(0o1777)
    assert found in distrust(address, uid=0)
