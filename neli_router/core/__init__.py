"""The ground layer: the keyspace (key -> slot -> partition), clocks, exit codes, logs, private files, orderly closing.

Every other package may use it; it uses none of them.
"""
