"""A rolling upgrade of real processes from the older release and back keeps every promise.

`python -m benchmarks upgrade` does the same for longer. A clone without the older release's commit fails here.
"""

import pytest

from benchmarks import upgrade
from neli_router.protocols.induction.fold import FOLD_VERSIONS
from tests.support.draws import SEED, say


@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_group_is_upgraded_and_goes_back_while_members_are_killed_and_no_promise_breaks() -> None:
    say(f"repeat with NELI_TEST_SEED={SEED}")
    figures = upgrade.run(upgrade.Options(kills=1, rest=0.1, seed=SEED))
    say(str(figures))
    kept = {"overlaps": 0, "ended": 0, "unequal_digests": 0, "old_refused": True, "members": 8, "partitions": 256}
    assert kept == {name: figures[name] for name in kept}
    for count in ("joins_old", "joins_new", "digests", "handovers", "takeovers", "kills", "held_back"):
        assert int(figures[count] or 0) > 0, count


def test_the_older_release_is_the_one_before_the_newest_version() -> None:
    """A later version needs a later older release here."""
    assert upgrade.NEW == FOLD_VERSIONS
    assert upgrade.OLD[1] == FOLD_VERSIONS[1] - 1


def test_a_clone_without_the_older_release_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "OLDER", "0" * 40)
    with pytest.raises(RuntimeError, match="fetch the whole history, by `git fetch --unshallow`"):
        upgrade.older_release(upgrade.ROOT)
