"""The places where clients look for the agent, and the texts that are addresses."""

import os
from pathlib import Path

import pytest

from neli_router.config.agent_address import PATH_MAX, Address, default_address, distrust, parse
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
        ("/" + "x" * PATH_MAX, f"at most {PATH_MAX}:"),
    ],
)
def test_what_is_no_address_is_refused_with_what_would_be_one(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse(text)
    assert "secret" not in str(caught.value)


def test_the_agent_is_where_the_environment_says_or_in_a_folder_of_the_system_or_of_the_user() -> None:
    assert "unix:/x.sock" == default_address({"NELI_AGENT": "unix:/x.sock", "XDG_RUNTIME_DIR": "/run/user/7"})
    assert "/run/user/7/neli/agent.sock" == default_address({"XDG_RUNTIME_DIR": "/run/user/7"})
    assert default_address({}, uid=7) in {"/run/neli/agent.sock", "/tmp/neli-7/agent.sock"}  # noqa: S108 - it is that.


def test_a_folder_that_another_user_made_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neli_router.config.agent_address._SHARED", str(tmp_path))
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


def test_a_socket_of_another_user_is_trusted_by_root_alone_and_where_not_any_user_could_have_made_it(
    tmp_path: Path,
) -> None:
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
