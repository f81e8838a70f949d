"""`neli audit`: reports from the ledger what a group did, and whether it kept its promises.

    LEDGER --all retained records--> annals --.
    --notes: a folder of *.notes -----------> audit --> a summary, or JSON
                                                '--> --report: one HTML file      --table: Delta tables

The audit only reads, and the group does not notice it. Members trim their ledgers, so the audit begins with the oldest
snapshot whose records are still there. A copy that Spark keeps goes back further: see `dags/jobs/audit_ownership.py`.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from neli_router.commands.configuration import resolved_or_exit
from neli_router.commands.conventions import failed, output_option, print_rows, print_views
from neli_router.config.config import Config
from neli_router.core.exit_codes import EXIT_BROKEN, EXIT_USAGE
from neli_router.drivers.ledgers.base import Entry, Ledger, Promise
from neli_router.drivers.open import open_ledger
from neli_router.errors import MissingExtra, NeliError, plain
from neli_router.status.annals import Annals, Finding
from neli_router.status.audit import Audit, Figures, lasting
from neli_router.status.notes import NoteReader, Span, SpanLog
from neli_router.status.replay import between, patiently, untrimmed

__all__ = ["AuditView", "FindingView", "acts_in", "annals_of", "audit_command", "config_of_ledger"]

TELL_EVERY = 0.2

VERDICTS = {
    "broken": ("BROKEN", "red", "a promise was broken"),
    "warning": ("LOOK", "yellow", "something is worth a look; no promise was broken"),
    "note": ("SOUND", "green", "no promise was broken"),
}


class FindingView(msgspec.Struct, frozen=True):
    severity: str
    kind: str
    text: str
    offset: int | None
    seconds: float | None
    """Since the beginning."""

    @classmethod
    def of(cls, found: Finding, since: float) -> "FindingView":
        seconds = None if found.time is None else found.time - since
        return cls(found.severity, found.kind, found.text, found.offset, seconds)


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds."""

    ledger: str
    verdict: str
    guarantee: str
    lease: float
    partitions: int
    first_offset: int
    end_offset: int
    records: int
    void: int
    unreadable: int
    began_at: str | None
    seconds: float
    clock_error: float
    members: list[str]
    joins: int
    leaves: int
    expired: int
    certified: int
    replaced: int
    tenures: int
    led: float
    owned: float
    gaps: Figures | None
    takeovers: Figures | None
    takeover_error: float
    """The median error of a takeover's time."""
    handovers: Figures | None
    handover_error: float
    moves: int
    planned: int
    least: int
    needless: int
    balance_mean: float
    balance_worst: float
    noted: int
    overlaps: int | None
    """None without notes, because then the audit does not look for overlaps."""
    overlap_longest: float | None
    findings: list[FindingView]

    @classmethod
    def of(cls, address: str, found: Audit) -> "AuditView":
        genesis = found.genesis
        endings = [life.ending for life in found.lives]
        began = found.wall(found.since)
        return cls(
            ledger=address,
            verdict=VERDICTS[found.verdict][0].lower(),
            guarantee=genesis.guarantee,
            lease=genesis.lease,
            partitions=genesis.layout.partitions,
            first_offset=found.first,
            end_offset=found.state.at,
            records=found.records,
            void=sum(found.void.values()),
            unreadable=found.kinds.get("unreadable", 0),
            began_at=None if began is None else datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
            seconds=found.seconds,
            clock_error=found.error,
            members=sorted({life.name for life in found.lives}),
            joins=found.kinds.get("join", 0) - found.void.get("join", 0),
            leaves=endings.count("leave"),
            expired=endings.count("expire"),
            certified=endings.count("certify"),
            replaced=endings.count("replaced"),
            tenures=len(found.tenures),
            led=found.led,
            owned=found.owned,
            gaps=found.gap_times,
            takeovers=found.takeover_times,
            takeover_error=found.takeover_error,
            handovers=found.handover_times,
            handover_error=found.handover_error,
            moves=found.moved,
            planned=found.planned,
            least=sum(plan.least for plan in found.plans),
            needless=found.needless,
            balance_mean=found.balance_mean,
            balance_worst=found.balance_worst,
            noted=len(found.noted),
            overlaps=len(found.overlaps) if found.noted else None,
            overlap_longest=max((it.seconds for it in found.overlaps), default=None),
            findings=[FindingView.of(it, found.since) for it in found.findings],
        )


@click.command("audit")
@click.argument("ledger", required=False)
@click.option("--config", "config_file", metavar="FILE", help="The file that names the ledger, if LEDGER does not.")
@click.option(
    "--notes",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder of the members' notes of when they acted (*.notes). Only they can show overlaps.",
)
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a report with pictures, as HTML."
)
@click.option("--table", type=click.Path(file_okay=False, path_type=Path), help="Write Delta tables into this folder.")
@output_option
def audit_command(
    ledger: str | None,
    config_file: str | None,
    notes: Path | None,
    report: Path | None,
    table: Path | None,
    output: str,
) -> None:
    """Say what a group did, and whether it kept its promises, from all records that LEDGER still has.

    LEDGER is an address such as sqlite:///var/lib/jobs/ledger.db or kafka://host:9092/jobs; by default, the ledger
    that the configuration names. Nothing is appended.

    Exits with 0 if no promise was broken; 1 if one was, or the ledger cannot be read or has no group; 2 if the
    configuration is not usable.
    """
    config = config_of_ledger(ledger, config_file)
    try:
        with annals_of(config) as (handle, annals):
            address = handle.address
        found = Audit(annals, () if notes is None else acts_in(notes))
        if report is not None:
            from neli_router.status.audit_report import html_of  # noqa: PLC0415 - most audits want none.

            report.write_text(html_of(found, address), encoding="utf-8")
        if table is not None:
            _write_tables(found, table)
    except (NeliError, OSError) as error:
        raise failed(str(error), EXIT_USAGE if isinstance(error, MissingExtra) else EXIT_BROKEN) from None
    view = AuditView.of(address, found)
    if output == "json":
        print_views([view])
    else:
        _print(view, found.verdict)
        for path in filter(None, (report, table)):
            click.echo(f"written: {path}")
    if found.verdict == "broken":
        raise SystemExit(EXIT_BROKEN)


def _write_tables(found: Audit, folder: Path) -> None:
    try:
        from neli_router.status.audit_table import tables_of, write_tables  # noqa: PLC0415 - Delta may not be installed.
    except ModuleNotFoundError as error:
        if error.name not in {"deltalake", "pyarrow"}:
            raise
        raise MissingExtra.of(error.name, "for Delta tables", "spark") from None
    write_tables(tables_of(found), folder)


def config_of_ledger(address: str | None, config_file: str | None) -> Config:
    """The configuration to read the ledger at `address` with; None means the configured ledger."""
    if address is not None and address.startswith("peers:"):
        found = "a ledger was wanted, but peers have none, and write nothing down"
        raise failed(f"{found}: `neli events` and the page of an agent say what it has seen")
    return resolved_or_exit({"ledger": address}, config_file).config


@contextmanager
def annals_of(config: Config) -> Iterator[tuple[Ledger, Annals]]:
    """The ledger, open until the block ends, and the annals of all that it still has. Raises LedgerError."""
    with closing(open_ledger(config.common_ledger, create=False, patience=config.lease)) as handle:
        yield handle, untrimmed(lambda: _annals(handle))


def _annals(ledger: Ledger) -> Annals:
    annals = Annals(one_clock=Promise.MULTI_HOST not in ledger.promises)
    annals.read(_told(ledger))
    return annals


def _told(ledger: Ledger) -> Iterator[Entry]:
    """All entries up to the current tip. Progress is shown if standard error is a terminal."""
    start, tip = patiently(ledger.start), patiently(ledger.tip)
    told_at, terminal = time.monotonic(), sys.stderr.isatty()
    for entry in between(ledger, start, tip):
        yield entry
        if terminal and time.monotonic() >= told_at + TELL_EVERY:
            told_at = time.monotonic()
            part = (entry.offset - start) / max(1, tip - start)
            click.echo(f"\rreading offset {entry.offset:,} of {tip:,} ({part:.0%}) ", nl=False, err=True)
    if terminal:
        click.echo(f"\r{'':60}\r", nl=False, err=True)


def acts_in(folder: Path) -> Iterator[Span]:
    """When members acted, from the notes in `folder`. Raises NeliError."""
    paths = sorted(folder.glob("*.notes"))
    if not paths:
        raise NeliError("a folder of notes was wanted", f"{folder} has no *.notes", "name the folder that has them")
    for path in paths:
        log = SpanLog(path.stem)
        try:
            for note in NoteReader(path).fresh():
                log.hear(note)
        except msgspec.DecodeError:
            raise NeliError(
                "a member's notes were wanted, a line of JSON each",
                f"{path} has another kind of line",
                "name a folder in which all *.notes are notes of members",
            ) from None
        yield from (*log.spans, *log.relapses)


def _print(view: AuditView, verdict: str) -> None:
    click.echo(plain(view.ledger))
    since = f", from {view.began_at}" if view.began_at else ""
    click.echo(
        f"{view.guarantee}, lease {view.lease:g} s, {view.partitions} partitions; {lasting(view.seconds)}{since}"
    )
    as_far = "" if view.noted or verdict == "broken" else ", as far as a ledger can tell"
    word, colour, said = VERDICTS[verdict]
    click.echo(f"\n{click.style(word, fg=colour, bold=True)}  {said}{as_far}\n")
    clock = "one clock" if view.clock_error == 0 else f"several clocks, aligned to ± {lasting(view.clock_error)}"
    void = f", {view.void} void" if view.void else ""
    unreadable = f", {view.unreadable} unreadable" if view.unreadable else ""
    ends = (
        f"{view.joins} joined, {view.leaves} left, {view.certified} certified dead, {view.expired} expired, "
        f"{view.replaced} replaced by a newer one"
    )
    lines = [
        ("records", f"{view.records:,} from {view.first_offset:,} to {view.end_offset:,}{void}{unreadable}; {clock}"),
        ("members", f"{len(view.members)} name{'s' * (len(view.members) != 1)}; {ends}"),
        ("coverage", f"led {view.led:.3%} of the time, owned {view.owned:.3%}; gaps: {_figures(view.gaps)}"),
        ("takeovers", _figures(view.takeovers, view.takeover_error)),
        ("handovers", _figures(view.handovers, view.handover_error)),
        ("moves", f"{view.moves:,} in {view.tenures:,} tenures; {view.planned:,} planned, {view.least:,} the least"),
        ("balance", f"largest share over the fair one: mean {view.balance_mean:.2f}, at most {view.balance_worst:.2f}"),
        ("overlaps", _overlaps(view)),
    ]
    for name, text in lines:
        click.echo(f"{name:<10}  {text}")
    if view.findings:
        click.echo()
        rows = []
        for it in view.findings:
            severity = "look" if it.severity == "warning" else it.severity
            rows.append((severity, it.kind, "" if it.seconds is None else f"{it.seconds:.1f}", it.text))
        print_rows(("finding", "kind", "at s", "what was found"), rows)


def _overlaps(view: AuditView) -> str:
    if view.overlaps is None:
        return "not looked for: only the members' notes say who acted"
    if view.overlap_longest is None:
        return f"none in the notes of {view.noted} processes"
    return f"{view.overlaps} in the notes of {view.noted} processes, the longest {lasting(view.overlap_longest)}"


def _figures(found: Figures | None, error: float | None = None) -> str:
    if found is None:
        return "none"
    doubt = "" if error is None else f" (± {lasting(error)})"
    times = f"median {lasting(found.median)}, p90 {lasting(found.p90)}, longest {lasting(found.longest)}"
    return f"{found.count:,}, {times}{doubt}"
