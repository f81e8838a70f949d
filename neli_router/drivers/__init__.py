"""What carries the protocols: ledgers, consumer groups, datagrams between peers, and a store of owners.

Each has a port (`base.py`), its implementations, an address grammar, and the pump that turns a machine over it.
It may import protocols.
"""
