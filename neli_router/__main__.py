"""`python -m neli_router`: the command `neli`, of this very interpreter.

The `neli` that a shell finds by its path may belong to another environment, or to none.
"""

from neli_router.commands.cli import main

__all__: list[str] = []

main(prog_name="neli")
