"""Profile the load: how much work each slot and partition of a group causes, from the rows of a data set.

    rows in Parquet --load_profile--> a profile, a file --neli load--> the group exchanges hot partitions for cold ones

    spark-submit dags/jobs/profile_load.py --rows ROWS --key COLUMN [--weight COLUMN] --save PROFILE

ROWS is a file or a folder of Parquet. Pass the group's layout as options, unless it is the default; `neli load` refuses
a profile for another layout. The profile is written where the driver runs. The hottest slots are printed, and with
`--keys` their keys, too. Keys may be personal data, and are written nowhere else.
"""

import argparse
import sys
from pathlib import Path

from neli_router import Layout
from neli_router.errors import NeliError
from neli_router.spark import hot_keys, load_profile, session

__all__ = ["main", "profile"]


def profile(options: argparse.Namespace) -> None:
    layout = Layout(slots=options.slots, partitions=options.partitions, tags=options.tags)
    with session("profile load", master=options.master) as spark:
        rows = spark.read.parquet(options.rows)
        measured = load_profile(rows, options.key, layout, weight=options.weight)
        measured.save(options.save)
        hottest = measured.hottest(options.hottest)
        lines = [f"{measured.total:g} in all, {measured.total / layout.slots:g} a slot in the mean"]
        lines += [f"slot {slot} (partition {layout.partition_of_slot(slot)}): {load:g}" for slot, load in hottest]
        sys.stdout.write("\n".join(lines) + "\n")
        if options.keys:
            hot_keys(rows, options.key, layout, [slot for slot, _ in hottest], weight=options.weight).show(
                options.hottest * 10, truncate=False
            )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True, help="a file or a folder of Parquet")
    parser.add_argument("--key", required=True, help="the column of keys")
    parser.add_argument("--weight", help="the column that says how much work a row is; by default 1 each")
    parser.add_argument("--save", required=True, type=Path, help="the file that the profile goes to")
    parser.add_argument("--slots", type=int, default=Layout().slots, help="of the group (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=Layout().partitions, help="likewise (default: %(default)s)")
    parser.add_argument("--tags", action="store_true", help="if the group's layout has {tags}")
    parser.add_argument("--hottest", type=int, default=10, help="slots to print (default: %(default)s)")
    parser.add_argument("--keys", action="store_true", help="print the hottest keys of these slots, too")
    parser.add_argument("--master", help="Spark's master, if it is not spark-submit that starts this")
    options = parser.parse_args(arguments)
    try:
        profile(options)
    except (NeliError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
