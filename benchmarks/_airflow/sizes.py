"""How much work the Dags of the benchmark `airflow` do. The Dags and the benchmark both read this."""

__all__ = ["FIRING", "GATES", "HELD_HERE", "ROLE", "WAITED_FOR", "WAITING"]

ROLE = 0
"""This role moves back and forth. All others that sensors wait for are pinned to the other member, and stay."""

WAITED_FOR = range(1, 33)

HELD_HERE = 40
"""Pinned to the agent of the host, for gates."""

WAITING = 100
"""Sensors of one run."""

FIRING = 5
"""More would measure Airflow, which logs two lines for each trigger that fires, a millisecond or two each."""

GATES = 100
"""In one task, each in turn with a call of the same function without a gate."""
