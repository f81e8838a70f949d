"""`neli doctor`: will an agent work here, and if not, what to change?

    configuration --> place, space --> ledger --> promises, group, name, expiry, digests, version
                  --> group, owners --> name                                 of a borrowed consumer group
                  --> clock, trips --> lease
                  --> agent (its socket) --> witness
                  --> port
                  --> each fenced table that is named

A check says what it found and what to do about it. It is `fine`; a `warning`, which is good to know; `failed`, which
keeps a member from working or its promises from holding; or `skipped`, if something that it needs is missing.

The doctor only looks. It opens and reads the real ledger, but appends nothing to it and creates none. It measures the
cost of an append in a scratch file next to the ledger, or queries the server for a lower bound (`measurements`). It
asks the agent to witness a member that never joins, and the agent forgets that member again. It binds the port for a
moment, and only if no program answers there. An agent gets a few seconds to answer.
"""

import http.client
import json
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, Literal
from urllib.parse import quote

import click
import msgspec

from neli_router.agent.server.sockets import listen_tcp
from neli_router.agent.wire import GROUP, PeersView
from neli_router.commands.configuration import resolve_here, with_options
from neli_router.commands.conventions import output_option
from neli_router.commands.lookups import unled, why_of
from neli_router.commands.measurements import (
    Diagnosis,
    Trips,
    judge_clock,
    judge_digests,
    judge_expiry,
    judge_lease,
    judge_space,
    judge_version,
    measure_asks,
    measure_host,
    measure_trips,
    timed,
)
from neli_router.config.agent_address import Address, distrust, parse_place
from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.config.options import in_shell
from neli_router.config.protocols import BORROWED, ELECTED
from neli_router.config.resolve import DEFAULT, Resolved
from neli_router.core.exit_codes import EXIT_BROKEN
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.sqlite.file import file_system, refuse_unusable_place
from neli_router.drivers.open import look_at_group, open_ledger, owners_at
from neli_router.drivers.peers import udp
from neli_router.drivers.peers.outlook import WHY, answering, too_few
from neli_router.errors import BeyondProtocol, ConfigError, LedgerError, LedgerMissing, NeliError, PeersUnusable
from neli_router.member.witness.base import OwnLife
from neli_router.member.witness.registration import Registration
from neli_router.protocols.protocol import BEATS_PER_LEASE, Notice
from neli_router.status.inspection import Inspection

__all__ = ["doctor_command", "examine"]

ANSWER_MAX = 2.0
"""Seconds for an agent to answer. A slower agent would be useless to its clients, too."""

BODY_MAX = 4 * 2**20
"""Bytes to read of an answer: the status of a large group is a few hundred kilobytes."""

IDLE_LONG = 300.0
"""Seconds without a client of its leases after which an agent's partitions seem to be forgotten."""

HEAR_BEATS = 3
HEAR_MAX = 10.0
"""How many Beats, and at most how many seconds, to listen for a member of our name."""

FOREIGN_MAX = 10
"""Commits of other programs to print: a job that appends every minute would fill the screen."""

_UNMEASURED = Diagnosis("trips", "skipped", "no ledger here to query or to measure next to")

MARKS = {"fine": "ok", "warning": "WARN", "failed": "FAIL", "skipped": "--"}


@click.command("doctor")
@with_options()
@click.option("--table", "tables", multiple=True, metavar="PATH", help="Also check this fenced Delta table.")
@output_option
def doctor_command(config_file: str | None, output: str, tables: tuple[str, ...], **flags: object) -> None:
    """Check configuration, ledger, disk, clocks, lease, name, socket and port, and say what to change.

    Takes about three seconds. Reads the ledger and appends nothing to it. Measures how long an append takes on a
    temporary scratch file in the same folder; a server is queried instead.

    In a group without a broker it checks the names of the peers, this member's place, key and votes. If the agent of
    this member answers, it says which peers the agent hears, and whether the member is drained; otherwise, whether the
    port is free.

    A fenced table must have the group's layout. Commits of other programs that changed its rows are listed.

    Exits with 0 if all is fine or there are only warnings; 1 if a check failed.
    """
    try:
        resolved = resolve_here(flags, config_file)
        findings = [*examine(resolved), *(_table(resolved.config, path) for path in tables)]
    except ConfigError as error:
        remedy = "correct each; `neli config` shows what holds and where it comes from"
        findings = [Diagnosis("configuration", "failed", "\n".join(error.problems), remedy)]
    if output == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            _print(finding)
    if any(finding.verdict == "failed" for finding in findings):
        raise SystemExit(EXIT_BROKEN)


def examine(resolved: Resolved) -> list[Diagnosis]:
    """Every check, in the order in which they are printed."""
    config = resolved.config
    defaults = sum(one.source == DEFAULT for one in resolved.settings)
    from_file = f", {resolved.path}" if resolved.path else ""
    findings = [Diagnosis("configuration", "fine", f"no problems; {defaults} options by default{from_file}")]
    kind, _, rest = config.ledger.partition(":")
    trips: Trips | Diagnosis = _UNMEASURED
    if config.protocol_name in ELECTED:
        findings += [*_peers(config), *_owners(resolved)]
    elif not config.has_ledger:
        findings += [_consumer_group(config), *_messages(config), *_owners(resolved)]
    elif kind == "sqlite":
        path = Path(rest.removeprefix("//")).absolute()
        place = _place(path)
        findings.append(place)
        if place.verdict != "failed":
            findings += [judge_space(path.parent), *_ledger(resolved, ask=False)[0]]
            trips = _beside(path.parent)
    elif kind == "memory":
        found = "a ledger in memory ends with its process, and no other process sees it"
        findings.append(Diagnosis("place", "warning", found, "name a file, such as sqlite:///var/lib/jobs/ledger.db"))
    else:
        there, trips = _ledger(resolved, ask=True)
        findings += there
    return [*findings, *_host(config, trips), *_agent(config, resolved.agent)]


def _failed(name: str, error: NeliError) -> Diagnosis:
    """The check `name`, which ended with `error`. Its first part names the server, the file or the folder."""
    return Diagnosis(name, "failed", f"{error.wanted}, but {error.found}", error.remedy)


def _place(path: Path) -> Diagnosis:
    try:
        refuse_unusable_place(path, create=True)
    except LedgerError as error:
        return Diagnosis("place", "failed", error.found, error.remedy)
    system = file_system(path.parent.stat().st_dev) or "a file system of unknown kind"
    return Diagnosis("place", "fine", f"{path} is writable, on {system}")


def _peers(config: Config) -> list[Diagnosis]:
    """The checks of a group without a broker: the list of peers, and this member's place, key and folder."""
    address = config.peers
    unknown = [peer for peer in address.peers if not _resolves(peer)]
    if unknown:
        remedy = "correct the name, or add it to the name server or /etc/hosts: it is asked for again and again"
        found = [Diagnosis("peers", "failed", f"no address is known for {', '.join(unknown)}", remedy)]
    else:
        found = [Diagnosis("peers", "fine", f"{len(address.peers)} peers, and an address is known for each")]
    try:
        settings = config.peer_settings(udp.my_place(address))
    except ConfigError as error:
        return [*found, Diagnosis("place", "failed", "; ".join(error.problems), "say --me HOST:PORT")]
    found.append(Diagnosis("place", "fine", f"this member is {settings.peers[settings.me]}"))
    for doubt in settings.doubts:
        costs, _, remedy = doubt.partition(": ")
        found.append(Diagnosis("majority", "warning", costs, remedy))
    if not address.key_file:
        remedy = "name a file with --key-file; `openssl rand -hex 32` makes one"
        found.append(Diagnosis("key", "warning", "no key is named: every user of this host can make leaders", remedy))
    else:
        try:
            udp.read_key(config.peers)
            found.append(Diagnosis("key", "fine", f"{address.key_file} can be read, and by no other user"))
        except ConfigError as error:
            remedy = "all peers need the same key, in a file of their user"
            found.append(Diagnosis("key", "failed", "; ".join(error.problems), remedy))
    return [*found, _votes(config)]


def _votes(config: Config) -> Diagnosis:
    try:
        folder = udp.look_at_votes(config.peers, mark=config.peers_mark)
    except NeliError as error:
        return _failed("state", error)
    made = next(one for one in (folder, *folder.parents) if one.exists())
    if not (made.is_dir() and os.access(made, os.W_OK | os.X_OK)):
        remedy = "make it, for this member's user: without its votes a member must not stand"
        return Diagnosis("state", "failed", f"{folder} is not a writable folder", remedy)
    return Diagnosis("state", "fine", f"{folder} can be {'written to' if folder == made else 'made'}")


def _ear(config: Config) -> Diagnosis:
    """Whether a member that starts now could listen to its peers."""
    try:
        udp.try_to_listen(config.peers)
    except ConfigError:
        return Diagnosis("listening", "skipped", "it is not known which of the peers this is")
    except PeersUnusable as error:
        return _failed("listening", error)
    return Diagnosis("listening", "fine", "the port of this member is free")


def _resolves(peer: str) -> bool:
    host, _, port = peer.rpartition(":")
    try:
        return bool(socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM))
    except OSError:
        return False


def _consumer_group(config: Config) -> Diagnosis:
    try:
        look = look_at_group(config.group, config.group_settings().session_timeout)
    except LedgerMissing:
        return Diagnosis("group", "fine", "its topic is not there yet; the first member makes it, if it may")
    except NeliError as error:
        return _failed("group", error)
    if (config.protocol_name, config.guarantee, look.broker_times) == ("neli", "exclusive", False):
        remedy = "set message.timestamp.type=LogAppendTime on the topic, or choose guarantee='available'"
        return Diagnosis("group", "failed", f"the topic of {look.address} keeps the writers' times", remedy)
    if look.doubts:
        return Diagnosis("group", "warning", "; ".join(look.doubts), "mend it, or fence every act that matters")
    return Diagnosis("group", "fine", f"the topic of {look.address} has the layout's {look.partitions} partitions")


def _messages(config: Config) -> list[Diagnosis]:
    """How much a borrowed group sends to its topic, and what is unwise about its times."""
    settings = config.group_settings()
    whose = "each member sends" if config.protocol_name == "neli" else "all members together send"
    found = f"{whose} {settings.messages_per_second:.0f} a second, for {settings.layout.partitions} partitions"
    return [Diagnosis("messages", "fine", found), *_advice(settings.advice())]


def _advice(notices: Iterable[Notice]) -> list[Diagnosis]:
    """The advice that a member of a borrowed group logs about its settings."""
    told = [notice.fields for notice in notices]
    return [Diagnosis("advice", "warning", str(each["found"]), str(each["remedy"])) for each in told]


def _owners(resolved: Resolved) -> list[Diagnosis]:
    """The checks of the store in which the members of a borrowed group record what they lead."""
    config = resolved.config
    if config.ownership is None and config.protocol_name in ELECTED:
        found = "an agent names the owners that its member believes in; `Router.from_redis` needs one"
        return [Diagnosis("owners", "fine", f"no store of owners is named: {found}")]
    try:
        with closing(owners_at(config.common_owners).open()) as store:
            said = store.table()
    except BeyondProtocol as error:
        return [Diagnosis("owners", "failed", f"{error.found}: an agent needs one", error.remedy)]
    except NeliError as error:
        return [_failed("owners", error)]
    if said.layout is None:
        return [Diagnosis("owners", "fine", f"{store.address} answers; no member has recorded anything yet")]
    if unequal := said.layout.difference(config.layout):
        found = f"{store.address} holds a group of another layout: {unequal}"
        return [Diagnosis("owners", "failed", found, "name another store")]
    alive = {holder: card.name for holder, (card, expires_ms) in said.holders.items() if expires_ms > said.now_ms}
    held = sum(held.holder in alive for held in (said.holdings or {}).values())
    found = (
        f"{store.address} knows {len(alive)} members that live, and {said.layout.partitions} partitions, "
        f"{said.layout.partitions - held} of them unowned"
    )
    findings = [Diagnosis("owners", "fine", found)]
    if alive and config.protocol_name in BORROWED:
        findings += _advice(config.group_settings().sizing(said.layout.partitions / len(alive)))
    if config.name not in alive.values():
        return [*findings, Diagnosis("name", "fine", f"no member is called {config.name!r}")]
    # Not a failure: a killed member stays alive there for a lease.
    remedy = "choose another --name, or wait until that one is gone: look-ups could not distinguish the two"
    return [*findings, _living_name(config, resolved.agent, "warning", remedy)]


def _agent(config: Config, agent: AgentOptions) -> list[Diagnosis]:
    found = [_socket(agent.socket)] if agent.socket else []
    is_there = bool(found) and found[0].found.startswith("one answers")
    other = _another(config, agent.socket) if is_there else None
    is_ours = is_there and other is None
    found += [] if other is None else [other]
    if config.protocol_name in ELECTED:
        # An agent that answers has the port, and knows better which peers it hears.
        found += _voters(config, agent.socket) if is_ours else [_ear(config)]
    elif found and config.has_ledger and other is None:
        found.append(_witness(config, agent.socket, found[0]))
    found += _use(agent.socket, config) if is_ours else []
    return found if agent.listen is None else [*found, _port(agent.listen)]


def _ledger(resolved: Resolved, *, ask: bool) -> tuple[list[Diagnosis], Trips | Diagnosis]:
    """The checks of the ledger; and how fast it answers, or why that is unknown or, for a file, not asked."""
    config = resolved.config
    try:
        ledger = open_ledger(config.common_ledger, create=False, patience=config.lease)
    except LedgerMissing:
        return [Diagnosis("ledger", "fine", "there is none yet; the first member makes it, if it may")], _UNMEASURED
    except NeliError as error:
        return [_failed("ledger", error)], _UNMEASURED
    try:
        reads, inspection = _reads(ledger), Inspection(ledger)
        name = _name(config, resolved.agent, inspection)
        findings = [reads, _promises(config, ledger), _group(config, inspection), name]
        if inspection.is_founded:
            lease = inspection.lease or config.lease
            findings.append(judge_expiry(lease, inspection.powerless, len(inspection.members)))
            findings.append(judge_digests(inspection.digests))
            if inspection.mismatch(config.settings()) is None:
                findings.append(judge_version(inspection.state))
        return findings, measure_asks(ledger) if ask else _UNMEASURED
    except NeliError as error:
        return [Diagnosis("ledger", "failed", error.found, error.remedy)], _UNMEASURED
    finally:
        ledger.close()


def _promises(config: Config, ledger: Ledger) -> Diagnosis:
    try:
        config.require_promises(ledger)
    except ConfigError as error:
        return Diagnosis("promises", "failed", in_shell("; ".join(error.problems)))
    if ledger.doubts:
        return Diagnosis("promises", "warning", "; ".join(ledger.doubts), "mend it, or fence every act that matters")
    return Diagnosis("promises", "fine", f"it keeps what the guarantee {config.guarantee!r} needs")


def _reads(ledger: Ledger) -> Diagnosis:
    start, tip = ledger.start(), ledger.tip()
    ledger.seek(tip)
    look = f"a look takes {timed(lambda: ledger.read(0.0)).p99 * 1e6:.0f} µs at the p99"
    return Diagnosis("ledger", "fine", f"{ledger.address} retains {tip - start:,} records, from {start} on; {look}")


def _group(config: Config, inspection: Inspection) -> Diagnosis:
    if not inspection.is_founded:
        return Diagnosis("group", "fine", "there is none yet: it will have this configuration's lease and layout")
    if error := inspection.mismatch(config.settings()):
        return Diagnosis("group", "failed", error.found, error.remedy)
    found = (
        f"{len(inspection.members)} members at the last record, {inspection.partitions} partitions, "
        f"{inspection.unowned} of them unowned; layout, lease and guarantee are this configuration's"
    )
    return Diagnosis("group", "fine", found)


def _beside(folder: Path) -> Trips | Diagnosis:
    """How long an append takes in `folder`, or why that is unknown."""
    try:
        return measure_trips(folder)
    except (LedgerError, OSError) as error:
        found = error.found if isinstance(error, LedgerError) else f"no scratch ledger can be made there ({error})"
        return Diagnosis("trips", "failed", found, "give this user write access to the ledger's folder")


def _host(config: Config, trips: Trips | Diagnosis) -> list[Diagnosis]:
    try:
        host = measure_host()
    except NeliError as error:
        return [Diagnosis("clock", "failed", error.found, error.remedy)]
    late = f"a sleep ends {host.overshoot_p50 * 1e3:.2g} ms late, and {host.overshoot_p99 * 1e3:.3g} ms at the p99"
    findings = [judge_clock(host), Diagnosis("scheduling", "fine", late)]
    if config.protocol_name in ELECTED:
        return findings  # Nothing is appended anywhere.
    if isinstance(trips, Diagnosis):
        return [*findings, trips, Diagnosis("lease", "skipped", "how long an append takes is not known")]
    found = f"{trips.what} {trips.p50 * 1e3:.3g} ms, {trips.p99 * 1e3:.3g} ms at the p99 of {trips.count}"
    return [*findings, Diagnosis("trips", "fine", found), judge_lease(config.lease, trips, host)]


def _print(finding: Diagnosis) -> None:
    first, *rest = finding.found.splitlines()
    click.echo(f"{MARKS[finding.verdict]:<5}{finding.name:<14}{first}")
    for line in rest:
        click.echo(f"{'':19}{line}")
    if finding.remedy and finding.verdict in {"warning", "failed"}:
        click.echo(f"{'':19}-> {finding.remedy}")


def _table(config: Config, path: str) -> Diagnosis:
    """Whether the fenced table at `path` is this group's, and whether others have changed its rows."""
    try:
        from neli_router.fence.delta import FencedTable  # noqa: PLC0415 - Delta may not be installed.

        table = FencedTable(path, layout=config.layout)
        files, foreign = len(table.files()), table.foreign()
    except NeliError as error:
        return _failed("table", error)
    if not foreign:
        found = f"{path} has {files} files and the group's layout, and only fenced writers have changed its rows"
        return Diagnosis("table", "fine", found)
    shown = [str(commit) for commit in foreign[-FOREIGN_MAX:]]
    found = f"{path}: {len(foreign)} commits that changed rows came from other programs; the last ones:"
    remedy = "see whether they lost or doubled rows, and let only FencedTable write there: no fence holds them back"
    return Diagnosis("table", "warning", "\n".join([found, *shown]), remedy)


# Other processes at the socket, at the port and under the name


def _socket(path: str) -> Diagnosis:
    """The agent's Unix socket: nothing, an agent, a file, or another user's socket."""
    start = "start one: neli agent"
    try:
        status = os.lstat(path)
    except OSError:
        return Diagnosis("agent", "warning", f"none: there is no socket {path}", start)
    if not stat.S_ISSOCK(status.st_mode):
        return Diagnosis("agent", "failed", f"{path} is not a socket", "name another with --socket, or move it")
    if why := distrust(Address(path=path)):
        remedy = "ask as that user, or name a socket of your own with --socket"
        return Diagnosis("agent", "warning", f"{path} is not to be asked: {why}", remedy)
    try:
        code, said = _ask(path, "/ready")
        if code != http.HTTPStatus.OK:
            code, _ = _ask(path, "/health")
    except (OSError, http.client.HTTPException) as error:
        found = f"none answers at {path} ({type(error).__name__})"
        return Diagnosis("agent", "warning", found, f"{start}; a socket that was left over is replaced")
    if stat.S_IMODE(status.st_mode) & 0o077:
        return Diagnosis(
            "agent", "failed", f"{path} is open to other users", f"chmod 600 {path}, and see who opened it"
        )
    if code != http.HTTPStatus.OK:
        return Diagnosis("agent", "failed", f"one answers at {path}, and says {code} of its health", "look at its log")
    if "kind" in said:
        why = said.get("found", "it does not say why")
        return Diagnosis("agent", "warning", f"one answers at {path}, and is not ready: {why}", f"{said.get('remedy')}")
    return Diagnosis("agent", "fine", f"one answers at {path}")


def _another(config: Config, path: str) -> Diagnosis | None:
    """A failure if the agent at `path` is of another group, or not the configured peer: it is of no use here."""
    elects = config.protocol_name in ELECTED
    code, said = _asked(path, "/v1/peers" if elects else "/health", config.group_name)
    if said.get("kind") == "GroupMismatch":
        found = f"serves another group: {said['found']}, and this configuration is of {config.group_name}"
    elif not elects or code != http.HTTPStatus.OK:
        return None
    else:
        try:
            me = config.peers.peers[udp.my_place(config.peers)]
        except ConfigError:  # Another check reports it.
            return None
        here = next((one.peer for one in msgspec.convert(said, PeersView).peers if one.state == "here"), me)
        if here == me:
            return None
        found = f"is {here}, and not {me}"
    remedy = "name another socket with --socket; or start that agent again, if its configuration was changed"
    return Diagnosis("agent", "failed", f"the agent at {path} {found}", remedy)


def _voters(config: Config, path: str) -> list[Diagnosis]:
    """The peers that the member of the agent at `path` hears, if it elects leaders among peers."""
    code, said = _asked(path, "/v1/peers")
    if code != http.HTTPStatus.OK:
        return []
    view = msgspec.convert(said, PeersView)
    bad = [f"{one.peer} is {one.state}: {why_of(one)}" for one in view.peers if one.state in WHY]
    count = len(view.peers)
    voters = view.voters or count
    if links := _links(config, view):
        bad = [*bad, links]
    # News of the others may come through those that are heard.
    if view.alive < view.majority and (view.unled or not links):
        few = too_few(view.alive, view.majority, voters, count)
        return [Diagnosis("voters", "failed", "\n".join([few, *bad]), "mend what each says")]
    if bad:
        fewer = "the group bears fewer failures now"
        if not any(one.votes for one in view.peers if one.state in WHY):
            fewer = "fewer can take the place of one that dies"
        found = f"{answering(view.alive, voters, count)}: {fewer}"
        return [Diagnosis("voters", "warning", "\n".join([found, *bad]), "mend what each says")]
    if view.unled:
        found = f"{unled(view)} no leader that the agent's member knows of"
        return [Diagnosis("voters", "warning", found, "wait two leases; then the log says why no peer is elected")]
    return [Diagnosis("voters", "fine", f"all {len(view.peers)} peers answer, and there is a leader; term {view.term}")]


def _links(config: Config, view: PeersView) -> str:
    """The lease with which `gossip` leads without gaps, if the member hears only some of its peers itself."""
    settings, links = config.peer_settings(0), sum(one.state == "alive" for one in view.peers)
    if config.protocol_name != "gossip" or not 0 < links < settings.size - 1:
        return ""
    heard = f"{links} of {settings.size - 1} peers are heard; if the others live and their news comes through these"
    least = settings.lease_over(links)
    if settings.lease >= least:
        return f"{heard}, a lease of {settings.lease:g} s is long enough"
    return (
        f"{heard}, a leader leads without gaps only with a lease of {least:.3g} s or more, and it is {settings.lease:g}"
    )


def _use(path: str, config: Config) -> Iterator[Diagnosis]:
    """Whether the member of the agent at `path` was drained, perhaps long ago, or leads without clients."""
    _, status = _asked(path, "/v1/status")
    if shed := status.get("shed"):
        found = f"its member {status['agent']} leads {shed} partitions only while no other peer can"
        yield Diagnosis("drain", "warning", found, f"to give it its share again: neli drain {status['agent']} --undo")
    if (led := status.get("led")) and (idle := status.get("idle", 0.0)) >= IDLE_LONG:
        found = f"its member {status['agent']} leads {led} partitions, and for {idle:.0f} s no client wanted a lease"
        remedy = "start the job here, or stop the agent"
        if config.has_ledger:
            remedy += f"; --idle-after lets it hand over; if it is for look-ups only: neli weigh {status['agent']} 0"
        yield Diagnosis("use", "warning", found, remedy)


def _witness(config: Config, path: str, agent: Diagnosis) -> Diagnosis:
    """Whether the `agent` at `path` reports the deaths of members here."""
    if agent.verdict == "failed" or not agent.found.startswith("one answers"):
        then = "the others wait for the lease of a member that dies"
        if config.ledger.startswith("sqlite:"):
            then = "members on SQLite report each other's deaths"
        return Diagnosis("witness", "skipped", f"without an agent, {then}")
    told: list[Notice] = []
    life = OwnLife.begin(Random(os.urandom(16)))
    asked = Registration(config, "doctor", life, told.append, wanted=True, environment={"NELI_AGENT": path})
    asked.await_answer(ANSWER_MAX)
    name = asked.name
    asked.close()
    if name:
        return Diagnosis("witness", "fine", f"{name} reports the death of a member here: no member waits for its lease")
    why = told[-1].fields["why"] if told else "it took the connection and gave no answer"
    remedy = "correct that, or know that the others wait for the lease of a member that dies here"
    return Diagnosis("witness", "warning", f"the agent reports no deaths of this ledger's members: {why}", remedy)


def _port(listen: str) -> Diagnosis:
    """Whether the port is free for an agent, or an agent already has it."""
    place = parse_place(listen)
    assert place is not None, "the layers let nothing else through"
    host, port = place
    if port == 0:
        return Diagnosis("port", "fine", "any free one is taken")
    silent = ""
    try:
        code, said = _ask((host, port), "/health")
    except ConnectionRefusedError:
        try:
            with listen_tcp(host, port):
                return Diagnosis("port", "fine", f"{listen} is free")
        except NeliError as error:
            return Diagnosis("port", "failed", f"{listen} cannot be had: {error.found}", error.remedy)
    except (OSError, http.client.HTTPException) as error:
        code, said = 0, {}
        if isinstance(error, TimeoutError):
            silent = f", and gave no answer within {ANSWER_MAX:g} s"
    if "alive" in said:
        return Diagnosis("port", "fine", f"an agent answers at {listen}")
    if "kind" in said:
        return Diagnosis(
            "port", "failed", f"an agent answers at {listen}, and says {code} of its health", "see its log"
        )
    remedy = f"stop it (`ss -ltnp 'sport = :{port}'` names it), or choose another port with --listen"
    return Diagnosis("port", "failed", f"another program holds {listen}{silent}", remedy)


def _name(config: Config, agent: AgentOptions, inspection: Inspection) -> Diagnosis:
    """Whether a living member has this name but is not the agent here."""
    name = config.name
    if name not in inspection.members:
        return Diagnosis("name", "fine", f"no member is called {name!r}")
    patience = min(HEAR_MAX, HEAR_BEATS * (inspection.lease or config.lease) / BEATS_PER_LEASE)
    if not inspection.living(patience, name=name):
        return Diagnosis("name", "fine", f"{name!r} was a member, and is not heard of any more")
    remedy = "choose another --name, or stop that one first: the newer ends the older"
    return _living_name(config, agent, "failed", remedy)


def _living_name(config: Config, agent: AgentOptions, verdict: Literal["warning", "failed"], remedy: str) -> Diagnosis:
    """Whether the member of this name, which is alive, is the agent that answers at the socket or at the port."""
    name, group = config.name, config.group_name
    places = (agent.socket, None if agent.listen is None else parse_place(agent.listen))
    if name in [_asked(place, "/v1/status", group)[1].get("agent") for place in places if place is not None]:
        return Diagnosis("name", "fine", f"{name!r} is alive, and is the agent that answers here")
    found = f"a member called {name!r} is alive, and no agent that answers here is it"
    return Diagnosis("name", verdict, found, remedy)


def _asked(place: str | tuple[str, int], what: str, group: str = "") -> tuple[int, dict[str, Any]]:
    """As `_ask`, but 0 and nothing if no agent answers: the check of the socket or of the port says why."""
    try:
        return _ask(place, what, group)
    except (OSError, http.client.HTTPException):
        return 0, {}


def _ask(place: str | tuple[str, int], what: str, group: str = "") -> tuple[int, dict[str, Any]]:
    """The status and the object of the answer of the agent at a socket or a port, which refuses if it is not of the
    `group` that is named. Raises OSError, HTTPException."""
    host, port = ("agent", None) if isinstance(place, str) else place
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_MAX)
    try:
        if isinstance(place, str):
            # The HTTP library has no Unix sockets, but takes a socket that is connected already.
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(ANSWER_MAX)
            connection.sock.connect(place)
        connection.request("GET", what, headers={GROUP: quote(group)} if group else {})
        answer = connection.getresponse()
        try:
            said = json.loads(answer.read(BODY_MAX))
        except ValueError:
            said = None
        return answer.status, said if isinstance(said, dict) else {}
    finally:
        connection.close()
