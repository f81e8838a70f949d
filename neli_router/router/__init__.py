"""Look-ups of the owner of a key: routers, the table of owners and what fills it, columns of keys, and load profiles.

A look-up takes no lock, waits for nothing and never leaves the process.
It may import config, drivers and protocols.
"""
