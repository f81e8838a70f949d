"""A group's state and past, for people: its history, its audit, the status page, and the notes of real processes.

It may import drivers and protocols.
"""
