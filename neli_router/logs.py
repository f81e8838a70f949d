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
from collections.abc import Mapping, MutableMapping
from functools import cache
from typing import Any

from neli_router.errors import plain

__all__ = ["logger"]

logging.getLogger("neli_router").addHandler(logging.NullHandler())  # Or warnings would go to stderr unasked.


def logger() -> Any:
    """A structlog logger; its methods take the event's name, and fields by keyword."""
    import structlog  # noqa: PLC0415 - see the essay.

    if structlog.is_configured():
        wrapper = _plain_class(structlog.get_config()["wrapper_class"])
        return structlog.wrap_logger(None, wrapper_class=wrapper, logger_factory_args=("neli_router",))
    return structlog.wrap_logger(
        logging.getLogger("neli_router"),
        processors=[structlog.stdlib.filter_by_level, _rendered],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


@cache
def _plain_class(chosen: type[Any]) -> type[Any]:
    """The program's class of loggers, with all text in the fields as plain text."""

    class PlainLogger(chosen):  # type: ignore[misc]
        def _process_event(self, method_name: str, event: str | None, event_kw: dict[str, Any]) -> Any:
            return super()._process_event(method_name, event, _plain(event_kw))

    return PlainLogger if hasattr(chosen, "_process_event") else chosen


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: plain(value) if isinstance(value, str) else value for key, value in fields.items()}


def _rendered(_: object, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """A line that can be read as it is, and its parts for a formatter of JSON."""
    name = event.pop("event")
    fields = _plain(event)
    words = (f"{key}={value!r}" if " " in str(value) else f"{key}={value}" for key, value in fields.items())
    # The fields in one attribute: "name" and "args" are attributes of a record already, and logging refuses them.
    return (" ".join((name, *words)),), {"extra": {"event": name, "fields": fields}}
