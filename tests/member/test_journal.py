"""The lines that members write to the log, and where they go."""

import logging

import pytest
import structlog
from structlog.testing import LogCapture

from neli_router import testing
from neli_router.core import logs
from neli_router.core.keyspace import spelled
from neli_router.member.journal import NOTES_MAX, Journal
from neli_router.protocols import protocol


def drained(journal: Journal) -> None:
    journal.lane.end()
    journal.lane.run()


def test_a_program_that_configured_structlog_gets_events_its_way(request: pytest.FixtureRequest) -> None:
    structlog.configure(processors=[captured := LogCapture()])
    request.addfinalizer(structlog.reset_defaults)
    with testing.group("a", partitions=2, lease=1.0) as group:
        group.settle()
        group.cut("a")
        group.advance(2.0)
    assert [
        ("info", "member.joined"),
        ("info", "leader.acquired"),
        ("warning", "ledger.unavailable"),
        ("warning", "ledger.unavailable"),
        ("warning", "leader.fenced"),
    ] == [(event["log_level"], event["event"]) for event in captured.entries]
    fenced = captured.entries[-1]
    told = [fenced[key] for key in ("member", "partitions", "count", "reason")]
    assert ["a", "0-1", 2, "no Beat of this member came back for 1 s"] == told


def test_the_log_has_a_members_life_in_constant_names_and_no_key(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "neli_router"), testing.group("a", partitions=8) as group:
        with group["a"].leading("customer-7"):
            pass
        group["a"].close()
    events = [getattr(record, "event", "") for record in caplog.records]
    assert ["member.joined", "leader.acquired", "leader.revoked", "member.stopped"] == events
    acquired = caplog.records[1]
    assert "leader.acquired member=a partitions=0-7 count=8 term=" == acquired.getMessage()[:53]
    assert "customer-7" not in caplog.text


def test_a_program_that_configured_logging_gets_lines_and_their_parts(caplog: pytest.LogCaptureFixture) -> None:
    logs.logger().bind(member="a").warning("leader.fenced", name="x y", term=7, args=None)
    (record,) = caplog.records
    assert "leader.fenced member=a name='x y' term=7 args=None" == record.getMessage()
    parts = {"member": "a", "name": "x y", "term": 7, "args": None}
    assert ("neli_router", logging.WARNING) == (record.name, record.levelno)
    assert ("leader.fenced", parts) == (vars(record)["event"], vars(record)["fields"])
    caplog.set_level(logging.ERROR, "neli_router")
    logs.logger().warning("leader.fenced")
    assert [record] == caplog.records


def test_notes_beyond_what_may_wait_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal("a", "lane", lambda: None)
    for number in range(NOTES_MAX + 7):
        journal.note("warning", "something.happened", number=number)
    drained(journal)
    assert (NOTES_MAX + 1, "journal.dropped member=a notes=7") == (len(caplog.messages), caplog.messages[1])


def test_what_is_no_news_to_operators_is_not_noted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "neli_router")
    journal = Journal("a", "lane", lambda: None)
    journal.tell(protocol.Stopped(None))
    journal.tell(protocol.Notice("ledger.available", {"ledger": "x"}))
    journal.tell(protocol.Notice("record.skipped", {"offset": 3}))
    drained(journal)
    assert [("INFO", "ledger.available"), ("WARNING", "record.skipped")] == [
        (record.levelname, vars(record)["event"]) for record in caplog.records
    ]


def test_a_log_that_fails_ends_no_journal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ZeroDivisionError

    monkeypatch.setattr(logging.getLogger("neli_router"), "handlers", [Broken()])
    journal = Journal("a", "lane", lambda: None)
    journal.note("warning", "first")
    journal.note("warning", "second")
    drained(journal)
    assert 2 == capsys.readouterr().err.count("Traceback")


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        *(([], ""), ([5], "5"), ([3, 1, 2, 7], "1-3,7"), (range(256), "0-255")),
        (range(0, 100, 2), "0,2,4,6,8,10,12,14,16,18,20,22,..."),
    ],
)
def test_partitions_are_spelled_as_people_write_them(partitions: list[int], expected: str) -> None:
    assert expected == spelled(partitions)
