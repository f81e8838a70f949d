"""Shared by tests of subscriptions: a miniature pump that takes what comes, and reports what it has.

until(lambda: ..., one, other)   turns both until it is so
"""

import time
from collections.abc import Callable

from neli_router.drivers.consumer_groups.base import BrokerNews, GroupSubscription
from neli_router.errors import NeliError
from neli_router.protocols.consumer_group.events import AskedBack, BrokerBroken, Given, Lost, Message
from tests.support.waiting import PATIENCE

__all__ = ["Taking", "until"]

TURN = 0.02


class Taking:
    """Takes from one subscription. It immediately gives back what is asked back, unless it is `holding`."""

    def __init__(self, subscription: GroupSubscription) -> None:
        self.subscription, self.holding = subscription, False
        self.has: set[int] = set()
        self.news: list[BrokerNews] = []

    def turn(self) -> None:
        self.subscription.wait(TURN)
        for news in self.subscription.take():
            self.news.append(news)
            match news:
                case Given(partitions):
                    assert not self.has & set(partitions), "given twice"
                    self.has |= set(partitions)
                case Lost(partitions):
                    self.has -= set(partitions)
                case AskedBack(partitions):
                    assert self.has >= set(partitions), "asked for what was not given"
                    if not self.holding:
                        self.give_back()
                case _:
                    pass

    def give_back(self) -> None:
        """Everything that was last asked back."""
        asked = self.of(AskedBack)[-1].partitions
        self.has -= set(asked)
        self.subscription.give_back(asked)

    def of(self, kind: type) -> list:  # type: ignore[type-arg]
        return [news for news in self.news if isinstance(news, kind)]

    @property
    def messages(self) -> list[Message]:
        return [message for messages in self.of(list) for message in messages]

    @property
    def error(self) -> NeliError | None:
        """Why the subscription is broken, if it is."""
        broken = self.of(BrokerBroken)
        return broken[0].error if broken else None


def until(holds: Callable[[], object], *members: Taking) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up_at, [member.news[-5:] for member in members]
        for member in members:
            member.turn()
        if not members:
            time.sleep(TURN)  # We wait for another process, which needs the processor.
