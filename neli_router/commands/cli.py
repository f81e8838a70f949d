"""The command line: parse, make one call, print the result.

    neli --> a command's name --> its module, imported only now --> one call --> a view, as text or JSON

A command is imported only when it is called. Otherwise `neli owner` would take as long to start as all commands
together. The laboratory, if it is there, adds its own commands through a table like ours, which is looked up by name.

The exit codes are in `core/exit_codes.py`; `neli run` adds those of the command that it runs.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import click

from neli_router.core.exit_codes import EXIT_INTERRUPTED

__all__ = ["COMMANDS", "all_commands", "completion_command", "main"]

COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "agent": ("configuration", "agent_command", "Be a member of the group for all programs of this host."),
    "audit": ("audit", "audit_command", "Say what a group did, and whether it kept its promises."),
    "completion": ("cli", "completion_command", "Print the shell's completion of these commands."),
    "config": ("configuration", "config_command", "Show the effective configuration, and where each value comes from."),
    "doctor": ("doctor", "doctor_command", "Check ledger, clocks and lease, and say what to change."),
    "drain": ("wishes", "drain_command", "Let a member own nothing."),
    "events": ("events", "events_command", "Print who joined, left or died, and what moved because of it."),
    "group": ("group", "group_command", "Delete a group that is no longer used."),
    "ledger": ("ledger", "ledger_command", "Look into a ledger, copy it, found its group elsewhere."),
    "load": ("wishes", "load_command", "Let partitions count with the loads that were measured."),
    "members": ("lookups", "members_command", "Print the members of the group."),
    "owner": ("lookups", "owner_command", "Print which member owns each key."),
    "peers": ("lookups", "peers_command", "Print who answers and who leads, in a group without a broker."),
    "pin": ("wishes", "pin_command", "Give a partition to a certain member."),
    "rebalance": ("wishes", "rebalance_command", "Move leaders that are elected among peers."),
    "run": ("run", "run_command", "Run a command only while a role is led here."),
    "table": ("lookups", "table_command", "Print the owner of each partition."),
    "upgrade": ("upgrade", "upgrade_command", "Move the group to this release's newest fold version."),
    "watch": ("lookups", "watch_command", "Print each change of an owner."),
    "weigh": ("wishes", "weigh_command", "Override a member's weight."),
}
"""Name -> its module in this folder, the attribute there, and its help in one line."""

LABORATORY = "neli_router.lab"


@cache
def all_commands() -> Mapping[str, tuple[str, str, str]]:
    """Ours, and the laboratory's if it is there: name -> the full name of the module, then as in COMMANDS."""
    tables = {"neli_router.commands": COMMANDS}
    if find_spec(LABORATORY) is not None:
        tables[f"{LABORATORY}.commands"] = import_module(f"{LABORATORY}.commands").COMMANDS
    named = {
        name: (f"{folder}.{module}", attribute, line)
        for folder, table in tables.items()
        for name, (module, attribute, line) in table.items()
    }
    return dict(sorted(named.items()))


class _Lazy(click.Group):
    """Commands that are imported when they are called; listing them imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(all_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in all_commands():
            return None
        module, attribute, _ = all_commands()[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):  # Click would exit with 1, which says that a promise was broken.
            raise SystemExit(EXIT_INTERRUPTED) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in all_commands() and (near := get_close_matches(args[0], all_commands(), 1)):
            ctx.fail(f"No such command {args[0]!r:.60}: did you mean {near[0]}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in all_commands().items()])


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("neli-router"), prog_name="neli")
def main() -> None:
    """Share work by key among processes, over a ledger that you already have, or without one."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the script that completes `neli` in SHELL.

    \b
    bash: put into ~/.bashrc               eval "$(neli completion bash)"
    zsh:  put into ~/.zshrc                eval "$(neli completion zsh)"
    fish: put into ~/.config/fish/completions/neli.fish what `neli completion fish` prints

    Bash must be 4.4 or newer.
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - no other command needs it.

    kind = get_completion_class(shell)
    assert kind is not None, "click knows all three"
    click.echo(kind(main, {}, "neli", "_NELI_COMPLETE").source())
