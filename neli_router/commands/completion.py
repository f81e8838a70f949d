"""Completion: what a shell has to be told so that it can finish our commands and options.

    eval "$(neli completion bash)" --> the shell asks `neli` itself, at each press of the tabulator

Click writes the script; it only calls `neli` with a variable set, so it stays right when commands are added.
"""

import click
from click.shell_completion import get_completion_class

__all__ = ["completion_command"]


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
    from neli_router.cli import main  # noqa: PLC0415 - it imports us, by name.

    kind = get_completion_class(shell)
    assert kind is not None, "click knows all three"
    click.echo(kind(main, {}, "neli", "_NELI_COMPLETE").source())
