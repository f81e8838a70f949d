"""The election protocols, as pure state machines. A program sees all of them through `protocol.py`.

    induction         the default: members fold one ledger        consumer_group    NELI and Fast NELI, over a broker
    term, gossip      elections among peers; `electors` is what both share

It may import only the core.
"""
