"""README.md and docs/: every example runs as a reader would type it, or a table here says why it cannot.

    python block    a test of its page executes all blocks in order, in an empty folder
    sh block        the first word of each command selects a checker, which asks the real command line, or looks for
                    the target, extra, benchmark or variable; otherwise `NOT_RUN` has the reason
    console block   commands of redis-cli with their answers, on a real Redis
    text block      output of the demo
    indented        pictures and addresses: no code may hide there; the real parser must accept ledger addresses

The commands of docs/agent.md really run, next to an agent. A page that has Python blocks but no test fails. The blocks
of docs/airflow.md run in tests/provider/test_docs.py, where Airflow is installed, and those about Spark in
tests/spark/test_docs.py. Those of docs/frameworks.md are parts of the programs that tests/examples runs. The tutorials
are followed to the letter, by a bash that types what a reader would type (tests/tutorials.py).
"""

import asyncio
import os
import re
import runpy
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, cast

import click
import psycopg
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

import neli_router
from docs import reference
from neli_router import Config, Layout, Member, fence
from neli_router.commands.cli import main
from neli_router.config.options import OPTIONS
from neli_router.drivers.addresses import problems_of
from neli_router.fence import RESOURCE_MAX
from neli_router.router.loads import LoadProfile
from tests.conftest import require
from tests.support.servers.goneli import GoneliMember
from tests.support.servers.goneli_build import build
from tests.support.servers.redis import Redis, missing
from tests.support.waiting import PATIENCE, until
from tests.tutorials import FOLDER, follow

ROOT = Path(neli_router.__file__).parents[1]
FILES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in FILES}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"(?<![\w+])(?:kafka|postgresql|rediss?(?:\+\w+)?|sqlite):[^\s`\"');|]+")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")

SECTIONS: dict[str, str] = {}

PYTHON_BLOCKS = {
    "README.md": 3,
    "docs/agent.md": 2,
    "docs/airflow.md": PAGES["docs/airflow.md"].count("\n```python\n"),  # Any number: each runs on its own.
    "docs/columns.md": 1,
    "docs/fencing.md": 17,
    "docs/frameworks.md": PAGES["docs/frameworks.md"].count("\n```python\n"),  # They are parts of `examples/`.
    "docs/groups.md": 2,
    "docs/load.md": 1,
    "docs/members.md": 1,
    "docs/moving.md": PAGES["docs/moving.md"].count("\n```python\n"),  # Any number: two tests run all sections.
    "docs/postgresql.md": 4,
    "docs/redis.md": 3,
    "docs/spark.md": 9,
    "docs/tutorials/airflow.md": 1,
    "docs/tutorials/spark.md": 4,
    "docs/tutorials/worker.md": 3,
}
"""Page -> how many Python blocks its test executes."""

NOT_RUN = {
    "airflow": "takes seconds to start; tests/provider/test_docs.py asks Airflow's own parser",
    "docker": "is not here; tests/deploy/test_compose.py checks the files",
    "install": "puts files into /etc; tests/deploy reads the files",
    "kafka-acls.sh": "comes with Kafka; tests/drivers/ledgers/test_kafka.py grants these rights to a member",
    "kill": "ends a process that the lines before it started",
    "kubectl": "needs a cluster; tests/deploy/test_kubernetes.py checks the manifests",
    "openssl": "draws a token for /etc",
    "source": "changes the shell that reads it",
    "systemctl": "needs systemd; tests/deploy/test_systemd.py checks the unit",
    "umask": "belongs to the token for /etc",
    "useradd": "makes a user of the host",
}
"""First word of a command -> why it is neither run nor checked."""


def blocks(page: str, language: str) -> list[str]:
    return [text for name, text in FENCED.findall(SECTIONS.get(page) or PAGES[page]) if name == language]


def section(page: str, title: str) -> str:
    """The name of one of a page's sections, which `blocks` and `execute` take like a page."""
    (found,) = re.findall(rf"^## {title}$.*?(?=^## |\Z)", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    SECTIONS[name := f"{page}#{title}"] = found
    return name


def execute(page: str, names: dict[str, Any], *, swapped: tuple[str, str] = ("", "")) -> None:
    for block in blocks(page, "python"):
        exec(block.replace(*swapped), names)  # noqa: S102


@pytest.fixture(name="names")
def _names() -> Iterator[dict[str, Any]]:
    """The names that the blocks of a page define. Blocks leave connections open, like a program until it ends."""
    defined: dict[str, Any] = {}
    yield defined
    for one in defined.values():
        if isinstance(one, sqlite3.Connection):
            one.close()


def commands(block: str) -> Iterator[list[str]]:
    """The words of each command in a shell block, without comments and redirections."""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";&|()"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)


@cache
def help_of(program: str, *words: str) -> str:
    """The help of a module or a script, printed once although several pages name it."""
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(StringIO()) as told, suppress(SystemExit):
        patched.setattr(sys, "argv", [program, *words, "--help"])
        if program.endswith(".py"):
            runpy.run_path(str(ROOT / program), run_name="__main__")
        else:
            # Another test of this worker may have imported the module, and `runpy` would warn about that.
            patched.delitem(sys.modules, f"{program}.__main__", raising=False)
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    return told.getvalue()


def check_neli(words: list[str]) -> None:
    with main.make_context("neli", [*words], resilient_parsing=True) as context:
        command = main.get_command(context, words[0]) if not words[0].startswith("-") else None
        if command is None:
            assert words in (["--version"], ["--help"]), f"`neli {words[0]}` is not a command"
        else:
            with suppress(click.exceptions.Exit):  # It has printed its help.
                command.make_context(words[0], words[1:], parent=context)


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE)
    variables = {word for word in words if f"$({word.partition('=')[0]})" in makefile}
    assert set(words) <= {*targets, *variables}


def check_pip(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    if words == ["uninstall", "pyspark-client"]:
        return
    assert words[0] == "install"
    if words[1:3] == ["--force-reinstall", "--no-deps"]:  # A third-party package, in the version that is tested.
        assert f"\n{words[3]} \\\n" in (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
        return
    for target in words[1:]:
        found = re.fullmatch(r"\.(?:\[([a-z,]+)\])?", target)
        assert found, f"{target}: no index has a release, so only a clone can be installed"
        assert set((found[1] or "").split(",")) - {""} <= extras.keys()


def check_python(words: list[str]) -> None:
    match words:
        case ["-m", "venv", _] | ["-m", "neli_router.spark.runtime"]:  # tests/spark/test_runtime.py runs the latter.
            pass
        case ["worker.py", _]:  # A test below runs it.
            pass
        case ["-m", "benchmarks" | "neli_router.lab.local_airflow" | "tests.quint" as program, *options]:
            told = help_of(program, *(options[:1] if options and not options[0].startswith("-") else []))
            assert [] == [option for option in options if option.startswith("--") and option not in told]
        case _:
            pytest.fail(f"python {words} is neither run nor checked")


def check_export(words: list[str]) -> None:
    ours = {option.variable for option in OPTIONS.values()}
    assert {word.partition("=")[0] for word in words} <= ours | {"JAVA_HOME", "NELI_AGENT"}


def check_spark_submit(words: list[str]) -> None:
    """The job exists and has the options; tests/spark runs it."""
    pytest.importorskip("pyspark")
    while words[0] == "--conf":  # An option of Spark itself.
        words = words[2:]
    told = help_of(words[0])
    assert [] == [word for word in words if word.startswith("--") and word not in told]


CHECKERS: dict[str, Callable[[list[str]], None]] = {
    "export": check_export,
    "make": check_make,
    "neli": check_neli,
    "pip": check_pip,
    "python": check_python,
    "python3": check_python,
    "spark-submit": check_spark_submit,
}


def check(words: list[str]) -> None:
    first = Path(words[0]).name
    if first not in NOT_RUN:
        assert first in CHECKERS, f"{shlex.join(words)}: give it a checker, or a reason in NOT_RUN"
        CHECKERS[first](words[1:])


def typed(page: str) -> list[list[str]]:
    return [words for block in blocks(page, "sh") if "/tutorials/" not in page for words in commands(block)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_block_or_a_sentence_is_one(page: str) -> None:
    for words in typed(page):
        check(words)
    for text in re.findall(r"`((?:neli|make|pip|python) [^`]*)`", FENCED.sub("", PAGES[page])):
        with suppress(click.MissingParameter):  # In a sentence, a command may lack its arguments.
            check(next(commands(text)))


@pytest.mark.parametrize(
    "line",
    [
        "neli ownr customer-7",
        "neli owner --colour customer-7",
        "neli run --role nightly -- ./report.sh",
        "make tests",
        "pip install neli-router",
        "pip install '.[agents]'",
        "python -m benchmarks failover --rivals",
        "spark-submit dags/jobs/profile_load.py --colour blue",
        "export NELI_LEESE=1",
        "serf members",
    ],
)
def test_a_command_that_is_none_is_found(line: str) -> None:
    (words,) = commands(line)
    with pytest.raises((AssertionError, click.UsageError)):
        check(words)


def test_no_reason_is_given_for_a_command_that_no_page_has() -> None:
    assert NOT_RUN.keys() <= {Path(words[0]).name for page in PAGES for words in typed(page)}


@pytest.mark.parametrize("page", PAGES)
def test_no_code_hides_from_these_tests_and_every_link_leads_to_a_file(page: str) -> None:
    assert PYTHON_BLOCKS.get(page, 0) == len(blocks(page, "python")), "a test here must execute each"
    assert {name for name, _ in FENCED.findall(PAGES[page])} <= {"python", "sh", "console", "text"}
    indented = re.findall(r"^ {4,}(\S+)", FENCED.sub("", PAGES[page]), flags=re.MULTILINE)
    assert set() == set(indented) & {*CHECKERS, *NOT_RUN, "async", "def", "from", "import", "with"}
    assert bool(blocks(page, "console")) == (page == "docs/redis.md")
    links = [link for link in LINK.findall(FENCED.sub("", PAGES[page])) if "://" not in link]
    assert [] == [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]


def test_the_reference_follows_the_declarations() -> None:
    """`make docs` writes these pages again."""
    assert [] == [name for name, text in reference.pages().items() if PAGES.get(f"docs/reference/{name}") != text]


def test_the_reference_names_every_error_and_every_event_of_the_log_and_no_other() -> None:
    def named(page: str) -> set[str]:
        return set(re.findall(r"^\| `([\w.]+)` \|", PAGES[f"docs/reference/{page}.md"], flags=re.MULTILINE))

    assert reference.errors() == named("errors")
    logged, in_the_code = reference.events()
    assert logged <= named("events") <= in_the_code


def test_every_public_class_and_function_has_a_docstring() -> None:
    assert set() == reference.undocumented()
    assert len(reference.PUBLIC) == len({name for name in PAGES if name.startswith("docs/reference/python/")})


def addresses(page: str) -> list[str]:
    """Ledger addresses on a page, without those that have [optional] parts or name only a server and its port."""
    return [found for found in ADDRESS.findall(PAGES[page]) if "[" not in found and not re.search(r"://[^/]+$", found)]


def test_every_address_of_a_ledger_is_one(tmp_path: Path) -> None:
    settings = tmp_path / "kafka.properties"
    settings.write_text("security.protocol=SASL_SSL\n", encoding="utf-8")
    whole = PAGES.keys() - {"docs/reference/commands.md"}  # A terminal's lines break an address.
    found = {page: addresses(page) for page in sorted(whole)}
    assert {"README.md", "docs/agent.md", "docs/kafka.md", "docs/redis.md"} <= {page for page in found if found[page]}
    for page, ledgers in found.items():
        for address in ledgers:
            assert [] == problems_of(address.replace("/etc/neli/kafka.properties", str(settings))), page


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.process
def test_the_first_program_shares_keys_and_a_worker_that_is_stopped_or_killed_is_replaced() -> None:
    worker, *_ = blocks("README.md", "python")
    Path("worker.py").write_text(worker, encoding="utf-8")
    started = [words for block in blocks("README.md", "sh") for words in commands(block) if "worker.py" in words]
    assert 3 == len(started)

    def orders(name: str) -> list[str]:
        _, _, line = Path(name).read_text(encoding="utf-8").rstrip().rpartition("\n")
        return line.split()[3:]

    def are_shared(names: Collection[str]) -> bool:
        return sorted(f"order-{number}" for number in range(9)) == sorted(key for name in names for key in orders(name))

    with ExitStack() as stack:
        workers: dict[str, subprocess.Popen[str]] = {}
        for _, program, name in started:
            output = stack.enter_context(Path(name).open("w", encoding="utf-8"))
            process = subprocess.Popen([sys.executable, program, name], stdout=output, text=True)
            workers[name] = stack.enter_context(process)
            stack.callback(process.kill)
        until(lambda: are_shared(workers), "nine orders are shared")
        stopped = workers.pop(next(name for name in workers if orders(name)))
        stopped.terminate()
        until(lambda: are_shared(workers), "the other two have all of them")
        assert 0 == stopped.wait(PATIENCE)
        workers.pop(next(name for name in workers if orders(name))).kill()
        until(lambda: are_shared(workers), "the last one has all of them")


def test_the_other_programs_of_the_front_page(capsys: pytest.CaptureFixture[str]) -> None:
    _, lead, ask = blocks("README.md", "python")
    exec(lead, {})  # noqa: S102 - our own pages, here and below.
    assert "Owner(name='worker-1', address='10.0.0.1:8080'," in capsys.readouterr().out
    with Member(Config("sqlite:jobs.db", name="worker-0")) as member, member.leading("customer-42", timeout=PATIENCE):
        exec(ask, {})  # noqa: S102


def test_a_member_with_a_handler(names: dict[str, Any]) -> None:
    execute("docs/members.md", names)
    partition = names["config"].layout.partition("customer-42")
    assert Path(f"journal-{partition}.txt").read_text(encoding="utf-8").startswith("paid under term ")
    assert {} == names["journals"]


def test_the_promises_show_lines_that_the_demo_prints() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "neli_router" / "lab" / "demo").glob("*.py"))
    (shown,) = blocks("docs/promises.md", "text")
    names = re.findall(r"^PASS  ([\w-]+(?: [\w-]+)*)", shown, flags=re.MULTILINE)
    assert 3 == len(names)
    assert [] == [name for name in names if f'"{name}"' not in source]


@pytest.mark.process
def test_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run its first shell block line by line, next to the agent that the block starts; then its Python."""
    report = tmp_path / "report.sh"
    report.write_text('#!/bin/sh\nexec test -n "$NELI_TERM"\n')
    report.chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert shutil.which("neli")
    ran: list[str] = []
    with ExitStack() as stack:
        for words in commands(blocks("docs/agent.md", "sh")[0]):
            match words:
                case ["export", *settings]:
                    for setting in settings:
                        monkeypatch.setenv(*setting.split("=", 1))
                case ["neli", "agent"]:
                    agent = stack.enter_context(subprocess.Popen(words))
                    stack.callback(agent.terminate)
                    until(lambda: 0 == CliRunner().invoke(main, ["owner", "customer-42"]).exit_code, "a ready agent")
                case ["neli", "watch", *_]:  # It runs until it is interrupted.
                    watching = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
                    stack.callback(watching.terminate)
                    assert watching.stdout is not None
                    assert watching.stdout.readline().split()[2] == "worker-1"  # After the day and the time.
                case ["neli", "doctor"]:  # It may complain about a slow ledger while the machine is busy.
                    assert CliRunner().invoke(main, ["doctor"]).exit_code in {0, 1}
                case ["neli", command, *_] if command != "run":
                    told = CliRunner().invoke(main, words[1:])
                    assert 0 == told.exit_code, f"{words}: {told.output}"
                case _:
                    subprocess.run(words, timeout=PATIENCE, check=True)
            ran.append(words[1])
        assert {"agent", "owner", "run", "members", "table", "watch", "events", "drain", "config", "doctor"} <= set(ran)
        for block in blocks("docs/agent.md", "python"):
            exec(block, {})  # noqa: S102


def test_frameworks() -> None:
    programs = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")]
    shown = blocks("docs/frameworks.md", "python")
    assert [] == [block for block in shown if not any(block in one for one in programs)]


def test_columns(names: dict[str, Any]) -> None:
    with Member(Config("sqlite:jobs.db", name="worker-1")) as member, member.leading("ACME", timeout=PATIENCE):
        execute("docs/columns.md", names)
    assert ["ACME", "GLOBEX"] == names["mine"]["instrument"].to_list()
    assert ["worker-1", "worker-1", None] == names["whole"].struct.field("name").to_list()


def test_fencing(names: dict[str, Any]) -> None:
    execute("docs/fencing.md", names)
    assert [] == names["open_invoices"]
    assert f"of 1 to {RESOURCE_MAX} printable" in PAGES["docs/fencing.md"]


@pytest.mark.postgresql
def test_postgresql(database: str) -> None:
    page = "docs/postgresql.md"
    first, ask, *rest = blocks(page, "python")
    with ExitStack() as stack:
        names: dict[str, Any] = {"address": f"{database}?group=jobs", "database": database}
        exec(first, names)  # noqa: S102
        member = stack.enter_context(cast("Member", names["member"]))
        with member.leading("customer-7", timeout=PATIENCE) as lease, psycopg.connect(database) as connection:
            connection.autocommit = True
            until(lambda: connection.execute("SELECT FROM neli.owners WHERE partition = 150").rowcount == 1)
            exec(ask, names)  # noqa: S102
            assert lease.term == names["term"]
            # The rights are enough: who has more is refused nothing.
            for rights in re.findall(r"^    (GRANT .*);$", PAGES[page], flags=re.MULTILINE):
                connection.execute("CREATE ROLE member") if "USAGE" in rights else None
                connection.execute(cast("Any", rights))
            connection.execute("GRANT SELECT ON neli.layouts, neli.owners TO member; SET ROLE member")
            asked = "SELECT owner FROM neli.owners WHERE partition = neli.partition('customer-7')"
            assert [("worker-1",)] == connection.execute(asked).fetchall()
            connection.execute("RESET ROLE; DROP OWNED BY member; DROP ROLE member")
        for block in rest:
            exec(block, names)  # noqa: S102
        stack.enter_context(names["router"])
    with psycopg.connect(database) as connection:
        assert [(7, "paid")] == connection.execute("SELECT * FROM invoices").fetchall()


@pytest.mark.postgresql
def test_fencing_over_an_awaited_connection(database: str, names: dict[str, Any]) -> None:
    (block,) = (block for block in blocks("docs/fencing.md", "python") if "AsyncConnection" in block)
    exec(block, names)  # noqa: S102
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, state TEXT)")
        connection.execute("INSERT INTO invoices VALUES (1, 'open')")
        fence.install(connection)
    asyncio.run(names["pay"](database, 9))
    with pytest.raises(fence.Refused):
        asyncio.run(names["pay"](database, 7))
    with psycopg.connect(database) as connection:
        assert [("paid",)] == connection.execute("SELECT state FROM invoices").fetchall()


def test_more_than_one_owner(tmp_path: Path, names: dict[str, Any]) -> None:
    with ExitStack() as stack:
        for group, owner, address in (("blue", "anna", "10.0.0.7:80"), ("green", "gerd", "10.0.0.8:80")):
            names[group] = f"sqlite://{tmp_path}/{group}.db"
            member = Member(Config(names[group], name=owner, address=address, zone="west", layout=Layout(partitions=4)))
            with stack.enter_context(member).leading("customer-7", timeout=PATIENCE):
                pass
        execute("docs/groups.md", names)
        stack.enter_context(names["groups"])
        assert {"blue": "anna", "green": "gerd"} == names["names"]
        assert (["blue"], []) == (names["taken"], names["shared"])
        assert ["west"] == [zone.host for zone in names["shared_zones"]]


def test_load(names: dict[str, Any]) -> None:
    execute("docs/load.md", names)
    assert (10781, 15.5) == names["profile"].hottest(5)[0]
    assert names["profile"] == LoadProfile.read("profile.json")


OURS = {"PYTHONPATH": str(ROOT)}
FROM_GONELI = "From goNELI, one process at a time"


@pytest.mark.kafka
def test_moving_from_goneli(kafka: str, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """With a real goNELI process in the group before the move, and a fence behind the group afterwards."""
    require(build())
    group, topic = "prices.group", "prices.topic"
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE)
    with GoneliMember(kafka, group, topic, "prices-6", 5.0) as goneli:
        until(lambda: goneli.leads)
        goneli.ask_to_leave()
        execute(section("docs/moving.md", FROM_GONELI), names, swapped=("localhost:9092", kafka))
    said = capsys.readouterr().out
    assert [str(names["last"])] * 2 == re.findall(rf"\bterm ({names['last']})\b", said), said  # Led, then refused.
    assert names["lease"].term > names["term_base"] > names["last"]


def test_moving_from_anything_else(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    titles = re.findall(r"^## (.+)$", PAGES["docs/moving.md"], flags=re.MULTILINE)
    for title in titles:
        if title != FROM_GONELI:
            execute(section("docs/moving.md", title), names)
    assert FROM_GONELI in titles
    said = capsys.readouterr().out.splitlines()
    assert 5 == len([line for line in said if line.startswith("the report, under term ")])
    assert {"worker-1 leads", "True", f"read {[*range(12)]}", f"this process has {names['shards']}"} <= {*said}
    assert [(names["lease"].term,)] >= [*names["books"].execute("SELECT term FROM neli_fence")] != []


def test_the_index_for_language_models_has_every_page_under_its_own_title() -> None:
    index = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    titles = {page: re.search("^# (.+)$", text, flags=re.MULTILINE) for page, text in PAGES.items()}
    lines = re.findall(r"^- \[(.+)\]\((.+)\): \S.*[^.]$", index, flags=re.MULTILINE)
    assert index.count("\n- ") == len(lines)
    found = {os.path.normpath(f"docs/{link}"): title for title, link in lines}
    assert found == {page: title[1] for page, title in titles.items() if title}


@pytest.mark.process
def test_the_first_worker(tmp_path: Path) -> None:
    (there := tmp_path / "clone").mkdir()
    assert "5. A late write is refused" in (title for title, _ in follow(FOLDER / "worker.md", there, OURS))


REDIS = PAGES["docs/redis.md"]
CONSOLE = re.findall(r"^\$ redis-cli (.*?)\n((?:[^$`].*\n)*)", REDIS, flags=re.MULTILINE)
RIGHTS = re.findall(r"ACL SETUSER (\w+) on >PASSWORD (.*)", REDIS)


@pytest.mark.redis
def test_redis() -> None:
    require(missing())
    first, *rest = blocks("docs/redis.md", "python")
    with ExitStack() as stack:
        server = stack.enter_context(Redis.started())
        assert ["member", "teller", "asker"] == [name for name, _ in RIGHTS]
        for name, rights in RIGHTS:
            assert "OK" == server.cli("ACL", "SETUSER", name, "on", ">word", *rights.split())
        names: dict[str, Any] = {"address": server.url("jobs"), "server": f"redis://127.0.0.1:{server.port}"}
        exec(first, names)  # noqa: S102
        member = stack.enter_context(cast("Member", names["member"]))
        while server.cli("HLEN", "jobs:owners:v1") != "256":
            assert member.pulse(PATIENCE)
        for block in rest:
            exec(block, names)  # noqa: S102
        stack.enter_context(names["router"])
        stack.callback(names["client"].close)
        assert ("worker-1", 150) == (names["owner"].name, names["owner"].partition)
        says = {"HOLDER": member.incarnation}
        assert 4 == len(CONSOLE)
        for command, answer in CONSOLE:
            told = server.cli(*[says.get(word, word) for word in command.split()])
            pattern = re.escape(answer.removesuffix("\n"))
            for placeholder in ("TERM", "EXPIRES_MS", "MICROSECONDS", "SECONDS"):
                pattern = pattern.replace(placeholder, "[0-9]+")
            assert re.fullmatch(pattern.replace("HOLDER", member.incarnation), told), told


def test_the_table_of_hashes_is_right() -> None:
    rows = re.findall(r"^\| (?:`(.*)`|\(empty\)) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", REDIS, flags=re.MULTILINE)
    assert 4 == len(rows)
    for key, whole, slot, partition, tagged in rows:
        expected = [Layout(slots=2**32).slot(key), Layout().slot(key), Layout().partition(key)]
        assert [*expected, Layout(tags=True).slot(key)] == [int(whole), int(slot), int(partition), int(tagged)]
