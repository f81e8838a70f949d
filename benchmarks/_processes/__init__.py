"""Real member processes on one ledger, what they note about their acts, and who judges the notes.

    group      starts workers, kills, stops and continues them; each start is a `life` with a file of its own
      |
    worker     a process with a Member: checks its leases again and again, and notes what they allow
      |
    notes      lines in that file, which outlive kill -9
      |
    referee    did two act for one partition at once? did a term go back?      knows nothing of the protocol
    chronicle  reads the ledger along, and says what the protocol makes of it

The benchmark `failover` measures with these, and the process test in `tests/processes` judges by them.
"""
