"""The log: the program's structlog if it has one, else the standard library's logging.

    structlog.configure(...) was called   its loggers, its processors, its format
    logging is configured                 logger "neli_router": `event key=value ...`, parts as record.event, .fields
    neither                               nothing is written: a library must not talk on a program's terminal

Names come from all that may write to a ledger, and a log is read on terminals and line by line. So what these would
obey is written as an escape, before any processor sees it.

structlog on its own prints every event to standard output, so it is never used unless the program asked for it. It is
imported with the first logger, not before: it takes longer to import than all of this library.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from neli_router.errors import plain

__all__ = ["logger"]

logging.getLogger("neli_router").addHandler(logging.NullHandler())  # Or warnings would go to stderr unasked.


def logger() -> Any:
    """A structlog logger; its methods take the event's name, and fields by keyword."""
    import structlog  # noqa: PLC0415 - see the essay.

    if structlog.is_configured():
        return structlog.wrap_logger(None, processors=_PlainTextFirst(), logger_factory_args=("neli_router",))
    return structlog.wrap_logger(
        logging.getLogger("neli_router"),
        processors=[structlog.stdlib.filter_by_level, _rendered],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


class _PlainTextFirst:
    """The program's processors, as they are by the time of each line, behind one of ours."""

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        import structlog  # noqa: PLC0415 - see the essay.

        yield lambda _, __, event: _plain(event)
        yield from structlog.get_config()["processors"]


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: plain(value) if isinstance(value, str) else value for key, value in fields.items()}


def _rendered(_: object, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """A line that can be read as it is, and its parts for a formatter of JSON."""
    name = event.pop("event")
    fields = _plain(event)
    words = (f"{key}={value!r}" if " " in str(value) else f"{key}={value}" for key, value in fields.items())
    # The fields in one attribute: "name" and "args" are attributes of a record already, and logging refuses them.
    return (" ".join((name, *words)),), {"extra": {"event": name, "fields": fields}}
