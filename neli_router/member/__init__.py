"""What a program joins with: members, leases, background tasks, and `witness/`, which reports a member's death.

A footing ties the engine to one protocol and its driver; everything else speaks `protocol.py`.
It may import config, drivers, hosts, protocols and router.
"""
