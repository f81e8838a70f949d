"""The pipeline on Spark: the show, and the ticks it runs on.

neli pipeline      three hosts' Spark jobs land ticks in one table; one host is killed, and every tick lands once
neli ticks         ticks of a market, into a folder or a topic, for `dags/jobs/publish_prices.py`

Both need packages of the extra `spark`, and the show also those of `agent`; they say so if a package is missing.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import click

from neli_router.core.exit_codes import EXIT_BROKEN, EXIT_USAGE
from neli_router.core.keyspace import PARTITIONS, SLOTS, Layout
from neli_router.errors import MissingExtra, NeliError

__all__ = ["pipeline_command", "ticks_command"]

OURS = "neli_router"


@click.command("pipeline")
@click.option("--ticks", type=int, default=1_000_000, show_default=True, help="How many, in all.")
@click.option("--intervals", type=int, default=40, show_default=True, help="Into how many steps these are cut.")
@click.option("--partitions", type=int, default=24, show_default=True, help="What the hosts share.")
@click.option("--pace", type=float, default=1.0, show_default=True, help="Seconds from one interval to the next.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the market.")
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("neli-pipeline.html"),
    show_default=True,
    help="Where the pictures go.",
)
@click.option("--live/--plain", default=None, help="A live view, or plain lines.  [default: live in a terminal]")
@click.option("--keep", type=click.Path(path_type=Path), help="An empty folder, to keep the table and the logs in.")
def pipeline_command(
    ticks: int,
    intervals: int,
    partitions: int,
    pace: float,
    seed: int,
    report: Path,
    live: bool | None,
    keep: Path | None,
) -> None:
    """Let Spark jobs of three hosts publish prices into one table; kill one host, and count every tick.

    Each host is an agent and a Spark job, run as real processes on this machine, and takes about 1 GB. The command
    needs a clone of the project and the extras `spark` and `agent`; it installs Java if there is none. It takes one to
    three minutes on two cores.

    At the end it prints what was measured and checked, and writes a page of pictures. Exits with 0 only if every check
    held; 1 if one failed; 2 if it cannot run with these options; 130 if it was interrupted.
    """
    with _explained("agent"):
        import_module("neli_router.agent.server.server")  # Each host needs it: fail here, not three times.
    with _explained("spark"):
        from neli_router.lab.pipeline.show import run  # noqa: PLC0415 - it needs packages a user may not have.
    raise SystemExit(
        run(
            ticks=ticks,
            intervals=intervals,
            partitions=partitions,
            pace=pace,
            seed=seed,
            report=report,
            live=live,
            keep=keep,
        )
    )


@click.command("ticks")
@click.argument("place")
@click.option("--ticks", type=click.IntRange(1), default=1_000_000, show_default=True, help="How many, in all.")
@click.option("--intervals", type=click.IntRange(1), default=60, show_default=True, help="Into how many steps.")
@click.option("--instruments", type=click.IntRange(1), default=500, show_default=True, help="Pairs and shares.")
@click.option("--seconds", type=click.FloatRange(0.001), default=60.0, show_default=True, help="Of an interval.")
@click.option(
    "--pace",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Seconds to wait from one interval to the next.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same ticks.")
@click.option("--slots", type=int, default=SLOTS, show_default=True, help="Of the group; for a topic.")
@click.option("--partitions", type=int, default=PARTITIONS, show_default=True, help="Of the group; for a topic.")
def ticks_command(
    place: str,
    ticks: int,
    intervals: int,
    instruments: int,
    seconds: float,
    pace: float,
    seed: int,
    slots: int,
    partitions: int,
) -> None:
    """Make the ticks of a market, and put them into PLACE: a new folder, or kafka://HOST:PORT/TOPIC.

    A topic must exist already. A tick goes to the topic partition given by its instrument's partition in the group,
    modulo the topic's number of partitions.

    \b
    Examples:
      neli ticks ./ticks
      neli ticks --ticks 600000 --pace 1 kafka://localhost:9092/ticks
    """
    with _explained("spark"):
        from neli_router.lab.pipeline.feeds import TickTopic, feed_at  # noqa: PLC0415 - as above.
        from neli_router.lab.pipeline.ticks import Market  # noqa: PLC0415
    try:
        feed = feed_at(place, Layout(slots, partitions))
        if not isinstance(feed, TickTopic) and feed.tip(0, 0):
            click.echo(f"Error: a new folder was wanted, but {place} has intervals already: name another one", err=True)
            raise SystemExit(EXIT_USAGE)
        for interval in Market(seed=seed, instruments=instruments, seconds=seconds).split(ticks, intervals):
            feed.append(interval)
            time.sleep(pace)
    except NeliError as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(EXIT_USAGE if isinstance(error, ValueError) else EXIT_BROKEN) from None
    click.echo(f"{ticks:,} ticks in {intervals} intervals are in {place}")


@contextmanager
def _explained(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == OURS and isinstance(error, ModuleNotFoundError):
            raise  # A defect of ours, which no installation would fix.
        click.echo(f"Error: {MissingExtra.of(package, 'for this command', extra)}", err=True)
        raise SystemExit(EXIT_USAGE) from None
