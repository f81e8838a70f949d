"""Processes of the operating system: who they are, how a whole tree of them ends, and what ends them in time.

It may import only the core.
"""
