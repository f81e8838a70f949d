"""Wrong inputs, at each front door: what was wanted, what was found, what to do, and the exit code that scripts see."""

import pickle
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neli_router import fence, testing
from neli_router.agent import Client
from neli_router.config import Config
from neli_router.errors import BadKey, Closed, ConfigError, LedgerMissing, LedgerUnusable, NeliError
from neli_router.member.async_member import AsyncMember
from neli_router.member.member import Member
from neli_router.router.groups import Groups
from neli_router.router.router import Router
from tests.support.commands import neli

MEMORY = "agent --ledger memory://x"

COMMANDS = [
    ("onwer customer-7", 2, "No such command 'onwer': did you mean owner?"),
    ("memberz", 2, "did you mean members?"),
    ("frobnicate", 2, "No such command 'frobnicate'"),
    # Who owns what
    ("owner ''", 2, "a KEY was wanted, but one is empty"),
    ("owner --role ''", 2, "a role was wanted, but one is empty"),
    ("owner --nul a", 2, "Did you mean '--null'?"),
    ("owner a --output xml", 2, "'xml' is not one of 'text', 'json'"),
    ("owner --agent nonsense a", 2, "an agent's address is unix:/path/agent.sock"),
    ("owner --token-file /no/such/file a", 2, "File '/no/such/file' does not exist"),
    ("members extra", 2, "unexpected extra argument (extra)"),
    ("table --output yaml", 2, "'yaml' is not one of 'text', 'json'"),
    ("watch a --role b", 2, "either a key or a role was wanted, but both were given: watch them one by one"),
    # Wishes
    ("drain", 2, "Missing argument 'NAME'"),
    ("drain ''", 2, "'NAME': it is empty: is a variable of the shell not set?"),
    ("undrain ''", 2, "'NAME': it is empty"),
    ("pin 3 ''", 2, "'NAME': it is empty"),
    ("pin 3", 2, "Missing argument"),
    ("pin x host-3", 2, "'x' is not a valid integer"),
    ("unpin x", 2, "'x' is not a valid integer"),
    ("weigh w -3", 2, "a whole number from 0, or own, was wanted, not '-3'"),
    ("weigh w 1.5", 2, "not '1.5'"),
    ("weigh w ''", 2, "not ''"),
    ("weigh w", 2, "Missing argument 'WEIGHT|own'"),
    ("load", 2, "either a PROFILE or --forget was wanted"),
    ("load profile.json --forget", 2, "either a PROFILE or --forget was wanted"),
    ("load none.json", 2, "the load profile none.json cannot be read: No such file or directory"),
    ("load profile.json", 2, "profile.json is no load profile that can be used"),
    ("load folder", 2, "File 'folder' is a directory"),
    # Running
    ("run -- true", 2, "Missing option '--role'"),
    ("run --role '' -- true", 2, "'--role': it is empty: is a variable of the shell not set?"),
    ("run --role r", 2, "Missing argument"),
    ("run --role r -- ''", 2, "a command was wanted behind `--`, and this is empty"),
    ("run --role r --wait -1 -- true", 2, "-1.0 is not in the range x>=0"),
    ("run --role r --wait soon -- true", 2, "'soon' is not a valid float"),
    ("run --role r --wait 5 --no-wait -- true", 2, "either --wait or --no-wait was wanted, but both were given"),
    ("run --role r -- no-such-command", 127, "no-such-command was not found"),
    ("run --role r -- ./profile.json", 126, "is no file that may be executed: check its path and its mode"),
    (
        "run --role r -- 'sleep 1; date'",
        127,
        "was not found: if it is a line for the shell, write sh -c 'sleep 1; date'",
    ),
    ("run --role r -- 'no\nsuch\x1b[31m'", 127, "but no\\nsuch\\x1b[31m was not found"),
    ("run --role r -- ./folder", 126, "is no file that may be executed"),
    ("run --role r --grace nan -- true", 2, "'nan' is no number of seconds"),
    ("run --role r --wait nan -- true", 2, "'nan' is no number of seconds"),
    ("run --role r --grace -1 -- true", 2, "-1.0 is not in the range x>=0"),
    # The agent: the address of its ledger
    ("agent --ledger nonsense", 2, "does not say what kind of ledger it is: write sqlite:///var/lib/jobs/ledger.db"),
    ("agent --ledger ''", 2, "does not say what kind of ledger it is"),
    ("agent --ledger sqlight:x.db", 2, "did you mean sqlite? Choose from kafka, memory, redis"),
    ("agent --ledger sqlite:///jobs.db", 2, "would be the file /jobs.db, in the root folder: write sqlite:jobs.db for"),
    ("agent --ledger sqlite://host/x.db", 2, "names the host 'host', and a file has none"),
    ("agent --ledger sqlite:", 2, "does not say where it is"),
    ("agent --ledger sqlite:text.db", 5, "it is not an SQLite database, or its header was overwritten"),
    ("agent --ledger sqlite:no/such/x.db", 5, "there is no folder"),
    ("agent --ledger sqlite:folder", 5, "that is a folder: name a file in it"),
    ("agent --ledger kafka://localhost", 2, "a group was wanted after the brokers, as in kafka://localhost:9092/jobs"),
    ("agent --ledger kafka://h:9092/jobs?acks=1", 2, "the setting acks is not to be chosen"),
    ("agent --ledger redis://localhost:99999/jobs", 2, "one server was wanted as HOST:PORT after redis://"),
    ("agent --ledger redis://localhost/", 2, "a group was wanted, as in redis://localhost/jobs"),
    # The agent: everything else
    (f"{MEMORY} --lease 0", 2, "Error: lease=0 must be from 0.01 to 3600.0 seconds (lease: flag --lease)\n"),
    (f"{MEMORY} --beat 1", 2, "lower beat to 0.25 or raise lease to 4"),
    (f"{MEMORY} --guarantee both", 2, "choose 'exclusive' (at most one acts) or 'available'"),
    (f"{MEMORY} --ownership kafka://h:1/g", 2, "is no address in Redis: write redis://localhost:6379/jobs"),
    # The rest
    ("config --output xml", 2, "'xml' is not one of 'text', 'json'"),
    (
        "config --lease soon",
        2,
        "no ledger is named: say where it is, such as ledger='sqlite:///var/lib/jobs/ledger.db'",
    ),
    ("doctor --ledger nonsense", 1, "does not say what kind of ledger it is"),
    ("group delete", 2, "no ledger is named"),
    ("group delete --ledger redis://127.0.0.1:1/jobs", 1, "nothing was deleted: mend that, then say this again"),
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
    ("group delete --ledger sqlite:text.db", 1, "it is not an SQLite database"),
    ("audit sqlite:none.db", 1, "there is no such file: correct the path"),
    ("audit sqlite:text.db", 1, "it is not an SQLite database"),
    ("simulate --seed x", 2, "Invalid value"),
    ("completion tcsh", 2, "'tcsh' is not one of"),
    ("completion", 2, "Missing argument '{bash|zsh|fish}'"),
    ("demo --seconds x", 2, "'x' is not a valid float"),
    ("ticks", 2, "Missing argument 'PLACE'"),
]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NELI_AGENT", f"unix:{tmp_path}/agent.sock")
    (tmp_path / "profile.json").write_text("{}", encoding="ascii")
    (tmp_path / "text.db").write_text("this is no database, but long enough for one" * 50, encoding="ascii")
    (tmp_path / "folder").mkdir()


@pytest.mark.parametrize(("line", "code", "said"), COMMANDS, ids=[line for line, _, _ in COMMANDS])
def test_a_wrong_command_says_what_was_wanted_and_ends_with_its_code(
    line: str, code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = neli(*shlex.split(line))
    output = result.output + capfd.readouterr().err
    assert code == result.exit_code, output
    assert said in output
    assert "Traceback" not in output
    assert "FAIL" in output or "Error: " in output


FILES = [
    ("lease = 'soon'", "lease='soon' must be a number of seconds, at least 0 (neli.toml line 1)"),
    ("lease = 1\nlease = 2", "neli.toml"),
    ("lease = ", "neli.toml"),
    ("[layout]\npartition = 3", "layout.partition is no known option (neli.toml line 2)"),
    ("weight = true", "weight=true must be a whole number (neli.toml line 1)"),
    ("replace = 'yes'", "replace='yes' must be true or false (neli.toml line 1)"),
    ("ledger = 3", "must be text (neli.toml line 1)"),
]


@pytest.mark.parametrize(("text", "said"), FILES, ids=[text.replace("\n", " ") for text, _ in FILES])
def test_a_slip_in_the_file_names_its_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "neli.toml").write_text(text, encoding="utf-8")
    result = neli("config", "--ledger", "memory://x")
    assert (2, True) == (result.exit_code, said in result.stderr), result.stderr


VARIABLES = [
    ("NELI_LAYOUT_PARTITIONS", "many", "layout.partitions='many' must be a whole number"),
    ("NELI_REPLACE", "perhaps", "replace='perhaps' must be true or false"),
    ("NELI_CONFIG", "none.toml", "the configuration 'none.toml' (environment NELI_CONFIG) cannot be read"),
]


@pytest.mark.parametrize(("name", "text", "said"), VARIABLES, ids=[name for name, _, _ in VARIABLES])
def test_a_slip_in_the_environment_names_its_variable(name: str, text: str, said: str) -> None:
    result = neli("config", **{"NELI_LEDGER": "memory://x", name: text})
    assert (2, True) == (result.exit_code, said in result.stderr), result.stderr


ANY: Any = None
A_NUMBER: Any = 3
A_TEXT: Any = "1"


def in_memory(**options: Any) -> Config:
    return Config("memory://wrong-inputs", **options)


PROGRAMS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a member of a number": (lambda: Member(A_NUMBER), ConfigError, "the address of a ledger, was wanted, got a int"),
    "an async member of a number": (lambda: AsyncMember(A_NUMBER), ConfigError, "was wanted, got a int"),
    "a router of a number": (lambda: Router(A_NUMBER), ConfigError, "a int is no source: give a Config, an address"),
    "an address of no kind": (lambda: Member("jobs"), ConfigError, "does not say what kind of ledger it is"),
    "a file of the root": (lambda: Member("sqlite:///jobs.db"), ConfigError, "write sqlite:jobs.db for one in the"),
    "no folder": (lambda: Member("sqlite:no/such/x.db"), LedgerUnusable, "make the folder; only the file is made"),
    "a folder": (lambda: Member("sqlite:folder"), LedgerUnusable, "that is a folder: name a file in it"),
    "no database": (lambda: Router("sqlite:text.db"), LedgerUnusable, "it is not an SQLite database"),
    "a router of no ledger": (
        lambda: Router("sqlite:none.db", timeout=0.01),
        LedgerMissing,
        "no member has made the ledger sqlite:none.db yet (there is no such file): start a member, which makes it",
    ),
    "owners outside of Redis": (lambda: Router.from_redis("kafka://h/g"), ConfigError, "is no address in Redis"),
    "a handler that cannot be called": (
        lambda: Member(in_memory(), on_event=A_NUMBER),
        ConfigError,
        "on_event must be a function of one event, got a int",
    ),
    "a lease of nothing": (lambda: in_memory(lease=0), ConfigError, "it has 1 problem: lease=0 must be from 0.01 to"),
    "a lease of text": (lambda: in_memory(lease=A_TEXT), ConfigError, "lease='1' must be a number of seconds"),
    "a weight of truth": (lambda: in_memory(weight=True), ConfigError, "weight=True must be a whole number from 0"),
    "a layout of a number": (lambda: in_memory(layout=A_NUMBER), ConfigError, "must be a Layout(slots=..., partitions"),
    "an unknown option": (lambda: Config.of({"leese": 1, "ledger": "memory://x"}), ConfigError, "did you mean lease?"),
    "a table of no age": (lambda: in_memory(max_age=0), ConfigError, "give it some seconds, or None for no limit"),
    "a negative age": (lambda: Router("memory://x", max_age=-1), ConfigError, "max_age=-1 must be a number of seconds"),
    "no groups": (lambda: Groups({}), ConfigError, "there is no group: name one at least"),
    "no owners": (lambda: Router.static([]), ConfigError, "0 owners were given for 256 partitions: give one for each"),
    "an agent's address": (lambda: Client("nonsense"), ConfigError, "an agent's address is unix:/path/agent.sock"),
    "a member that is not open": (lambda: AsyncMember("memory://x").led, Closed, "use `async with`, or await `open()`"),
    "two of one name": (lambda: testing.group("a", "a").__enter__(), ValueError, "is in this group already"),
    "a fence without its table": (
        lambda: fence.admitted(sqlite3.connect(":memory:"), "invoices"),
        sqlite3.OperationalError,
        "`install(connection)` of neli_router.fence makes the table; commit it",
    ),
    "a term of text": (
        lambda: fence.admit(sqlite3.connect(":memory:"), "invoices", A_TEXT),
        fence.FenceMisused,
        "pass `lease.term` as it is",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_argument_is_refused_at_once(name: str) -> None:
    call, kind, said = PROGRAMS[name]
    assert_refused(call, kind, said)


ASKED: dict[str, tuple[Callable[[Member], Any], type[Exception], str]] = {
    "a key that is a number": (lambda it: it.router.owner(A_NUMBER), BadKey, "such as str(number)"),
    "no key": (lambda it: it.router.owner(ANY), BadKey, "a key was wanted: bytes, or a str"),
    "a key of no text": (lambda it: it.router.owner("\ud800"), BadKey, "with a lone surrogate"),
    "a role that is no whole number": (lambda it: it.lease(1.5), BadKey, "a role was wanted: a whole number, or a"),  # type: ignore[arg-type]
    "a pin of no partition": (lambda it: it.pin(999, "a"), ConfigError, "no partition 999: they count from 0 to 255"),
    "a negative weight": (lambda it: it.weigh("a", -1), ConfigError, "or None for the member's own"),
    "a task that cannot be called": (lambda it: it.background(A_NUMBER), ConfigError, "a task must be a function of"),
    "a negative interval": (lambda it: it.background(print, interval=-1), ConfigError, "interval=-1 must be a number"),
    "keys of nobody": (lambda it: Router(it.router.feed).mine(["k"]), ConfigError, "give the router a name"),
    "a router that shall travel": (lambda it: pickle.dumps(it.router), TypeError, "open a router where that arrives"),
    "another handler": (lambda it: AsyncMember(it, on_event=print), ConfigError, "has its own handler of events"),
}


@pytest.fixture(name="asked", scope="module")
def _asked() -> Iterator[Member]:
    with Member(Config("memory://asked", name="a")) as member:
        assert member.pulse(60)
        yield member


@pytest.mark.parametrize("name", ASKED)
def test_a_wrong_question_to_a_member_or_its_router_is_refused_at_once(name: str, asked: Member) -> None:
    call, kind, said = ASKED[name]
    assert_refused(lambda: call(asked), kind, said)


def assert_refused(call: Callable[[], Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert said in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    if isinstance(caught.value, NeliError):
        assert all((caught.value.wanted, caught.value.found, caught.value.remedy))


def test_a_member_takes_the_address_of_a_ledger_as_a_router_does() -> None:
    with Member("memory://front-door") as member, Router("memory://front-door") as router:
        assert member.pulse(60)

        assert member.name == router.owner("customer-7").name
