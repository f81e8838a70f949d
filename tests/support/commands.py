"""`neli`, run in the test's own process."""

from click.testing import CliRunner, Result

from neli_router.commands.cli import main

__all__ = ["neli"]


def neli(*words: str, given: str | bytes | None = None, **environment: str | None) -> Result:
    """Run it with these words, and with `given` on standard input. A variable that is None is left unset."""
    return CliRunner().invoke(main, words, input=given, env=environment, prog_name="neli", catch_exceptions=False)
