"""The commands the laboratory adds to `neli`: the demo, the pipeline, the simulator and the explorer.

`neli_router/commands/cli.py` reads this table the same way as its own, and imports a command only when it is used.
"""

from collections.abc import Mapping

__all__ = ["COMMANDS"]

COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "demo": ("proofs", "demo_command", "Start real processes that share partitions, and kill one."),
    "explore": ("proofs", "explore_command", "Walk every interleaving of a small group."),
    "pipeline": ("pipeline", "pipeline_command", "Let Spark jobs of three hosts fill one table, and kill one."),
    "simulate": ("proofs", "simulate_command", "Run whole groups under faults in virtual time."),
    "ticks": ("pipeline", "ticks_command", "Make the ticks of a market, for the pipeline."),
}
"""Name -> the module next to this one, the name of the command there, and a one-line description."""
