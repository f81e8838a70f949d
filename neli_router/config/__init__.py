"""One program's settings for its group: flags over environment over `neli.toml`, checked as a whole.

It may import drivers and protocols.
"""
