"""The command `neli`: one module for each command, or for a few similar ones. `cli.py` has the table that finds them.

It may import agent, config, drivers, fence, hosts, member, protocols, router and status.
"""
