"""SIGHUP: what changes immediately, what waits for a restart, and what a mistake changes."""

from pathlib import Path

import pytest

from neli_router.config.reload import Reloaded, Reloader
from neli_router.config.resolve import Resolved, resolve
from neli_router.errors import ConfigError

FIRST, SECOND = "0123456789abcdef", "fedcba9876543210"


class Site:
    """A file and a token that an operator changes."""

    def __init__(self, folder: Path) -> None:
        self.path, self.token = folder / "neli.toml", folder / "token"
        self.write("")
        self.token.write_text(FIRST, encoding="utf-8")
        self.token.chmod(0o600)

    def write(self, more: str, *, agent: str = "") -> None:
        agent = f'[agent]\ntoken_file = "{self.token}"\n{agent}\n'
        self.path.write_text(f'ledger = "memory://jobs"\n{more}\n{agent}', encoding="utf-8")

    def resolved(self) -> Resolved:
        return resolve({}, {}, str(self.path), places=())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_weight_token_and_the_logs_level_change_at_once(site: Site) -> None:
    reload = Reloader(site.resolved, site.resolved())
    site.write("weight = 5", agent='log_level = "debug"')
    site.token.write_text(SECOND, encoding="utf-8")
    found = reload()
    assert (5, SECOND, "debug") == (found.weight, found.token, found.log_level)
    assert (("agent.log_level", "agent.token", "weight"), ()) == (found.changed, found.waiting)
    assert SECOND not in repr(found)


def test_what_others_rely_on_waits_for_a_restart_and_is_named_each_time(site: Site) -> None:
    reload = Reloader(site.resolved, site.resolved())
    site.write('lease = 9\nname = "other"\nlayout.partitions = 8', agent='socket = "/run/other.sock"')
    assert Reloaded(waiting=("agent.socket", "layout.partitions", "lease", "name")) == reload()
    site.write("weight = 5\nlease = 9")
    assert (("weight",), ("lease",)) == (reload().changed, reload().waiting)
    assert () == reload().changed
    site.write("weight = 6\nleese = 1")  # A mistake changes nothing.
    with pytest.raises(ConfigError, match="leese is not a known option"):
        reload()
    site.write("weight = 6")
    assert ("weight",) == reload().changed


def test_a_borrowed_group_takes_no_other_weight_and_no_member_another_password_for_the_ledger() -> None:
    flags = {"ledger": "kafka://127.0.0.1:1/jobs", "protocol": "neli"}
    made = [resolve({**flags, "weight": weight}, {}, places=()) for weight in ("1", "2")]
    found = Reloader(lambda: made[1], made[0])()
    assert (None, (), ("weight",)) == (found.weight, found.changed, found.waiting)
    made = [resolve({"ledger": f"memory://u:{word}@jobs"}, {}, places=()) for word in ("one", "two")]
    assert ("ledger",) == Reloader(lambda: made[1], made[0])().waiting  # Although it is not shown.
