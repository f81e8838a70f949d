"""Conventions shared by the commands: common options, how they print, and how they fail.

    --agent, --token-file --> asking() --> Client --> a view --> text, or one JSON object a line
             --ledger --> reading() ---> Router ----'    |
                                                         '-- an error --> one sentence on standard error, its exit code

An agent answers only for the group that its client means: the group of NELI_LEDGER or `neli.toml`, if there is one.

An error that the library raises on purpose never shows a traceback: its message says what to do.
"""

import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from neli_router.config.agent_address import read_token
from neli_router.core.exit_codes import (
    EXIT_LOST,
    EXIT_NO_AGENT,
    EXIT_NO_OWNER,
    EXIT_REFUSED,
    EXIT_USAGE,
)
from neli_router.core.keyspace import Key, Role
from neli_router.core.private import Unreadable
from neli_router.errors import (
    BadKey,
    ConfigError,
    LeaseLost,
    MissingExtra,
    NeliError,
    NoAgent,
    NoOwner,
    NotLeading,
    plain,
)

if TYPE_CHECKING:
    from neli_router.agent.client.client import Client
    from neli_router.router.router import Router

__all__ = [
    "Command",
    "Seconds",
    "agent_options",
    "asking",
    "close_with_reader",
    "complain",
    "failed",
    "key_of",
    "ledger_option",
    "not_empty",
    "options",
    "output_option",
    "partition_option",
    "print_rows",
    "print_views",
    "reading",
    "role_given",
    "time_stamp",
]

Command = TypeVar("Command", bound=Callable[..., Any])


def options(*several: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Several options as one, in the order of the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(several):
            command = option(command)
        return command

    return decorate


agent_options = options(
    click.option(
        "--agent",
        metavar="ADDRESS",
        help="Where the agent listens: unix:/path/agent.sock or http://127.0.0.1:7635.  [default: NELI_AGENT, or the "
        "agent of the group in NELI_LEDGER or neli.toml, or this user's only agent]",
    ),
    click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A file with the agent's token, which only TCP needs.  [default: the variable NELI_TOKEN]",
    ),
)

ledger_option = click.option(
    "--ledger",
    metavar="ADDRESS",
    help="Read this ledger, without an agent. With --agent, that agent is asked, and must be of this group.",
)


def partition_option(**more: Any) -> Callable[[Command], Command]:
    """The number of a partition, where the other way to say which one is a key."""
    return click.option("--partition", type=click.IntRange(0), metavar="N", **more)


output_option = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for people, or JSON; several results are one object a line.",
)


@contextmanager
def asking(agent: str | None, token_file: Path | None, ledger: str | None = None) -> Iterator["Client"]:
    """A client of the agent. An error inside the block ends the command with a sentence and an exit code."""
    with _failing():
        from neli_router.agent import Client  # noqa: PLC0415 - `neli --help` needs no HTTP.
        from neli_router.config.resolve import asked_agent  # noqa: PLC0415 - nor this.

        address, group = asked_agent(agent, ledger)
        token = None if token_file is None else read_token(str(token_file), "flag --token-file")
        with Client(address, token=token, ledger=group or None) as client:
            yield client


@contextmanager
def reading(ledger: str) -> Iterator["Router"]:
    """A router of the ledger, which must exist. An error inside the block ends the command as in `asking`."""
    with _failing():
        from neli_router.config.config import Config  # noqa: PLC0415 - as above.
        from neli_router.drivers.open import open_ledger  # noqa: PLC0415 - as above.
        from neli_router.router.router import Router  # noqa: PLC0415 - as above.

        if ledger.startswith("peers:"):
            raise failed("a ledger was wanted, but a list of peers has none: ask one of their agents, with --agent")
        config = Config(ledger)
        # A router would wait for a ledger that is not there yet.
        open_ledger(config.common_ledger, create=False, patience=config.lease).close()
        with Router(ledger) as router:  # Not the configuration, whose layout the ledger's would have to equal.
            yield router


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except Unreadable as error:
        raise failed(plain(str(error))) from None
    except NeliError as error:
        raise failed(error) from None


def failed(error: NeliError | str, code: int = EXIT_USAGE) -> SystemExit:
    """Print a problem. Returns the exit to raise: with `code`, or the code of an `error` of the library."""
    if isinstance(error, str):
        click.echo(f"Error: {error}", err=True)
        return SystemExit(code)
    complain(error)
    return SystemExit(_exit_code(error))


def complain(error: BaseException) -> None:
    # A refused wish is a ConfigError, too, so print only the problems, without mentioning a configuration.
    from neli_router.config.options import in_shell  # noqa: PLC0415 - as above.

    for sentence in error.problems if isinstance(error, ConfigError) else [error]:
        click.echo(f"Error: {in_shell(str(sentence))}", err=True)


def _exit_code(error: NeliError) -> int:
    if isinstance(error, NoAgent):
        return EXIT_NO_AGENT
    if isinstance(error, NoOwner | NotLeading):
        return EXIT_NO_OWNER
    if isinstance(error, ConfigError | BadKey | MissingExtra):
        return EXIT_USAGE
    return EXIT_LOST if isinstance(error, LeaseLost) else EXIT_REFUSED


def key_of(given: str | bytes) -> Key:
    """A key from the command line or a file: text if it decodes, otherwise its bytes."""
    raw = os.fsencode(given)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


class Seconds(click.FloatRange):
    """A number within bounds. Refuses `nan`, which would pass any bound, because it compares with nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if isnan(number):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return number


def not_empty(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
    """The callback of an argument or option that must not be empty."""
    if given == "":
        raise click.BadParameter("it is empty: is a variable of the shell not set?", ctx, parameter)
    return given


def role_given(key: str | None, partition: int | None) -> Role:
    """The one of the two that was given. Ends the command unless exactly one was."""
    if (key is None) == (partition is None):
        raise failed("a key or a partition was wanted: --key takes any text, also 42; --partition takes a number")
    return partition if key is None else key_of(key)  # type: ignore[return-value]


def close_with_reader(close: Callable[[], None]) -> None:
    """Call `close` when the reader of our output is gone, as after `| head -1`. The next write may be days away."""
    try:
        number = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(number).st_mode)
    except (OSError, ValueError):
        return
    if not is_pipe:
        return

    def wait() -> None:
        watched = select.poll()
        watched.register(number, 0)  # An error on a pipe's writing end means that the reading end is gone.
        watched.poll()
        close()

    threading.Thread(target=wait, name="neli-reader", daemon=True).start()


def time_stamp(ago: float = 0.0) -> str:
    """The time `ago` seconds ago, by this host's clock, with its zone."""
    return datetime.fromtimestamp(time.time() - ago, UTC).astimezone().isoformat(sep=" ", timespec="milliseconds")


def print_views(views: Iterable[msgspec.Struct]) -> None:
    """One JSON object a line."""
    for view in views:
        click.echo(msgspec.json.encode(view))


def print_rows(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on a terminal; elsewhere aligned text, which `awk` and `cut` can split."""
    cells = [[_cell(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_table(head, cells)
        return
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    for row in [list(head), *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_table(head: Sequence[str], cells: list[list[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - as above.
    from rich.table import Table  # noqa: PLC0415 - as above.
    from rich.text import Text  # noqa: PLC0415 - as above.

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in head:
        table.add_column(name)
    for row in cells:
        table.add_row(*map(Text, row))  # As plain text: a name may contain what rich reads as markup.
    Console().print(table)


def _cell(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3f}"
        case _:
            return plain(str(value))
