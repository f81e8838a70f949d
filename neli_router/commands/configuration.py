"""`neli config`: the effective configuration and its sources; and the options that all commands of an agent share.

    with_options       a flag for each option in OPTIONS, and --config
    resolved_or_exit   the layers, resolved; or every problem on standard error, and exit 2

    lease                 0.5        neli.toml line 3
    layout.partitions     64         environment NELI_LAYOUT_PARTITIONS
    agent.token           (hidden)   agent.token_file

Flags are taken as text and parsed together with the other layers, not by click. Click stops at the first mistake, but a
user who sets up an agent wants to see all of them.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Any, TypeVar

import click

from neli_router.commands.conventions import output_option
from neli_router.config.agent_address import default_address
from neli_router.config.config import PROTOCOLS_OWN
from neli_router.config.options import OPTIONS
from neli_router.config.protocols import PROTOCOLS
from neli_router.config.resolve import Resolved, resolve
from neli_router.core.exit_codes import EXIT_USAGE
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError

__all__ = ["Flags", "config_command", "plain", "resolve_here", "resolved_or_exit", "with_options"]

Command = TypeVar("Command", bound=Callable[..., Any])
Flags = Mapping[str, object]
"""Click's names of parameters, such as `layout_partitions`, and their values."""


def _parameter(key: str) -> str:
    return key.replace(".", "_")


def _default(key: str) -> str:
    """The default of an option, for its help."""
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

    def decorate(command: Command) -> Command:
        for key in reversed(keys or tuple(OPTIONS)):
            option = OPTIONS[key]
            is_switch = not option.kind.metavar
            flag = f"{option.flag}/--no-{option.flag[2:]}" if is_switch else option.flag
            meant: dict[str, Any] = {"default": None} if is_switch else {"metavar": option.kind.metavar}
            command = click.option(flag, _parameter(key), help=option.help + _default(key), **meant)(command)
        described = "The file to read.  [default: NELI_CONFIG, ./neli.toml, /etc/neli/neli.toml]"
        return click.option("--config", "config_file", metavar="FILE", help=described)(command)

    return decorate


def resolve_here(flags: Flags, config_file: str | None) -> Resolved:
    """Resolve the layers of this process. Raises ConfigError."""
    told = {key: flags[_parameter(key)] for key in OPTIONS if _parameter(key) in flags}
    environ = dict(os.environ)
    # NELI_AGENT points clients to an agent that may run elsewhere, so an agent itself ignores it.
    socket = default_address({name: text for name, text in environ.items() if name != "NELI_AGENT"})
    return resolve(told, environ, config_file, default_socket=socket)


def resolved_or_exit(flags: Flags, config_file: str | None) -> Resolved:
    """The same, but if there are problems, print each of them and exit with 2."""
    try:
        return resolve_here(flags, config_file)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"Error: {problem}", err=True)
        raise SystemExit(EXIT_USAGE) from None


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
