"""The ground: the keyspace (key -> slot -> partition), clocks, exit codes, logs, private files, orderly closing.

Every other room may use it, and it uses none of them.
"""
