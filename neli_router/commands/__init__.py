"""The command `neli`: one module a command, or a few that are alike. `cli.py` has the table that finds them.

It may import agent, config, drivers, hosts, member, protocols, router and status.
"""
