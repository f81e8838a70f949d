"""A ledger that cannot be reached: nothing waits in silence, and what will not heal is raised immediately."""

import re
import socket
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import KafkaError
from redis.exceptions import ConnectionError as RedisAway
from redis.exceptions import ResponseError

from neli_router.drivers.ledgers.kafka.address import parse as parse_kafka
from neli_router.drivers.ledgers.kafka.clients import explain as explain_kafka
from neli_router.drivers.ledgers.redis.address import parse as parse_redis
from neli_router.drivers.ledgers.redis.link import explain as explain_redis
from neli_router.errors import LedgerUnavailable, LedgerUnusable
from tests.support.waiting import PATIENCE

SOON = 1.5

PROGRAM = f"""
import sys
from neli_router import Config, Member
with Member(Config(sys.argv[1], name="anna"), timeout={SOON}) as member:
    print("never printed")
"""


@pytest.mark.parametrize("address", ["redis://{}/jobs", "kafka://{}/jobs", "postgresql://{}/db?group=jobs"])
@pytest.mark.parametrize("is_silent", [False, True], ids=["closed", "silent"])
def test_a_program_that_configures_no_log_reads_why_it_waits_and_ends_in_error(address: str, is_silent: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ledger = address.format(f"127.0.0.1:{listener.getsockname()[1] if is_silent else 1}")
        command = [sys.executable, "-c", PROGRAM, ledger]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (1, "") == (ended.returncode, ended.stdout)
    first, *others = ended.stderr.splitlines()
    assert first.startswith(f"ledger.unavailable member=anna what=open ledger={ledger} ")
    # Another thread writes the log, so on a busy machine a line of it may come after the error.
    *_, last = (line for line in others if not line.startswith("ledger.unavailable "))
    kind = "neli_router.errors.LedgerUnavailable"
    assert re.match(rf"{kind}: .*{re.escape(ledger)} .*within {SOON:g} s, but .*give wait=True", last)


def test_a_host_that_no_resolver_knows_and_a_database_that_there_is_not_are_final_at_the_opening() -> None:
    redis: Any = parse_redis("redis", "//nobody/jobs?db=99")[0]
    kafka: Any = parse_kafka("//nobody:9092/jobs")[0]
    unknown, later = RedisAway("Name or service not known"), RedisAway("Temporary failure")
    unknown.__context__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    later.__context__ = socket.gaierror(socket.EAI_AGAIN, "Temporary failure")
    resolve = KafkaError(KafkaError._RESOLVE, "Failed to resolve")
    for expected, error in (
        (LedgerUnusable, explain_redis(unknown, redis, "the opening", opening=True)),
        (LedgerUnavailable, explain_redis(unknown, redis, "an append")),
        (LedgerUnavailable, explain_redis(later, redis, "the opening", opening=True)),
        (LedgerUnusable, explain_redis(ResponseError("DB index is out of range"), redis, "the opening")),
        (LedgerUnusable, explain_kafka(resolve, kafka, "the opening", is_known=False)),
        (LedgerUnavailable, explain_kafka(resolve, kafka, "the opening")),
    ):
        assert expected is type(error), error
