"""`neli group delete`: the end of a group, when nobody lives in it.

    the ledger, read to its tip --> the address is typed --> listening for WATCH_LEASES --nobody wrote--> the files go
                                                                   '--a member wrote--> refused, exit 5

Whoever deletes the ledger of a living group stops all of it: its members find that their file is gone and fence
themselves. So this listens first, and after the question was answered, because an answer may take an hour. A member
beats several times a lease. One that does not hear itself falls silent but for a probe every two leases, so that is
how long a silence must be before it means that nobody is there.

The file goes before its companions: SQLite throws away a write-ahead log that it finds beside an empty file, but it
would read a ledger without its log as one that ends early. A process that starts meanwhile does no harm either: it
sees that its file was deleted before it acts on it.
"""

import json
from pathlib import Path

import click

from neli_router import config as configuration
from neli_router.commands.configuration import output_option, resolved_or_exit, with_options
from neli_router.commands.exit_codes import EXIT_BROKEN, EXIT_REFUSED
from neli_router.config import Config
from neli_router.errors import NeliError
from neli_router.status.inspection import Inspection

__all__ = ["delete_command", "group_command"]

WATCH_LEASES = 2.5
"""How long nobody may write. Under two, a member that probes is overlooked; more only takes longer."""


@click.group("group")
def group_command() -> None:
    """Look after a whole group."""


@group_command.command("delete")
@with_options("ledger")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def delete_command(config_file: str | None, output: str, yes: bool, **flags: object) -> None:
    """Delete the group's ledger with all that it remembers: owners, terms, pins, drains and weights.

    Only if nobody lives in the group: it listens for two and a half leases, and refuses if a member says anything. Asks
    for the ledger's address to be typed, unless --yes.

    A later group at the same place has higher terms, so that fences hold. Exits with 1 if there is no ledger or it
    cannot be read; 2 if the configuration is not usable; 5 if somebody lives, or the address was not typed.
    """
    config = resolved_or_exit(flags, config_file).config
    try:
        path = _file_of(config)
        ledger = configuration.open(config, create=False)
        try:
            address, inspection = ledger.address, Inspection(ledger)
            _ask(address, inspection, yes=yes)
            lease = inspection.lease or config.lease
            click.echo(f"Listening for {WATCH_LEASES * lease:g} s, in case somebody lives ...", err=True)
            if living := inspection.living(WATCH_LEASES * lease):
                _refuse(f"{living} is alive in {address}: stop every member and agent of the group, then try again")
        finally:
            ledger.close()
        deleted = _delete(path)
    except NeliError as error:
        click.echo(f"neli: {error}", err=True)
        raise SystemExit(EXIT_BROKEN) from None
    if output == "json":
        click.echo(json.dumps({"ledger": address, "deleted": deleted}))
    else:
        click.echo("\n".join(f"deleted {name}" for name in deleted))


def _file_of(config: Config) -> Path:
    scheme, _, rest = config.ledger.partition(":")
    if scheme != "sqlite":
        raise NeliError(
            "the ledger of a group was to be deleted",
            f"one of the kind {scheme!r} ends with its process",
            "there is nothing to do; name a ledger in a file",
        )
    return Path(rest.removeprefix("//"))


def _ask(address: str, inspection: Inspection, *, yes: bool) -> None:
    if yes:
        return
    names = ", ".join(inspection.members) or "none"
    click.echo(f"{address} has {inspection.records:,} records; its last members: {names}.", err=True)
    typed = click.prompt("Type the address of the ledger to delete it", default="", show_default=False, err=True)
    if typed.strip() != address:
        _refuse("that is not the ledger's address: nothing was deleted")


def _refuse(reason: str) -> None:
    click.echo(f"neli: {reason}", err=True)
    raise SystemExit(EXIT_REFUSED)


def _delete(path: Path) -> list[str]:
    real = path.resolve()
    deleted = []
    # The path last, if it is a link: it says where the others are, for whoever has to go on after an error.
    for name in dict.fromkeys((real, real.with_name(f"{real.name}-wal"), real.with_name(f"{real.name}-shm"), path)):
        try:
            name.unlink()
        except FileNotFoundError:
            continue  # SQLite takes the companions away itself when the last who had them open closes.
        except OSError as error:
            raise NeliError(
                f"the file {name} was to be deleted", f"it cannot be ({error})", "delete it by hand"
            ) from None
        deleted.append(str(name))
    return deleted
