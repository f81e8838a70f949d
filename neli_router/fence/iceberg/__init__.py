"""The fence of an Iceberg table: a commit carries (partition, term, batch), and a lower term is refused. No Spark.

    table = FencedIcebergTable.create("lake.prices", schema, layout, "/lake")   or another catalog than SQLite there
    table.raise_terms({3: 9})                                                   a new owner, first of all
    table.progress()[3].batch                                                   ... and then goes on after this batch
    table.append(rows, {3: 9}, batch)                                           lands once, or raises the reason

`fence.tables` decides what lands, `table` commits it to the catalog, `staging` keeps the files of one commit together
until they have landed, `layouts` recognizes our tables, and `catalogs` opens a catalog. docs/fencing.md explains how to
use it.
"""

from neli_router.errors import MissingExtra

try:
    import deltalake  # noqa: F401 - only to check that it is installed.
    import pyiceberg  # noqa: F401 - as above.
    import sqlalchemy  # noqa: F401 - as above.
except ModuleNotFoundError as error:
    raise MissingExtra.of((error.name or "").partition(".")[0], "for fenced Iceberg tables", "iceberg") from None

from neli_router.fence.iceberg.staging import IcebergStaging
from neli_router.fence.iceberg.table import FencedIcebergTable
from neli_router.fence.tables import PARTITION, Commit, Progress

__all__ = ["PARTITION", "Commit", "FencedIcebergTable", "IcebergStaging", "Progress"]
