"""How much the Dags of the benchmark `airflow` do: for the Dags, and for the benchmark that waits for them."""

__all__ = ["FIRING", "GATES", "HELD_HERE", "ROLE", "WAITED_FOR", "WAITING"]

ROLE = 0
"""Goes to and fro. All others that sensors wait for are pinned to the other member, and stay."""

WAITED_FOR = range(1, 33)

HELD_HERE = 40
"""Pinned to the agent of the host, for gates."""

WAITING = 100
"""Sensors of one run."""

FIRING = 5
"""More would measure Airflow, which writes two lines of log for each trigger that fires, a millisecond or two each."""

GATES = 100
"""In one task, each beside a call of the same function without a gate."""
