"""`neli agent`: reads the configuration, sets up the log, and runs the agent's server until it ends.

    layers --> Config, AgentOptions --> agent.server.run(config, options, reload=...)
                     ^                                            |
                     '------------------ SIGHUP ------------------'

The server needs packages that a routing-only program does not need. The extra `agent` installs them. If they are
missing, the error says how to install them.

The log goes to standard error, where systemd and Kubernetes pick it up: lines for people, or JSON for machines. Each
event has a constant name and fields. Keys and tokens never appear in them.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import click

from neli_router.commands.configuration import resolve_here, resolved_or_exit, with_options
from neli_router.config.agent_options import AgentOptions
from neli_router.config.reload import Reloaded, Reloader
from neli_router.core.exit_codes import EXIT_USAGE
from neli_router.core.logs import logger
from neli_router.errors import MissingExtra

__all__ = ["agent_command", "log_to_standard_error"]

OURS = "neli_router"


@click.command("agent")
@with_options()
def agent_command(config_file: str | None, **flags: object) -> None:
    """Be this host's member of the group, and answer programs that do not live long enough to join.

    Serves HTTP on a Unix socket that only its user can open, and on --listen if that is given. SIGTERM hands everything
    over, leaves the group and exits. SIGHUP rereads the configuration: the weight, the token and the log level change
    immediately, and the log names each option that needs a restart.

    With --protocol neli or fast-neli, the group is a consumer group of Kafka. A member of it knows only what it leads
    itself. Its agent learns the rest from the Redis of --ownership, where all members record what they lead. Such a
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
    try:
        from neli_router.agent.server import server  # noqa: PLC0415 - it needs packages that a user may not have.
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == OURS:
            raise  # A defect of ours: installing packages would not fix it.
        click.echo(f"Error: {MissingExtra.of(package, 'for an agent', 'agent')}", err=True)
        raise SystemExit(EXIT_USAGE) from None
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
    handler.setFormatter(_Json() if options.log_format == "json" else _Console())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(OURS).setLevel(options.log_level.upper())


class _Console(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")


class _Json(logging.Formatter):
    """One object on each line."""

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
