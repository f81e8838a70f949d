"""docs/spark.md and the tutorial of Spark: their Python blocks are executed in the session that all tests share."""

from pathlib import Path
from typing import Any

import pytest

from neli_router import Config, Layout, Member
from neli_router.config.agent_options import AgentOptions
from neli_router.errors import ConfigError
from tests.support.agents.running import configured, running
from tests.support.servers.spark import begun
from tests.support.waiting import until
from tests.test_docs import blocks

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"ledger": f"sqlite:{tmp_path}/ledger.db"}
    query = ""
    # Leases that survive a busy machine: Spark is slow to start, and members must not be lost.
    config = Config(names["ledger"], name="anna", layout=Layout(partitions=4), lease=15.0)
    with Member(config) as member, member.leading("x"):
        for block in blocks("docs/spark.md", "python"):
            exec(block, names)  # noqa: S102
            query = block if "writeStream" in block else query

        def begin() -> None:
            until(lambda: names["owners"].exception() or names["spark"].table("owners").count() >= 4)
            if error := names["owners"].exception():
                exec(query, names)  # noqa: S102 - as the page says.
                raise error

        begun(begin)
        names["owners"].stop()
    assert 1000 == names["count"]
    assert [("ACME", 15.5)] == [(row.instrument, row.price) for row in names["tasks"].collect()]
    assert (["XS0001"], 0) == ([row.instrument for row in names["mine"].collect()], names["before"].count())
    assert [("ACME", 15.5), ("GLOBEX", 1.2)] == [(row["key"], row["load"]) for row in names["hot"]]
    assert ["anna"] == [row.member for row in names["beats"].where("member is not null").collect()]
    owners = names["spark"].table("owners").orderBy("partition").collect()
    assert [(partition, "anna") for partition in range(4)] == [row[:2] for row in owners]
    # A different group from that of the blocks, so in a different folder.
    host = tmp_path / "host"
    host.mkdir()
    socket = str(host / "agent.sock")
    monkeypatch.setenv("NELI_AGENT", socket)
    with running(configured(host, lease=15.0), AgentOptions(socket=socket)):
        names["job"]()


def test_a_job_of_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: a function that drops the column `partition`, and a row without a key."""
    monkeypatch.setenv("NELI_AGENT", socket := str(tmp_path / "agent.sock"))
    orders, job, *queries = blocks("docs/tutorials/spark.md", "python")
    written, names, asked = dict[str, Any](), dict[str, Any](__name__="totals"), dict[str, Any]()
    with running(configured(tmp_path, layout=Layout(partitions=4), lease=15.0), AgentOptions(socket=socket)):
        exec(orders.replace("range(20)", "range(3)").replace("range(200)", "range(9)"), written)  # noqa: S102
        exec(job, names)  # noqa: S102
        steps, totals = names["ParquetSteps"]("shop/orders", key="customer"), names["totals"]
        with pytest.raises(ConfigError, match="must keep the column 'partition'"):
            names["StepLoop"](steps, lambda rows: totals(rows).drop("partition"), "shop/totals").run("now")
        assert names["job"].run(until=3)
        at = written["pa"].nulls(2, written["pa"].timestamp("us", "UTC"))
        written["orders"].append(written["pa"].table({"customer": ["customer-1", None], "at": at, "amount": [1, 2]}))
        with pytest.raises(Exception, match="a row of the input has no key"):
            names["job"].run(until=4)
        for query in queries:
            exec(query, asked)  # noqa: S102
    assert 3000 == sum(row["orders"] for row in asked["whole"].collect())
    assert [75] == [row["amount"] for row in asked["newest"].collect()]
