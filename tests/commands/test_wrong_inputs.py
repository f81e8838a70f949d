"""Wrong inputs to each command and call: what was wanted, what was found, what to do, and the exit code for scripts."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neli_router import fence
from neli_router.errors import BadKey, ConfigError, NeliError
from neli_router.member.async_member import AsyncMember
from neli_router.member.member import Member
from neli_router.router.router import Router
from tests.support.commands import neli
from tests.support.waiting import PATIENCE

COMMANDS = [
    ("onwer customer-7", 2, "No such command 'onwer': did you mean owner?"),
    ("frobnicate", 2, "No such command 'frobnicate'"),
    # Look-ups
    ("owner ''", 2, "a KEY was wanted, but one is empty"),
    ("owner -", 2, "a KEY was wanted, but standard input has no key: write one a line"),
    ("members --ledger sqlite:none.db", 5, "none.db was wanted, but there is no such file"),
    ("table --ledger peers://127.0.0.1:1/jobs", 2, "but a list of peers has none: ask one of their agents"),
    ("events --ledger sqlite:none.db", 5, "none.db was wanted, but there is no such file"),
    ("events --ledger peers://a:1,b:1/x", 2, "peers have none, and write nothing down"),
    ("events --follow --exec ''", 2, "a command was wanted, but it is empty"),
    ('events --follow --exec "a \'b"', 2, "a command was wanted, but this is none (No closing quotation)"),
    ("events --exec true", 2, "events that are to come were wanted, but --follow is not given"),
    ("owner --agent nonsense a", 2, "an agent's address is unix:/path/agent.sock"),
    ("watch a --partition 1", 2, "a key or a partition was wanted: --key takes any text, also 42"),
    # Wishes
    ("drain ''", 2, "'NAME': it is empty: is a variable of the shell not set?"),
    ("weigh w -3", 2, "-3 is not in the range x>=0"),
    ("weigh w", 2, "either a WEIGHT or --undo was wanted"),
    ("load", 2, "either a PROFILE or --undo was wanted"),
    ("load none.json", 2, "the load profile none.json cannot be read: No such file or directory"),
    ("load text.db", 2, "Error: text.db is not JSON: give a file that LoadProfile.save wrote\n"),
    ("load profile.json", 2, "profile.json is not a usable load profile"),
    # Running
    ("run --key '' -- true", 2, "'--key': it is empty: is a variable of the shell not set?"),
    ("run --partition -1 -- true", 2, "-1 is not in the range x>=0"),
    ("run -- true", 2, "--key takes any text, also 42; --partition takes a number"),
    ("run --key r -- ''", 2, "a command was wanted behind `--`, and this is empty"),
    ("run --key r --wait 5 --no-wait -- true", 2, "either --wait or --no-wait was wanted, but both were given"),
    ("run --key r -- no-such-command", 127, "no-such-command was not found"),
    ("run --key r -- ./profile.json", 126, "is not an executable file: check its path and its mode"),
    ("run --key r -- 'sleep 1; date'", 127, "if it is a line for the shell, write sh -c 'sleep 1; date'"),
    ("run --key r -- 'no\nsuch\x1b[31m'", 127, "but no\\nsuch\\x1b[31m was not found"),
    ("run --key r --grace nan -- true", 2, "'nan' is not a number of seconds"),
    # The agent
    ("agent --ledger nonsense", 2, "does not say what kind of ledger it is: write sqlite:///var/lib/jobs/ledger.db"),
    ("agent --ledger sqlite:///jobs.db", 2, "would be the file /jobs.db, in the root folder: write sqlite:jobs.db for"),
    ("agent --ledger sqlite:text.db", 5, "it is not an SQLite database, or its header was overwritten"),
    ("agent --ledger memory://jobs", 2, "is within one process, so no other member could join this agent's group"),
    ("agent --ledger sqlite::memory:", 2, "would be in memory, where no other connection finds it: name a file, or"),
    ("agent --ledger sqlite:x.db --socket ''", 2, "would listen nowhere: name a socket, or an address to listen on\n"),
    ("agent --ledger kafka://localhost", 2, "a group was wanted after the brokers, as in kafka://localhost:9092/jobs"),
    ("agent --ledger memory://x --lease 0", 2, "Error: lease='0' must be a number of seconds above 0 (flag --lease)\n"),
    ("agent --ledger kafka://127.0.0.1:1/jobs --protocol fast-neli", 2, "give all members the same --ownership"),
    ("agent --protocol term", 2, "no peers are named to elect from: name them all, such as --peers a:7801,b"),
    # The rest
    ("pin 3", 2, "either a NAME or --undo was wanted"),
    ("pin 3 a --undo", 2, "either a NAME or --undo was wanted"),
    ("doctor --ledger nonsense", 1, "does not say what kind of ledger it is"),
    ("group delete", 2, "no ledger is named"),
    ("group delete --ledger redis://127.0.0.1:1/jobs", 1, "nothing was deleted: fix that, then run this again"),
    ("config --ledger 'kafka://host/jobs?config=/none'", 2, "cannot be read: there is no such file"),
    ("config --weight heavy --lease 0", 2, "weight='heavy' must be a whole number (flag --weight)"),
    ("ticks kafka://localhost:9092", 2, "a group was wanted after the brokers"),
    ("audit peers://a:1,b:1/x", 2, "peers have none, and write nothing down"),
    ("audit ftp://host", 2, "ftp is not a known kind of ledger"),
    ("audit sqlite:text.db", 1, "it is not an SQLite database"),
    ("explore --states 0", 2, "0 is not in the range x>=1"),
    ("simulate --seeds 0", 2, "0 is not in the range x>=1"),
]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NELI_AGENT", f"unix:{tmp_path}/agent.sock")
    (tmp_path / "profile.json").write_text("{}", encoding="ascii")
    (tmp_path / "text.db").write_text("this is not a database, but long enough for one" * 50, encoding="ascii")


@pytest.mark.parametrize(("line", "code", "said"), COMMANDS, ids=[line for line, _, _ in COMMANDS])
def test_a_wrong_command_is_refused(line: str, code: int, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    result = neli(*shlex.split(line))
    output = result.output + capfd.readouterr().err
    assert code == result.exit_code, output
    assert said in output
    assert "Traceback" not in output
    assert "FAIL" in output or "Error: " in output


A_NUMBER: Any = 3
A_FRACTION: Any = 1.5
A_TEXT: Any = "1"
NO_CONNECTION: Any = None


CALLS: dict[str, tuple[Callable[[Member], Any], type[Exception], str]] = {
    "a member of a number": (lambda _: Member(A_NUMBER), ConfigError, "the address of a ledger, was wanted, got a int"),
    "a handler that cannot be called": (
        lambda _: Member("memory://wrong-inputs", on_event=A_NUMBER),
        ConfigError,
        "on_event must be a function of one event, got a int",
    ),
    "a term of text": (
        lambda _: fence.admit(NO_CONNECTION, "invoices", A_TEXT),
        fence.FenceMisused,
        "pass the lease, `lease.term` unchanged, or to",
    ),
    "a key that is a number": (lambda it: it.router.owner(A_NUMBER), BadKey, "such as str(number)"),
    "a role that is no whole number": (lambda it: it.lease(A_FRACTION), BadKey, "a role was wanted: a key as str or"),
    "a task that cannot be called": (lambda it: it.background(A_NUMBER), ConfigError, "a task must be a function of"),
    "a negative interval": (lambda it: it.background(print, interval=-1), ConfigError, "interval=-1 must be a number"),
    "another handler": (lambda it: AsyncMember(it, on_event=print), ConfigError, "has its own handler of events"),
}


@pytest.fixture(name="member", scope="module")
def _member() -> Iterator[Member]:
    """A member opened with only the address of a ledger, which is enough for a router, too."""
    with Member("memory://front-door") as member, Router("memory://front-door") as router:
        assert member.pulse(PATIENCE)
        assert member.name == router.owner("customer-7").name
        yield member


@pytest.mark.parametrize(("call", "kind", "said"), CALLS.values(), ids=CALLS)
def test_a_wrong_call_is_refused_at_once(call: Any, kind: type[Exception], said: str, member: Member) -> None:
    with pytest.raises(kind) as caught:
        call(member)
    assert said in str(caught.value)
    if isinstance(caught.value, NeliError):
        assert all((caught.value.wanted, caught.value.found, caught.value.remedy))
