"""`neli doctor`: will an agent work here, and if not, what to change?

    configuration --> place, space --> ledger --> promises, group, name   each needs the one before it
                  --> clock, trips --> lease
                  --> agent (its socket), port

A check says what was found and what to do about it. It is `fine`, a `warning`, which is something to know, `failed`,
which keeps a member from working or its promises from holding, or `skipped`, if what it needs was not there.

Everything is looked at as an observer does. The real ledger is opened and read; nothing is appended to it and none is
made. What an append costs is measured in a scratch file beside it, or guessed from below by asking the server (see
`measuring`).
"""

import json
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from neli_router import config as configuration
from neli_router.clock import host_clock
from neli_router.commands.configuration import output_option, resolve_here, with_options
from neli_router.commands.exits import EXIT_BROKEN
from neli_router.commands.group import read_all
from neli_router.commands.measurements import (
    Finding,
    Trips,
    judge_clock,
    judge_lease,
    judge_space,
    measure_asks,
    measure_host,
    measure_trips,
    percentile,
)
from neli_router.commands.neighbours import judge_name, judge_port, judge_socket
from neli_router.config import Config
from neli_router.errors import ConfigError, LedgerError, LedgerMissing, NeliError
from neli_router.induction.admission import mismatch
from neli_router.induction.fold import State
from neli_router.ledgers.base import Ledger
from neli_router.ledgers.sqlite.faults import file_system, refuse_unusable_place
from neli_router.settings import AgentOptions, Resolved

__all__ = ["doctor_command", "examine"]

READS = 100

_UNMEASURED = Finding("trips", "skipped", "there is no ledger here that could be asked or measured beside")

MARKS = {"fine": "ok", "warning": "WARN", "failed": "FAIL", "skipped": "--"}


@click.command("doctor")
@with_options()
@output_option
def doctor_command(config_file: str | None, output: str, **flags: object) -> None:
    """Check configuration, ledger, disk, clocks, lease, name, socket and port, and say what to change.

    Takes some three seconds. Reads the ledger and appends nothing to it. How long an append takes is measured on a
    scratch file in the same folder, which is gone afterwards; a Kafka or a Redis is asked questions instead.

    Exits with 0 if all is fine or there are only warnings; 1 if a check failed.
    """
    try:
        findings = examine(resolve_here(flags, config_file))
    except ConfigError as error:
        remedy = "correct each; `neli config` shows what holds and where it comes from"
        findings = [Finding("configuration", "failed", "\n".join(error.problems), remedy)]
    if output == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            _print(finding)
    if any(finding.verdict == "failed" for finding in findings):
        raise SystemExit(EXIT_BROKEN)


def examine(resolved: Resolved) -> list[Finding]:
    """Every check, in the order in which they are read."""
    config = resolved.config
    told = Counter(one.source.split()[0] for one in resolved.settings)
    from_file = f", {resolved.path}" if resolved.path else ""
    findings = [Finding("configuration", "fine", f"no problems; {told['default']} options by default{from_file}")]
    kind, _, rest = config.ledger.partition(":")
    trips: Trips | Finding = _UNMEASURED
    if kind == "sqlite":
        path = Path(rest.removeprefix("//")).absolute()
        place = _place(path)
        findings.append(place)
        if place.verdict != "failed":
            findings += [judge_space(path.parent), *_ledger(resolved, ask=False)[0]]
            trips = _beside(path.parent)
    elif kind == "memory":
        found = "a ledger in memory ends with its process, and no other process sees it"
        findings.append(Finding("place", "warning", found, "name a file, such as sqlite:///var/lib/jobs/ledger.db"))
    else:
        there, trips = _ledger(resolved, ask=True)
        findings += there
    return [*findings, *_host(config, trips), *_agent(resolved.agent)]


def _place(path: Path) -> Finding:
    try:
        refuse_unusable_place(path, create=True)
    except LedgerError as error:
        return Finding("place", "failed", error.found, error.remedy)
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        system = file_system(path.parent.stat().st_dev, mounts)
    except OSError:  # macOS.
        system = ""
    return Finding("place", "fine", f"{path} is writable, on {system or 'a file system of unknown kind'}")


def _agent(agent: AgentOptions) -> list[Finding]:
    found = [judge_socket(agent.socket)] if agent.socket else []
    return found if agent.listen is None else [*found, judge_port(agent.listen)]


def _ledger(resolved: Resolved, *, ask: bool) -> tuple[list[Finding], Trips | Finding]:
    """What is found in the ledger; and how soon it answers, or why that is not known or, for a file, not asked."""
    config, failed = resolved.config, partial(Finding, "ledger", "failed")
    try:
        ledger = configuration.open(config, create=False)
    except LedgerMissing:
        return [Finding("ledger", "fine", "there is none yet; the first member makes it, if it may")], _UNMEASURED
    except NeliError as error:  # What was wanted says from which server, or of which file.
        return [failed(f"{error.wanted}, but {error.found}", error.remedy)], _UNMEASURED
    try:
        reads, state = _reads(ledger), read_all(ledger)
        name = judge_name(config, resolved.agent, ledger, state)
        findings = [reads, _promises(config, ledger), _group(config, state), name]
        return findings, measure_asks(ledger) if ask else _UNMEASURED
    except NeliError as error:
        return [failed(error.found, error.remedy)], _UNMEASURED
    finally:
        ledger.close()


def _promises(config: Config, ledger: Ledger) -> Finding:
    try:
        configuration.require_promises(config, ledger)
    except ConfigError as error:
        return Finding("promises", "failed", "; ".join(error.problems))
    if ledger.doubts:
        return Finding("promises", "warning", "; ".join(ledger.doubts), "mend it, or fence every act that matters")
    return Finding("promises", "fine", f"it keeps what the guarantee {config.guarantee!r} needs")


def _reads(ledger: Ledger) -> Finding:
    times, start, tip = [], ledger.start(), ledger.tip()
    ledger.seek(tip)
    for _ in range(READS):
        started = host_clock()
        ledger.read(0.0)
        times.append(host_clock() - started)
    look = f"a look takes {percentile(times, 0.99) * 1e6:.0f} µs at the p99"
    return Finding("ledger", "fine", f"{ledger.address} retains {tip - start:,} records, from {start} on; {look}")


def _group(config: Config, state: State) -> Finding:
    if state.genesis is None:
        return Finding("group", "fine", "nobody founded one yet: it will have this configuration's lease and layout")
    if error := mismatch(config.settings(), state):
        return Finding("group", "failed", error.found, error.remedy)
    members, unowned = len(state.seats), sum(1 for owner in state.owners if owner is None)
    found = (
        f"{members} members at the last record, {len(state.owners)} partitions, {unowned} of them unowned; layout, "
        "lease and guarantee are this configuration's"
    )
    return Finding("group", "fine", found)


def _beside(folder: Path) -> Trips | Finding:
    """How long an append takes in `folder`, or why that is not known."""
    try:
        return measure_trips(folder)
    except (LedgerError, OSError) as error:
        found = error.found if isinstance(error, LedgerError) else f"no scratch ledger can be made there ({error})"
        return Finding("trips", "failed", found, "give this user write access to the ledger's folder")


def _host(config: Config, trips: Trips | Finding) -> list[Finding]:
    try:
        host = measure_host()
    except NeliError as error:
        return [Finding("clock", "failed", error.found, error.remedy)]
    late = f"a sleep ends {host.overshoot_p50 * 1e3:.2g} ms late, and {host.overshoot_p99 * 1e3:.3g} ms at the p99"
    findings = [judge_clock(host), Finding("scheduling", "fine", late)]
    if isinstance(trips, Finding):
        return [*findings, trips, Finding("lease", "skipped", "how long an append takes is not known")]
    found = f"{trips.what} {trips.p50 * 1e3:.3g} ms, {trips.p99 * 1e3:.3g} ms at the p99 of {trips.count}"
    return [*findings, Finding("trips", "fine", found), judge_lease(config.lease, trips, host)]


def _print(finding: Finding) -> None:
    first, *rest = finding.found.splitlines()
    click.echo(f"{MARKS[finding.verdict]:<5}{finding.name:<14}{first}")
    for line in rest:
        click.echo(f"{'':19}{line}")
    if finding.remedy and finding.verdict in {"warning", "failed"}:
        click.echo(f"{'':19}-> {finding.remedy}")
