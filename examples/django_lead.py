"""Django: a command that runs on every host, and does its work only on the leader.

    cp django_lead.py shop/management/commands/lead.py
    python manage.py lead

It is a process of its own, next to the web server: a member that is opened in `AppConfig.ready` would also be opened by
`migrate`, by the reloader of `runserver`, and by `gunicorn --preload` before it forks.
"""

from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import close_old_connections

from neli_router import Config, Lease, Member, run
from neli_router.errors import LeaseLost

EVERY = 60.0


def report(lease: Lease) -> None:
    lease.check()  # At each step, because another process may have taken over. A write carries `lease.term`.
    print("report under term", lease.term)


class Command(BaseCommand):
    help = "Send reports, on whichever host leads."

    def handle(self, *arguments: Any, **options: Any) -> None:
        run(self.lead)

    def lead(self) -> None:
        with Member(Config(settings.NELI_LEDGER, lease=settings.NELI_LEASE)) as member:
            while True:
                with suppress(LeaseLost), member.leading("reports") as lease:
                    while not lease.revoked:
                        close_old_connections()  # As Django does for each request.
                        report(lease)
                        lease.revoked.wait(EVERY)
