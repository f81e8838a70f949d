"""When a task is tried again."""

from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import RetryAction

from airflow_provider.exceptions import LeadershipEnding, LeadershipLost, NotLeadingHere
from airflow_provider.retries import LeadershipRetryPolicy
from neli_router.errors import LeaseLost, NeliError, NotLeading
from neli_router.fence import Refused
from tests.provider.conftest import LEASE_OF_ONE

pytestmark = pytest.mark.airflow

PARTS = ("a lease was needed", "it was lost: b leads", "stop")
REFUSED = Refused.of("prices", 7, 9)


def raised(error: BaseException, cause: BaseException) -> BaseException:
    """`error`, raised from `cause`."""
    error.__cause__ = cause
    return error


BEHIND = BaseExceptionGroup("two", [ValueError(), raised(OSError(), LeaseLost(*PARTS))])
RING = RuntimeError()
raised(RING, raised(ValueError(), RING))

RETRIED = (
    f"tried again in {2 * LEASE_OF_ONE:g} s, as a takeover takes at a lease of {LEASE_OF_ONE:g} s: "
    "a lease was needed, but it was lost: b leads"
)


@pytest.mark.parametrize(
    ("action", "error"),
    [
        *((RetryAction.RETRY, kind(*PARTS)) for kind in (LeadershipLost, NotLeadingHere, LeaseLost, NotLeading)),
        (RetryAction.RETRY, raised(RuntimeError("no rows"), BEHIND)),
        (RetryAction.FAIL, REFUSED),
        (RetryAction.FAIL, raised(RuntimeError("the commit failed"), REFUSED)),
        (RetryAction.FAIL, raised(LeadershipLost(*PARTS), REFUSED)),
        (
            RetryAction.FAIL,
            raised(LeadershipLost(*PARTS), raised(LeadershipEnding(), ExceptionGroup("several", [REFUSED]))),
        ),
        *((RetryAction.DEFAULT, other) for other in (RuntimeError("no rows"), NeliError(*PARTS), KeyboardInterrupt())),
        (RetryAction.DEFAULT, RING),
    ],
)
@pytest.mark.usefixtures("neli_default")
def test_a_lost_lease_is_tried_again_after_a_takeover_a_refused_fence_never_and_others_are_left_to_the_task(
    action: RetryAction, error: BaseException
) -> None:
    decision = LeadershipRetryPolicy().evaluate(error, 1, 3)
    said = {RetryAction.RETRY: RETRIED, RetryAction.FAIL: "but term 9 was already", RetryAction.DEFAULT: ""}
    assert (action, True) == (decision.action, said[action] in (decision.reason or ""))
    assert action is not RetryAction.RETRY or timedelta(seconds=2 * LEASE_OF_ONE) == decision.retry_delay


def test_an_agent_that_is_away_leaves_the_usual_lease_and_a_delay_of_its_own_asks_no_agent() -> None:
    for policy, seconds in ((LeadershipRetryPolicy(neli_conn_id="away"), 2), (LeadershipRetryPolicy(delay=30), 30)):
        decision = policy.evaluate(LeadershipLost(*PARTS), 1, 3)
        assert (RetryAction.RETRY, timedelta(seconds=seconds)) == (decision.action, decision.retry_delay)


def test_errors_of_leadership_survive_airflows_serialization() -> None:
    kind, arguments, _ = LeadershipLost(*PARTS).serialize()
    assert ("airflow_provider.exceptions.LeadershipLost", PARTS) == (kind, arguments)
