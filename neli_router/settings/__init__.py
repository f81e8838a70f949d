"""Layered configuration: what flags, the environment and one file say, as one whole with the source of each value.

    neli agent --lease 0.5     NELI_LEDGER=sqlite:...     neli.toml
            '----------------------'----------------------'--> resolve() --> Resolved: Config, AgentOptions, settings

A program that builds its own `Config` needs none of this: a library does not read its host's environment behind its
user's back. The commands do.
"""

from neli_router.settings.options import OPTIONS
from neli_router.settings.resolve import AgentOptions, Resolved, Setting, resolve

__all__ = ["OPTIONS", "AgentOptions", "Resolved", "Setting", "resolve"]
