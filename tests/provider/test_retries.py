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


@pytest.mark.parametrize(
    "error",
    [
        *(kind(*PARTS) for kind in (LeadershipLost, NotLeadingHere, LeaseLost, NotLeading)),
        raised(RuntimeError("no rows"), BEHIND),
    ],
)
@pytest.mark.usefixtures("neli_default")
def test_a_lost_lease_is_retried_after_as_long_as_a_takeover_takes(error: BaseException) -> None:
    decision = LeadershipRetryPolicy().evaluate(error, 1, 3)
    assert (RetryAction.RETRY, timedelta(seconds=2 * LEASE_OF_ONE)) == (decision.action, decision.retry_delay)
    assert decision.reason is not None
    assert (
        f"tried again in {2 * LEASE_OF_ONE:g} s, as a takeover takes at a lease of {LEASE_OF_ONE:g} s: "
        in decision.reason
    )
    assert "it was lost: b leads" in decision.reason


def test_an_agent_that_is_away_leaves_the_usual_lease_and_a_delay_of_its_own_asks_no_agent() -> None:
    for policy, seconds in ((LeadershipRetryPolicy(neli_conn_id="away"), 2), (LeadershipRetryPolicy(delay=30), 30)):
        decision = policy.evaluate(LeadershipLost(*PARTS), 1, 3)
        assert (RetryAction.RETRY, timedelta(seconds=seconds)) == (decision.action, decision.retry_delay)


@pytest.mark.parametrize(
    "error",
    [
        REFUSED,
        raised(RuntimeError("the commit failed"), REFUSED),
        raised(LeadershipLost(*PARTS), REFUSED),
        raised(LeadershipLost(*PARTS), raised(LeadershipEnding(), ExceptionGroup("several", [REFUSED]))),
    ],
    ids=["alone", "as a cause", "after a loss", "in a group"],
)
def test_a_refused_fence_fails_at_once_and_names_the_newer_term(error: BaseException) -> None:
    decision = LeadershipRetryPolicy().evaluate(error, 1, 3)
    assert RetryAction.FAIL is decision.action
    assert decision.reason is not None
    assert "but term 9 was already" in decision.reason


ring = RuntimeError()
raised(ring, raised(ValueError(), ring))


@pytest.mark.parametrize("error", [RuntimeError("no rows"), NeliError(*PARTS), KeyboardInterrupt(), ring])
def test_any_other_error_is_left_to_the_task_also_one_whose_causes_form_a_ring(error: BaseException) -> None:
    assert RetryAction.DEFAULT is LeadershipRetryPolicy().evaluate(error, 1, 3).action


def test_errors_of_leadership_survive_airflows_serialization() -> None:
    kind, arguments, _ = LeadershipLost(*PARTS).serialize()
    assert ("airflow_provider.exceptions.LeadershipLost", PARTS) == (kind, arguments)
