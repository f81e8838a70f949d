"""`neli ledger`: look into a ledger, copy it to a file, and found its group again on another ledger.

    a ledger or a copy --inspect--> what its records say
    ledger ------------export-----> a copy: one JSON line for each record
    copy --------------import-----> an empty ledger of any kind: the same settings and wishes, and higher terms

`status/copies.py` says what a copy has, and why terms do not fall. An export that fails leaves no file.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import IO

import click

from neli_router.commands.configuration import resolved_or_exit, with_options
from neli_router.commands.conventions import failed, output_option, print_views
from neli_router.config.config import Config
from neli_router.config.options import in_shell
from neli_router.core.exit_codes import EXIT_BROKEN, EXIT_REFUSED
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.open import open_ledger
from neli_router.errors import ConfigError, LedgerError, NeliError
from neli_router.status.copies import Copy, LedgerSummary, exported, found_again
from neli_router.status.replay import untrimmed

__all__ = ["export_command", "import_command", "inspect_command", "ledger_command"]


@click.group("ledger")
def ledger_command() -> None:
    """Look into a ledger, copy it, and found its group again elsewhere."""


@ledger_command.command("inspect")
@with_options("ledger")
@click.option("--copy", type=click.File("rb"), metavar="FILE", help="Read this copy instead of a ledger.")
@output_option
def inspect_command(config_file: str | None, copy: IO[bytes] | None, output: str, **flags: object) -> None:
    """Print what the records of a ledger say: how many there are, the group's settings, members, terms and wishes.

    \b
    Examples:
      neli ledger inspect
      neli ledger inspect --copy jobs.jsonl --output json | jq .highest_term

    Exits with 1 if the ledger does not exist or cannot be read; 2 if the configuration is not usable; 5 if the file is
    not a whole copy.
    """
    with _failing():
        if copy is not None:
            summary = _read(copy).summary()
        else:
            with _opened(resolved_or_exit(flags, config_file).config, create=False) as ledger:
                summary = untrimmed(lambda: Copy.of_ledger(ledger)).summary()
    if output == "json":
        print_views([summary])
    else:
        _print(summary)


@ledger_command.command("export")
@with_options("ledger")
@click.argument("file", type=click.File("wb", atomic=True), default="-")
def export_command(config_file: str | None, file: IO[bytes], **flags: object) -> None:
    """Copy a ledger to FILE, or to standard output: a JSON line for each record.

    The group may go on meanwhile: the copy ends with the last record that was there when it began.

    \b
    Examples:
      neli ledger export jobs.jsonl
      neli ledger export | gzip > jobs.jsonl.gz

    Exits with 1 if the ledger does not exist or cannot be read; 2 if the configuration is not usable.
    """
    with _failing(), _opened(resolved_or_exit(flags, config_file).config, create=False) as ledger:
        for line in exported(ledger):
            file.write(line)
        click.echo(f"copied {ledger.address}: {line.decode().strip()}", err=True)


@ledger_command.command("import")
@with_options("ledger")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--partitions", type=click.IntRange(1), metavar="NUMBER", help="Found it with this many partitions.")
@click.option("--yes", is_flag=True, help="Do not ask: the members that the copy shows have ended.")
def import_command(
    config_file: str | None, file: IO[bytes], partitions: int | None, yes: bool, **flags: object
) -> None:
    """Found the group of a copy again, on a ledger that has no group yet. Its terms will be higher than before.

    The new group has the copy's layout, lease, guarantee and version, and its drains, pins, weights and loads. Members
    join it once they are started with the new address. With --partitions, pins and loads stay behind, because keys
    would move to other partitions.

    Stop every member and agent of the old group first, and wait for a lease: two groups do not know of each other.

    \b
    Examples:
      neli ledger import jobs.jsonl --ledger 'postgresql://db/app?group=jobs'
      neli ledger export --ledger sqlite:old.db | neli ledger import --yes --ledger kafka://broker:9092/jobs

    Exits with 1 if the ledger cannot be read or written; 2 if the configuration is not usable; 5 if the file is not a
    whole copy, the ledger has a group, or the question was not answered with yes.
    """
    with _failing():
        copy = _read(file)
        if copy.members and not yes:
            _ask(copy.members)
        config = resolved_or_exit(flags, config_file).config
        with _opened(config, create=True) as ledger:
            base, wishes = found_again(ledger, copy, time.time(), partitions)
            counted = f"{wishes} wish{'es' * (wishes != 1)}"
            click.echo(
                f"{ledger.address} has the group of {copy.source} now, with {counted}. Its terms are above {base}."
            )
            assert copy.state.genesis is not None, "it was founded"
            try:  # Members are refused for the same reason, but only once the old group is stopped.
                replace(config, guarantee=copy.state.genesis.guarantee).require_promises(ledger)
            except ConfigError as error:
                click.echo(f"Before you start its members: {in_shell('; '.join(error.problems))}", err=True)


def _read(file: IO[bytes]) -> Copy:
    return Copy.of_file(getattr(file, "name", "standard input"), file)


def _ask(members: list[str]) -> None:
    click.echo(f"The copy ends with the members {', '.join(members)}.", err=True)
    if not (sys.stdin.isatty() and click.confirm("Have they all ended?", default=False, err=True)):
        raise failed("members of the old group may be alive: stop them, then import with --yes", EXIT_REFUSED)


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except LedgerError as error:
        raise failed(str(error), EXIT_BROKEN) from None
    except NeliError as error:
        raise failed(error) from None


def _opened(config: Config, *, create: bool) -> "closing[Ledger]":
    return closing(open_ledger(config.common_ledger, create=create, patience=config.lease))


def _print(summary: LedgerSummary) -> None:
    def listed(names: Iterable[str]) -> str:
        return ", ".join(names) or "none"

    total = sum(summary.records.values())
    rows = {
        "ledger": summary.source,
        "records": f"{total:,} from offset {summary.start} to {summary.tip}, {summary.bytes:,} bytes",
        "kinds": listed(f"{count:,} {kind}" for kind, count in summary.records.items()),
        "group": "none yet",
    }
    if summary.lease is not None:
        tags = ", with tags" if summary.tags else ""
        rows |= {
            "group": f"{summary.guarantee}, lease {summary.lease:g} s, version {summary.version}",
            "layout": f"{summary.slots} slots, {summary.partitions} partitions{tags}",
            "members": listed(summary.members),
            "away": listed(summary.away),
            "unowned": f"{summary.unowned} partitions",
            "terms": f"the highest is {summary.highest_term}" if summary.highest_term else "none was given yet",
            "drained": listed(summary.drains),
            "weights": json.dumps(summary.weights) if summary.weights else "none",
            "pins": str(summary.pins),
            "loads": str(summary.loads),
            "digest": summary.digest,
        }
    width = max(map(len, rows))
    for name, text in rows.items():
        click.echo(f"{name:{width}}  {text}")
