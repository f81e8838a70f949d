"""The command line: parse, make one call, print the result.

    neli --> a command's name --> its module in `commands/`, imported only now --> one call --> a view, as text or JSON

A command is imported when it is asked for, or `neli owner` would take as long to start as everything else together.

The shell completes our commands by calling `neli` itself with a variable set, at each press of the tabulator. Click
writes the script for that, so it stays right when commands are added.

Exit codes: 0 all is well; 1 a promise was broken or a check failed, and the output shows how; 2 the command line
or the configuration is not usable; 3 there is no owner; 4 no agent answered; 5 it was refused; 130 interrupted. `neli
run` adds the command's own, 69 for a role that was not led in time, 75 for one that was lost, and 126 and 127 for a
command that cannot be started.
"""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version

import click

__all__ = ["COMMANDS", "completion_command", "main"]

COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "agent": ("agent", "agent_command", "Be a member of the group for all programs of this host."),
    "audit": ("audit", "audit_command", "Say what a group did, and whether it kept its promises."),
    "completion": ("", "completion_command", "Print the shell's completion of these commands."),
    "config": ("configuration", "config_command", "Show the effective configuration, and where each value comes from."),
    "demo": ("proofs", "demo_command", "Start real processes that share partitions, and kill one."),
    "doctor": ("doctor", "doctor_command", "Check ledger, clocks and lease, and say what to change."),
    "drain": ("wishes", "drain_command", "Let a member own nothing."),
    "events": ("events", "events_command", "Print who joined, left or died, and what moved because of it."),
    "explore": ("proofs", "explore_command", "Walk every interleaving of a small group."),
    "group": ("group", "group_command", "Delete a group that is no longer used."),
    "load": ("wishes", "load_command", "Let partitions count with the loads that were measured."),
    "members": ("lookups", "members_command", "Print the members of the group."),
    "owner": ("lookups", "owner_command", "Print which member owns each key."),
    "peers": ("peers", "peers_command", "Print who answers and who leads, in a group without a broker."),
    "pin": ("wishes", "pin_command", "Give a partition to a certain member."),
    "pipeline": ("pipeline", "pipeline_command", "Let Spark jobs of three hosts fill one table, and kill one."),
    "rebalance": ("rebalance", "rebalance_command", "Move leaders that are elected among peers."),
    "run": ("run", "run_command", "Run a command only while a role is led here."),
    "simulate": ("proofs", "simulate_command", "Run whole groups under faults in virtual time."),
    "table": ("lookups", "table_command", "Print the owner of each partition."),
    "ticks": ("pipeline", "ticks_command", "Make the ticks of a market, for the pipeline."),
    "undrain": ("wishes", "undrain_command", "Take a drain back."),
    "unpin": ("wishes", "unpin_command", "Take a pin back."),
    "watch": ("lookups", "watch_command", "Print each change of an owner."),
    "weigh": ("wishes", "weigh_command", "Let a member count with another weight."),
}
"""Name -> the module in `commands/` (empty: this one), what it is called there, and what it does in one line."""


class _Lazy(click.Group):
    """Commands that are imported when they are asked for; a list of them imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        home = import_module(f"neli_router.commands.{module}") if module else sys.modules[__name__]
        command = getattr(home, attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and (near := get_close_matches(args[0], COMMANDS, 1)):
            ctx.fail(f"No such command {args[0]!r:.60}: did you mean {near[0]}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


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
