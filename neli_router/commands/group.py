"""`neli group delete`: deletes a group in which no member lives.

    the ledger, read to its tip --> the address is typed --> listening for WATCH_LEASES --silence--> the ledger goes
                                                                   '--a member wrote--> refused, exit 5

Deleting the ledger of a living group stops the whole group: its members find that their ledger is gone and fence
themselves. So the command listens first, and only after the question was answered, because an answer may take an hour.
A member beats several times a lease. A member that does not hear itself falls silent except for a probe every two
leases, so only a longer silence means that no member lives.
"""

import json
from contextlib import closing

import click

from neli_router.commands.configuration import resolved_or_exit, with_options
from neli_router.commands.conventions import failed, output_option
from neli_router.core.exit_codes import EXIT_BROKEN, EXIT_REFUSED
from neli_router.drivers.addresses import public_address
from neli_router.drivers.open import delete_ledger, open_ledger
from neli_router.errors import LedgerMissing, LedgerUnavailable, NeliError
from neli_router.status.inspection import Inspection

__all__ = ["delete_command", "group_command"]

WATCH_LEASES = 2.5
"""The silence required. Under two leases, a probing member would be overlooked; more would only take longer."""


@click.group("group")
def group_command() -> None:
    """Look after a whole group."""


@group_command.command("delete")
@with_options("ledger")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def delete_command(config_file: str | None, output: str, yes: bool, **flags: object) -> None:
    """Delete the group's ledger with all that it remembers: owners, terms, pins, drains and weights.

    The ledger is a file and its companion files, a Kafka topic, a Redis stream, or rows in PostgreSQL. It is deleted
    only if no member lives: the command listens for two and a half leases, and refuses if a member writes. Unless --yes
    is given, it asks you to type the ledger's address.

    This is also how a group starts over, after an upgrade that cannot read the old ledger or after Diverged. A table of
    owners (--ownership) and fences stay. They remain valid, because a later group at the same place has higher terms,
    unless the clock was set back: the command prints the --term-base that makes sure of it.

    Exits with 1 if the ledger does not exist, or cannot be read or deleted; 2 if the configuration is not usable; 5 if
    a member lives, or the address was not typed.
    """
    config = resolved_or_exit(flags, config_file).config
    try:
        if config.ledger.startswith("memory:"):
            raise NeliError(
                "the ledger of a group was to be deleted",
                "one of the kind 'memory' ends with its process",
                "there is nothing to do; name a ledger that outlives its processes",
            )
        with closing(open_ledger(config.common_ledger, create=False, patience=config.lease)) as ledger:
            address, inspection = ledger.address, Inspection(ledger)
            if not yes:
                _ask(address, inspection)
            lease, highest = inspection.lease or config.lease, inspection.highest_term
            click.echo(f"Listening for {WATCH_LEASES * lease:g} s, in case a member lives ...", err=True)
            if living := inspection.living(WATCH_LEASES * lease):
                found = f"{living} is alive in {address}: stop every member and agent of the group, then try again"
                raise failed(found, EXIT_REFUSED)
        deleted = delete_ledger(config.ledger)
    except NeliError as error:
        raise failed(str(_told(error)), EXIT_BROKEN) from None
    if highest:
        click.echo(
            f"Its highest term was {highest}. If the clock was ever set back, use --term-base {highest} from now on.",
            err=True,
        )
    if config.ownership is not None:
        kept = (
            f"The table of owners at {public_address(config.ownership)} stays: its entries expire, and later terms are"
        )
        click.echo(f"{kept} higher.", err=True)
    if output == "json":
        click.echo(json.dumps({"ledger": address, "deleted": deleted, "highest_term": highest}))
    else:
        click.echo("\n".join(f"deleted {name}" for name in deleted))


def _told(error: NeliError) -> NeliError:
    """The error with the remedy that applies here: no ledger is created, and nothing is retried."""
    if isinstance(error, LedgerMissing):
        return NeliError(error.wanted, error.found, "there is nothing to delete, or correct the address")
    if isinstance(error, LedgerUnavailable):
        return NeliError(error.wanted, error.found, "nothing was deleted: fix that, then run this again")
    return error


def _ask(address: str, inspection: Inspection) -> None:
    names = ", ".join(inspection.members) or "none"
    click.echo(f"{address} has {inspection.records:,} records; its last members: {names}.", err=True)
    typed = click.prompt("Type the address of the ledger to delete it", default="", show_default=False, err=True)
    if typed.strip() != address:
        raise failed("that is not the ledger's address: nothing was deleted", EXIT_REFUSED)
