"""The fence of a Delta table: a commit carries (partition, term, batch), and a lower term is refused. No Spark.

    table = FencedTable.create("/lake/prices", schema, layout)      makes it, or opens the one that is there
    table.raise_terms({3: 9})                                       a new owner, first of all
    table.progress()[3].batch                                       ... and then goes on after this batch
    table.append(rows, {3: 9}, batch)                               lands once, or raises the reason

`fence.tables` decides what lands, `table` commits it, and `staging` keeps the files of one commit together until they
have landed. `log` remembers what the table's log says, `layouts` recognizes our tables, `statistics` describes files,
and `upkeep` keeps the table good for years. docs/fencing.md explains how to use it, and docs/spark.md how Spark writes
to it.
"""

from neli_router.errors import MissingExtra

try:
    import deltalake  # noqa: F401 - only to check that it is installed.
    import pyarrow as pa  # noqa: F401 - as above.
except ModuleNotFoundError as error:
    raise MissingExtra.of((error.name or "").partition(".")[0], "for fenced tables", "spark") from None

from neli_router.fence.delta.staging import Staging
from neli_router.fence.delta.table import FencedTable
from neli_router.fence.delta.upkeep import Compaction, ForeignCommit
from neli_router.fence.tables import PARTITION, Commit, Progress

__all__ = ["PARTITION", "Commit", "Compaction", "FencedTable", "ForeignCommit", "Progress", "Staging"]
