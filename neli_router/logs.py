"""The log: the program's structlog if it has one, else the standard library's logging.

    structlog.configure(...) was called   its loggers, its processors, its format
    logging is configured                 logger "neli_router": `event key=value ...`, parts as record.event, .fields
    neither                               nothing is written: a library must not talk on a program's terminal

structlog on its own prints every event to standard output, so it is never used unless the program asked for it. It is
imported with the first logger, not before: it takes longer to import than all of this library.
"""

import logging
from collections.abc import MutableMapping
from typing import Any

__all__ = ["logger"]

logging.getLogger("neli_router").addHandler(logging.NullHandler())  # Or warnings would go to stderr unasked.


def logger() -> Any:
    """A structlog logger; its methods take the event's name, and fields by keyword."""
    import structlog  # noqa: PLC0415 - see the essay.

    if structlog.is_configured():
        return structlog.get_logger("neli_router")
    return structlog.wrap_logger(
        logging.getLogger("neli_router"),
        processors=[structlog.stdlib.filter_by_level, _rendered],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _rendered(_: object, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """A line that can be read as it is, and its parts for a formatter of JSON."""
    name = event.pop("event")
    words = (f"{key}={value!r}" if " " in str(value) else f"{key}={value}" for key, value in event.items())
    # The fields in one attribute: "name" and "args" are attributes of a record already, and logging refuses them.
    return (" ".join((name, *words)),), {"extra": {"event": name, "fields": dict(event)}}
