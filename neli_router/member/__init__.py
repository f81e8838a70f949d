"""The part that a program joins a group with: members, leases, background tasks, and `witness/`, which reports deaths.

A footing ties the engine to one protocol and its driver; everything else uses the terms of `protocol.py`.
It may import config, drivers, hosts, protocols and router.
"""
