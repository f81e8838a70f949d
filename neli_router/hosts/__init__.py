"""Processes of the operating system: how they are identified, how a whole tree of them ends, and what ends it in time.

It may import only the core.
"""
