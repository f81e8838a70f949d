"""`neli config` and `neli agent`: the configuration is shown, or runs. And the options that more commands share.

    layers --> Config, AgentOptions --> agent.server.run(config, options, reload=...)
                     ^                                            |
                     '------------------ SIGHUP ------------------'

Flags are taken as text and parsed together with the other layers, not by click. Click stops at the first mistake, but a
user who sets up an agent wants to see all of them.

The log of an agent goes to standard error, where systemd and Kubernetes pick it up: lines for people, or JSON for
machines. Each event has a constant name and fields. Keys and tokens never appear in them.
"""

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from datetime import UTC, datetime
from typing import Any

import click

from neli_router.commands.conventions import Command, failed, options, output_option
from neli_router.config.agent_address import default_folder
from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import PROTOCOLS_OWN
from neli_router.config.options import OPTIONS
from neli_router.config.protocols import PROTOCOLS
from neli_router.config.reload import Reloaded, Reloader
from neli_router.config.resolve import Resolved, resolve
from neli_router.core.keyspace import Layout
from neli_router.core.logs import logger
from neli_router.errors import ConfigError, MissingExtra

__all__ = [
    "Flags",
    "agent_command",
    "config_command",
    "log_to_standard_error",
    "plain",
    "resolve_here",
    "resolved_or_exit",
    "with_options",
]

OURS = "neli_router"

Flags = Mapping[str, object]
"""Click's names of parameters, such as `layout_partitions`, and their values."""


def _parameter(key: str) -> str:
    return key.replace(".", "_")


def _default(key: str) -> str:
    option = OPTIONS[key]
    value = option.default
    if option.section == "layout":
        value = getattr(Layout(), option.name)
    if value is PROTOCOLS_OWN:
        value = ", ".join(f"{kind.usual_lease:g} of {name}" for name, kind in PROTOCOLS.items())
    return "" if value in {None, "", MISSING} else f"  [default: {plain(value)}]"


def plain(value: object) -> str:
    """A value as the file or a variable would spell it."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def with_options(*keys: str) -> Callable[[Command], Command]:
    """A flag for each option in `keys`, or for every option; and `--config`."""
    described = "The file to read.  [default: NELI_CONFIG, ./neli.toml, /etc/neli/neli.toml]"
    config = click.option("--config", "config_file", metavar="FILE", help=described)
    return options(config, *map(_flag, keys or OPTIONS))


def _flag(key: str) -> Callable[[Any], Any]:
    option = OPTIONS[key]
    is_switch = not option.kind.metavar
    flag = f"{option.flag}/--no-{option.flag[2:]}" if is_switch else option.flag
    meant: dict[str, Any] = {"default": None} if is_switch else {"metavar": option.kind.metavar}
    return click.option(flag, _parameter(key), help=option.help + _default(key), **meant)


def resolve_here(flags: Flags, config_file: str | None) -> Resolved:
    """Resolve the layers of this process. Raises ConfigError."""
    told = {key: flags[_parameter(key)] for key in OPTIONS if _parameter(key) in flags}
    environ = dict(os.environ)
    return resolve(told, environ, config_file, socket_folder=default_folder(environ))


def resolved_or_exit(flags: Flags, config_file: str | None) -> Resolved:
    """The same, but if there are problems, print each of them and exit with 2."""
    try:
        return resolve_here(flags, config_file)
    except ConfigError as error:
        raise failed(error) from None


@click.command("config")
@with_options()
@output_option
def config_command(config_file: str | None, output: str, **flags: object) -> None:
    """Show each option, its value and where that comes from, as an agent with these flags would have it.

    Flags override the environment (NELI_LEASE=0.5, NELI_LAYOUT_PARTITIONS=64), which overrides the file, which
    overrides the defaults. One file is read: the one that --config or NELI_CONFIG names, else ./neli.toml, else
    /etc/neli/neli.toml. Secrets are hidden.

    Exits with 2 if the configuration is not usable, and then prints every problem of every layer.
    """
    resolved = resolved_or_exit(flags, config_file)
    if output == "json":
        options = {one.name: {"value": one.value, "source": one.source} for one in resolved.settings}
        click.echo(json.dumps({"file": resolved.path or None, "options": options}, indent=2))
        return
    rows = [(one.name, plain(one.value), one.source) for one in resolved.settings]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, source in rows:
        click.echo(f"{name:{widths[0]}}  {value:{widths[1]}}  {source}")


@click.command("agent")
@with_options()
def agent_command(config_file: str | None, **flags: object) -> None:
    """Be this host's member of the group, and answer programs that do not live long enough to join.

    Serves HTTP on a Unix socket that only its user can open, and on --listen if that is given. SIGTERM hands everything
    over, leaves the group and exits. SIGHUP rereads the configuration: the weight, the token and the log level change
    immediately, and the log names each option that needs a restart.

    With --protocol neli or fast-neli, the group is a consumer group of Kafka. A member of it knows only what it leads
    itself. Its agent learns the rest from the store at --ownership, where all members record what they lead. Such a
    group has no wishes: `neli drain`, pin, weigh and load are refused.

    With --protocol term or gossip, and --peers a:7801,b:7801,c:7801, the members elect leaders among themselves.
    Without --ownership the agent gives leases, and shows peers and leaders as its own member sees them. It also answers
    look-ups from that view: the answers are good enough to route by, and marked as believed.

    Every option can be set here, in the environment (NELI_LEASE=0.5) or in a file. `neli config` shows which values are
    in effect and where they come from; `neli doctor` checks whether they will work.

    Exits with 0 after SIGTERM or SIGINT; 2 if the configuration is not usable; 5 if it was refused: another agent has
    the socket, the ledger cannot be used, or the group is another's.
    """
    resolved = resolved_or_exit(flags, config_file)
    if resolved.config.ledger.startswith("memory:"):
        what = (
            f"{resolved.config.public_ledger} is within one process, so no other member could join this agent's group"
        )
        raise failed(f"{what}: name a ledger that others can open, such as --ledger sqlite:///var/lib/jobs/ledger.db")
    try:
        from neli_router.agent.server import server  # noqa: PLC0415 - it needs packages that a user may not have.
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == OURS:
            raise  # A defect of ours: installing packages would not fix it.
        raise failed(MissingExtra.of(package, "for an agent", "agent")) from None
    agent = resolved.agent
    log_to_standard_error(agent)
    reload = Reloader(lambda: resolve_here(flags, config_file), resolved)

    def read_again() -> Reloaded:
        found = reload()
        if found.waiting:
            logger().warning("agent.restart_wanted", options=",".join(found.waiting))
        return found

    raise SystemExit(server.run(resolved.config, agent, reload=read_again))


def log_to_standard_error(options: AgentOptions) -> None:
    """From now on, log our events, and the warnings of other libraries, as `options` say."""
    handler = logging.StreamHandler(sys.stderr)
    for_people = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.setFormatter(_Json() if options.log_format == "json" else for_people)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(OURS).setLevel(options.log_level.upper())


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        line = {
            **fields,
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
