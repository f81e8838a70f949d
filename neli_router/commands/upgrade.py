"""`neli upgrade`: moves a group to the newest fold version that this release knows.

    the ledger, read to its tip --> all members know it? --yes--> Upgrade, appended --> read back, exit 0
                                       |--no--> listening for WATCH_LEASES: the dead are expired --'
                                       '-- some still do not: a row for each, exit 5

It appends to the ledger directly, because a group need not have an agent, and an agent may be of the older release. It
cannot do harm. Every reader checks for itself, at that record, whether all members know the version; if not, the record
is void. The command decides only whether writing it makes sense.
"""

from contextlib import closing

import click
import msgspec

from neli_router.commands.configuration import resolved_or_exit, with_options
from neli_router.commands.conventions import failed, output_option, print_rows, print_views
from neli_router.core.exit_codes import EXIT_BROKEN
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.open import open_ledger
from neli_router.errors import GroupMismatch, LedgerError, NeliError
from neli_router.member.wishes import NEWEST, WISH_MAX, held_back_by, known, no_wishes, unheard, upgrade
from neli_router.status.inspection import Inspection
from neli_router.status.replay import State

__all__ = ["MemberBehind", "UpgradeView", "upgrade_command"]

WATCH_LEASES = 2.5
"""How long to wait for a member that holds the group back. A dead member is expired sooner; more would only take
longer."""

AUTHOR = "neli upgrade"


class MemberBehind(msgspec.Struct, frozen=True):
    """A member that does not know the wanted version, and the range of those that it knows."""

    name: str
    address: str
    oldest: int
    newest: int


class UpgradeView(msgspec.Struct, frozen=True):
    """The keys of `--output json`. `version` is the group's now, `wanted` the newest that this release knows."""

    ledger: str
    version: int
    wanted: int
    members: int
    behind: list[MemberBehind]


@click.command("upgrade")
@with_options("ledger")
@click.option("--dry-run", is_flag=True, help="Print whether the group could be upgraded, and change nothing.")
@output_option
def upgrade_command(config_file: str | None, output: str, dry_run: bool, **flags: object) -> None:
    """Raise the group's fold version to the newest that this release knows.

    Run it when all members, agents and routers run the new release. Members of an older release cannot join afterwards,
    and the version never goes back. Before that, each process may go back to the older release.

    If a member does not know the version, nothing changes, and the command prints these members. It waits two and a
    half leases before that, because a member that has just died is still in the table.

    \b
    Examples:
      neli upgrade --dry-run
      neli upgrade

    Exits with 0 if the group has the version, or could have it; 1 if the ledger does not exist, or cannot be read or
    written; 2 if the configuration is not usable; 5 if the group has no member, one that does not know the version, or
    a newer version.
    """
    config = resolved_or_exit(flags, config_file).config
    try:
        if not config.has_ledger:
            raise no_wishes("an upgrade", config.protocol_name)
        with closing(open_ledger(config.common_ledger, create=False, patience=config.lease)) as ledger:
            address, inspection = ledger.address, Inspection(ledger)
            before = inspection.state.version
            refusal = _refusal(inspection) if dry_run else _upgrade(ledger, inspection)
    except LedgerError as error:
        raise failed(str(error), EXIT_BROKEN) from None
    except NeliError as error:
        raise failed(error) from None
    _print(address, inspection.state, before, output)
    if refusal is not None:
        raise failed(refusal)


def _upgrade(ledger: Ledger, inspection: Inspection) -> NeliError | None:
    """Upgrade the group; return why that is not possible. Raises LedgerError."""
    wish = upgrade()
    if wish.shown(inspection.state):
        return None
    if held_back_by(inspection.state) and inspection.lease is not None:
        seconds = WATCH_LEASES * inspection.lease
        click.echo(f"Waiting {seconds:g} s for members that may be dead ...", err=True)
        inspection.await_state(lambda state: wish.refusal(state) is None, seconds)
    if (refusal := _refusal(inspection)) is not None:
        return refusal
    ledger.append([wish.payload(AUTHOR)])
    if inspection.await_state(wish.shown, WISH_MAX):
        return None
    if (refusal := _refusal(inspection)) is not None:  # One of them joined just before that record.
        return refusal
    raise unheard(wish, WISH_MAX, "")


def _refusal(inspection: Inspection) -> NeliError | None:
    if not inspection.is_founded:
        return GroupMismatch("a group to upgrade was wanted", "the ledger has none yet", "start its members")
    return upgrade().refusal(inspection.state)


def _print(address: str, state: State, before: int, output: str) -> None:
    behind, wanted = held_back_by(state), NEWEST
    if output == "json":
        views = [MemberBehind(seat.name, seat.address, *seat.versions) for seat in behind]
        print_views([UpgradeView(address, state.version, wanted, len(state.members), views)])
    elif state.version > before:
        click.echo(f"The group's fold version is {state.version} now; it was {before}.")
    elif state.version == wanted:
        click.echo(f"The group's fold version is {wanted}, the newest that this release knows.")
    elif behind:
        print_rows(["NAME", "ADDRESS", "KNOWS"], [(seat.name, seat.address, known(seat)) for seat in behind])
    elif 0 < state.version < wanted and state.members:
        click.echo(f"The group's fold version is {state.version}, and all {len(state.members)} members know {wanted}.")
