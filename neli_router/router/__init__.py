"""What a program asks: who owns a key. Routers, the table of owners and what fills it; columns of keys, and their load.

A look-up takes no lock, waits for nothing and never leaves this room.
It may import config, drivers and protocols.
"""
