"""The file: where it is looked for, and the errors for a file that cannot be used."""

import os
from pathlib import Path

import pytest

from neli_router.config.resolve import resolve
from neli_router.errors import ConfigError

GOOD = 'ledger = "memory://jobs"\n'


def problems(path: Path | str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        resolve({}, {}, str(path), places=())
    return list(raised.value.problems)


def test_the_flag_names_the_file_before_the_environment_and_both_before_the_usual_places(tmp_path: Path) -> None:
    for name in ("flag", "variable", "near", "far"):
        (tmp_path / name).write_text(f'{GOOD}zone = "{name}"\n', encoding="utf-8")
    environ, places = {"NELI_CONFIG": f"{tmp_path}/variable"}, (f"{tmp_path}/near", f"{tmp_path}/far")
    found = [
        resolve({}, environ, f"{tmp_path}/flag", places=places).config.zone,
        resolve({}, environ, places=places).config.zone,
        resolve({}, {}, places=places).config.zone,
        resolve({}, {}, places=(f"{tmp_path}/nowhere", *places[1:])).config.zone,
    ]
    assert ["flag", "variable", "near", "far"] == found


def test_without_any_file_the_other_layers_are_enough_but_one_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    assert "" == resolve({"ledger": "memory://jobs"}, {}, places=()).path
    (tmp_path / "neli.toml").mkdir()
    with pytest.raises(ConfigError, match="is a folder: name a file"):
        resolve({"ledger": "memory://jobs"}, {}, places=(f"{tmp_path}/neli.toml",))


def test_a_missing_file_is_reported_with_who_named_it_and_what_is_no_file_is_refused(tmp_path: Path) -> None:
    path = f"{tmp_path}/neli.toml"
    reason = "cannot be read: there is no such file; correct the path"
    assert [f"the configuration {path!r} (flag --config) {reason}"] == problems(path)
    with pytest.raises(ConfigError) as raised:
        resolve({}, {"NELI_CONFIG": path}, places=())
    assert (f"the configuration {path!r} (environment NELI_CONFIG) {reason}",) == raised.value.problems
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    (tmp_path / "locked").touch(mode=0)
    ends = {
        str(tmp_path): "is a folder: name a file",
        f"{tmp_path}/pipe": "is not a regular file: name a file",
        f"{tmp_path}/ring": "a file cannot have that name; correct the path",
        "a\0b": "that is not a path; correct it",
    }
    if os.geteuid() != 0:  # Root may read everything.
        ends[f"{tmp_path}/locked"] = "this user may not read it; change its mode or its owner"
    for other, end in ends.items():
        assert problems(other)[0].endswith(end)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a = \n", "is not TOML: line 1, column 5: Invalid value"),
        (b"a = 1\nb = \x01\n", "is not TOML: line 2, column 5: Invalid value"),
        (b"a = 1\na = 2\n", "is not TOML: line 2, column 6: Cannot overwrite a value"),
        (b"[a\n", "is not TOML: line 1, column 3: Expected ... at the end of a table declaration"),
        (b'a = "b', "is not TOML: at its end: Unterminated string"),
        (b"a = 1\n\xff\n", "is not UTF-8: see line 2, and save it as UTF-8"),
        (b"a" * (1 << 20) + b"a", "is larger than 1048576 bytes: name another file"),
        (b"a = " + b"9" * 5000, "cannot be read: it has a number too long or a list too deep; take it out"),
        (b"a = " + b"[" * 100_000, "cannot be read: it has a number too long or a list too deep; take it out"),
    ],
)
def test_what_is_no_toml_is_told_with_its_place(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "neli.toml"
    path.write_bytes(content)
    assert [f"the configuration {str(path)!r} (flag --config) {expected}"] == problems(path)


def test_a_byte_order_mark_is_no_mistake_and_lines_are_not_guessed_below_a_text_of_several(tmp_path: Path) -> None:
    path = tmp_path / "neli.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert "memory://jobs" == resolve({}, {}, str(path), places=()).config.ledger
    path.write_text(f'zone = """\nlease = 9"""\n{GOOD}lease = "x"\n', encoding="utf-8")
    assert f"lease='x' must be a number of seconds above 0 ({path})" in problems(path)
