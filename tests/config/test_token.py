"""The token: where it may be set, who reads it there, and that it is never shown."""

import os
from pathlib import Path

import pytest

from neli_router.config.resolve import Resolved, resolve
from neli_router.errors import ConfigError

LEDGER = {"NELI_LEDGER": "memory://jobs"}
TOKEN = "0123456789abcdef"  # noqa: S105 - of a test.


def written(tmp_path: Path, content: str, *, mode: int = 0o600, name: str = "token") -> str:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    path.chmod(mode)
    return str(path)


def problem(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as raised:
        resolve({}, {**LEDGER, **environ}, places=())
    (found,) = raised.value.problems
    return found


def told(made: Resolved) -> str:
    return f"{made!r} {made.agent!r} {made.settings!r}"


def test_a_file_of_its_own_holds_the_token_and_a_group_may_read_it(tmp_path: Path) -> None:
    """The form that Kubernetes uses. The token may end with a line break."""
    for number, (ending, mode) in enumerate((("", 0o600), ("\n", 0o600), ("\r\n", 0o440))):
        path = written(tmp_path, TOKEN + ending, mode=mode, name=f"token{number}")
        made = resolve({"agent.token_file": path}, LEDGER, places=())
        assert (TOKEN, False) == (made.agent.token, TOKEN in told(made))
    assert None is resolve({}, LEDGER, places=()).agent.token


ELSEWHERE = (
    "the token's file (environment NELI_TOKEN_FILE) lies where other users can put another one: take a folder that "
    "belongs to this user or root, with mode 0700 or 0755"
)


def test_a_file_that_others_read_or_change_or_in_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    remedy = "chmod 600 it; for a secret of Kubernetes, set defaultMode: 0440 and fsGroup"
    for mode in (0o644, 0o604, 0o602, 0o620):
        written(tmp_path, TOKEN, mode=mode)
        expected = f"has mode {mode:04o}, so others can read or change it: {remedy}"
        found = problem({"NELI_TOKEN_FILE": str(path)})
        assert f"the token's file (environment NELI_TOKEN_FILE) {expected}" == found
    path.chmod(0o600)
    for mode in (0o777, 0o775, 0o757):
        tmp_path.chmod(mode)
        assert ELSEWHERE == problem({"NELI_TOKEN_FILE": str(path)})


def test_in_a_folder_for_all_ones_own_file_or_safe_link_counts_and_no_link_of_another_user(tmp_path: Path) -> None:
    """Like /tmp, where no user can remove another user's file."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    for folder in (shared, own):
        folder.mkdir()
    shared.chmod(0o1777)
    link = shared / "link"
    link.symlink_to(written(own, TOKEN))
    for path in (written(shared, TOKEN), str(link)):
        assert TOKEN == resolve({}, {**LEDGER, "NELI_TOKEN_FILE": path}, places=()).agent.token
    if os.geteuid() == 0:  # Only root can make what another user would have made.
        os.lchown(link, 1234, -1)
        assert ELSEWHERE == problem({"NELI_TOKEN_FILE": str(link)})
        os.lchown(link, 0, -1)
    own.chmod(0o777)
    assert ELSEWHERE == problem({"NELI_TOKEN_FILE": str(link)})


def test_a_secret_as_kubernetes_mounts_it_is_read(tmp_path: Path) -> None:
    """`defaultMode: 0440` with `fsGroup`: root's links in a sticky folder, which is what the kubelet makes."""
    folder, version = tmp_path / "secret", tmp_path / "secret" / "..2026_11_22_18_00_00.1"
    version.mkdir(parents=True)
    folder.chmod(0o3777)
    written(version, TOKEN, mode=0o440)
    (folder / "..data").symlink_to(version.name)
    (folder / "token").symlink_to("..data/token")
    assert TOKEN == resolve({}, {**LEDGER, "NELI_TOKEN_FILE": str(folder / "token")}, places=()).agent.token


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused_by_all_but_that_user(tmp_path: Path) -> None:
    path = written(tmp_path, TOKEN)
    os.chown(path, 1234, -1)
    remedy = "chown it to this user, or to root with a group that may read it"
    found = f"belongs to another user, number 1234, who knows what is in it: {remedy}"
    assert f"the token's file (environment NELI_TOKEN_FILE) {found}" == problem({"NELI_TOKEN_FILE": path})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty: write a token, as `openssl rand -hex 16` makes one"),
        ("\n", "is empty: write a token, as `openssl rand -hex 16` makes one"),
        ("hunter2hunter2", "holds 14 characters, and a token has 16 to 4096"),
        ("hunter2 hunter2 hunter2", "holds spaces or characters beyond ASCII, which no HTTP header carries"),
        ("hunter2\nhunter2hunter2", "holds spaces or characters beyond ASCII, which no HTTP header carries"),
        ("hunter2hunter2hünter2", "holds spaces or characters beyond ASCII, which no HTTP header carries"),
        ("hunter2" * 1000, "is larger than 4096 bytes"),
    ],
)
def test_what_is_no_token_is_refused_without_showing_it(tmp_path: Path, content: str, expected: str) -> None:
    found = problem({"NELI_TOKEN_FILE": written(tmp_path, content)})
    assert (True, False) == (expected in found, "hunter2" in found)


def test_a_token_in_the_place_of_its_files_name_or_in_a_file_that_people_copy_is_not_shown(tmp_path: Path) -> None:
    reason = "cannot be read: there is no such file; correct the path"
    assert f"the token's file (environment NELI_TOKEN_FILE) {reason}" == problem({"NELI_TOKEN_FILE": "hunter2" * 3})
    path = written(tmp_path, 'ledger = "memory://jobs"\n[agent]\ntoken = "hunter2hunter2hunter2"\n')
    with pytest.raises(ConfigError) as raised:
        resolve({}, {}, path, places=())
    assert "agent.token does not belong in a file that people read and copy" in raised.value.problems[0]
    assert "hunter2" not in str(raised.value)


def test_the_environments_token_goes_before_files_named_below_the_flags(tmp_path: Path) -> None:
    other, path = "f" * 16, written(tmp_path, TOKEN)
    environ = {**LEDGER, "NELI_TOKEN": other, "NELI_TOKEN_FILE": "hunter2-by-mistake"}
    made = resolve({}, environ, places=())
    assert (other, False) == (made.agent.token, "hunter2" in told(made))
    assert TOKEN == resolve({"agent.token_file": path}, environ, places=()).agent.token
