"""The command line: parse, make one call, print what came of it.

    neli --> a command's name --> its module in `commands/`, imported only now --> one call --> a view, as text or JSON

A command is imported when it is asked for, or `neli owner` would take as long to start as everything else together.

Exit codes: 0 all is well; 1 a promise was broken or a check failed, and what was printed shows how; 2 the command line
or the configuration is not usable; 3 nobody owns it; 4 no agent answered; 5 it was refused; 130 interrupted. `neli run`
adds the command's own, 75 for a role that was lost, and 126 and 127 for a command that cannot be started.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version

import click

__all__ = ["COMMANDS", "main"]

COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "agent": ("agent", "agent_command", "Be a member of the group for all programs of this host."),
    "completion": ("completion", "completion_command", "Print the shell's completion of these commands."),
    "config": ("configuration", "config_command", "Show the effective configuration, and where each value comes from."),
    "demo": ("proofs", "demo_command", "Start real processes that share partitions, and kill one."),
    "doctor": ("doctor", "doctor_command", "Check ledger, clocks and lease, and say what to change."),
    "drain": ("wishes", "drain_command", "Let a member own nothing."),
    "explore": ("proofs", "explore_command", "Walk every interleaving of a small group."),
    "group": ("group", "group_command", "Delete a group that nobody uses."),
    "members": ("lookups", "members_command", "Print who is in the group."),
    "owner": ("lookups", "owner_command", "Print which member owns each key."),
    "pin": ("wishes", "pin_command", "Give a partition to a certain member."),
    "run": ("run", "run_command", "Run a command only while a role is led here."),
    "simulate": ("proofs", "simulate_command", "Run whole groups under faults in virtual time."),
    "table": ("lookups", "table_command", "Print who owns each partition."),
    "undrain": ("wishes", "undrain_command", "Take a drain back."),
    "unpin": ("wishes", "unpin_command", "Take a pin back."),
    "watch": ("lookups", "watch_command", "Print each change of an owner."),
    "weigh": ("wishes", "weigh_command", "Let a member count with another weight."),
}
"""Name -> the module in `commands/`, what it is called there, and what it does in one line."""


class _Lazy(click.Group):
    """Commands that are imported when they are asked for; a list of them imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(import_module(f"neli_router.commands.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("neli-router"), prog_name="neli")
def main() -> None:
    """Share work by key among processes, over a ledger that you already have."""
