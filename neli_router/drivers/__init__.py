"""The drivers that carry the protocols: ledgers, consumer groups, peer-to-peer datagrams, and the owner store.

Each kind has a port (`base.py`), its implementations, an address grammar, and a pump that drives a machine over it.
It may import protocols.
"""
