"""The catalog of an Iceberg table: one that was opened already, one by its properties, or SQLite in a folder.

    a Catalog of pyiceberg          is used directly
    {"type": "rest", "uri": ...}    goes to pyiceberg's `load_catalog`
    "production"                    a catalog of that name in pyiceberg's own configuration
    "/lake", Path("/lake")          SQLite in that folder, which also holds the tables: /lake/catalog.db

SQLite is for programs of one host: its locks do not work on most network file systems. Several hosts need PostgreSQL or
a REST catalog.
"""

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path

from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy.exc import SQLAlchemyError

from neli_router.fence.delta.layouts import local_path
from neli_router.fence.refusals import TableMismatch, TableUnavailable

__all__ = ["AnyCatalog", "opened"]

AnyCatalog = Catalog | Mapping[str, str] | str | PathLike[str]

FILE = "catalog.db"

LOADING = "snapshot-loading-mode"
"""A property of REST catalogs."""

BUSY_SECONDS_MAX = 10
"""How long a program waits for another one's commit to SQLite, which takes milliseconds on a disk that works."""

TRIES = 3
"""Programs that make the catalog at the same moment fail at each other's tables, but not twice."""


def opened(catalog: AnyCatalog) -> Catalog:
    """Raises TableUnavailable if it cannot be opened, and TableMismatch if it hides snapshots."""
    found = _opened(catalog)
    if (loaded := found.properties.get(LOADING, "all")) != "all":
        if found is not catalog:
            found.close()
        raise TableMismatch(
            "a catalog was wanted that loads all snapshots of a table",
            f"its {LOADING} is {loaded!r}",
            "leave that property out: older snapshots say which commits have landed, and which files are in use",
        )
    return found


def _opened(catalog: AnyCatalog) -> Catalog:
    if isinstance(catalog, Catalog):
        return catalog
    if isinstance(catalog, Mapping):
        name, properties = catalog.get("name", "neli"), dict(catalog)
    elif isinstance(catalog, str) and "/" not in catalog:
        name, properties = catalog, {}
    else:
        name, properties = "neli", _embedded(local_path(catalog))
    failure: Exception | None = None
    for _ in range(TRIES):
        try:
            return load_catalog(name, **properties)
        except (SQLAlchemyError, OSError) as error:
            failure = error
    shown = catalog if isinstance(catalog, str | PathLike) else name
    raise TableUnavailable(
        f"the Iceberg catalog {fspath(shown)!r} was wanted",
        f"it cannot be opened ({type(failure).__name__})",
        "check its address, and that this user may read and write it",
    ) from failure


def _embedded(folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    uri = f"sqlite:///{folder / FILE}?timeout={BUSY_SECONDS_MAX}"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{folder}"}
