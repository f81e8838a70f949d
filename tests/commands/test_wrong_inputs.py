"""Wrong inputs, at each front door: what was wanted, what was found, what to do, and the exit code that scripts see."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from neli_router.cli import main
from neli_router.config import Config
from neli_router.errors import ConfigError, NeliError
from neli_router.member.async_member import AsyncMember
from neli_router.member.member import Member
from neli_router.router.router import Router

COMMANDS = [
    ("onwer customer-7", 2, "No such command 'onwer': did you mean owner?"),
    ("memberz", 2, "did you mean members?"),
    ("frobnicate", 2, "No such command 'frobnicate'"),
    ("owner ''", 2, "a KEY was wanted, but one is empty"),
    ("owner --role ''", 2, "a role was wanted, but one is empty"),
    ("owner --nul a", 2, "Did you mean '--null'?"),
    ("owner a --output xml", 2, "'xml' is not one of 'text', 'json'"),
    ("owner a", 4, "start one with `neli agent`"),
    ("members", 4, "start one with `neli agent`"),
    ("weigh w -3", 2, "a whole number from 0, or own, was wanted, not '-3'"),
    ("weigh w 1.5", 2, "not '1.5'"),
    ("weigh w", 2, "Missing argument 'WEIGHT|own'"),
    ("pin 3", 2, "Missing argument"),
    ("pin x host-3", 2, "'x' is not a valid integer"),
    ("run -- true", 2, "Missing option '--role'"),
    ("run --role r", 2, "Missing argument"),
    ("run --role r --wait -1 -- true", 2, "-1.0 is not in the range x>=0"),
    ("run --role r -- no-such-command", 127, "no-such-command was not found"),
    ("agent --ledger nonsense", 2, "does not say what kind of ledger it is"),
    ("agent --ledger sqlite:x.db --lease 0", 2, "lease=0 must be from 0.01 to 3600.0 seconds"),
    ("group delete --ledger sqlite:none.db", 1, "there is no such file"),
    ("config --ledger 'sqlite:a.db?key=b'", 2, "has options, and a file takes none: take away the ?"),
    (
        "config --ledger 'kafka://host/jobs?config=/none'",
        2,
        "cannot be read (FileNotFoundError): name a file that this",
    ),
    ("config --ledger memory://a --name redis://:word@host/jobs", 2, "name: an address with a password would be shown"),
    (
        "config --ledger memory://a --ownership sqlite:a.db",
        2,
        "is no address in Redis: write redis://localhost:6379/jobs",
    ),
    ("config --ledger memory://a --token-file /dev/null", 2, "is no regular file: name a file"),
    ("config --ledger memory://a --listen host", 2, "must be HOST:PORT, such as 127.0.0.1:7635"),
    ("simulate --seed x", 2, "Invalid value"),
    ("completion tcsh", 2, "'tcsh' is not one of"),
]


@pytest.mark.parametrize(("line", "code", "said"), COMMANDS, ids=[line for line, _, _ in COMMANDS])
def test_a_wrong_command_says_what_was_wanted_and_ends_with_its_code(
    line: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NELI_AGENT", f"unix:{tmp_path}/agent.sock")
    result = CliRunner().invoke(main, shlex.split(line), prog_name="neli")
    assert code == result.exit_code, result.output
    assert said in result.output
    assert "Traceback" not in result.output


A_NUMBER: Any = 3

PROGRAMS: dict[str, tuple[Callable[[], Any], type[NeliError], str]] = {
    "a member of a number": (lambda: Member(A_NUMBER), ConfigError, "the address of a ledger, was wanted, got a int"),
    "an async member of a number": (lambda: AsyncMember(A_NUMBER), ConfigError, "was wanted, got a int"),
    "an address of no kind": (lambda: Member("jobs"), ConfigError, "does not say what kind of ledger it is"),
    "a handler that cannot be called": (
        lambda: Member(Config("memory://wrong-inputs"), on_event=A_NUMBER),
        ConfigError,
        "on_event must be a function of one event, got a int",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_argument_is_refused_at_once(name: str) -> None:
    call, kind, said = PROGRAMS[name]
    with pytest.raises(kind) as caught:
        call()
    assert said in str(caught.value)


def test_a_member_takes_the_address_of_a_ledger_as_a_router_does() -> None:
    with Member("memory://front-door") as member, Router("memory://front-door") as router:
        assert member.pulse(60)

        assert member.name == router.owner("customer-7").name
