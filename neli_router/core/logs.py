"""The log: the program's structlog if it is configured, otherwise the standard library's logging.

    structlog.configure(...) was called   its loggers, its processors, its format
    logging is configured                 logger "neli_router": `event key=value ...`, parts as record.event, .fields
    neither                               warnings and errors go to standard error, as Python itself decides

Names come from anyone who may write to a ledger, and logs are read on terminals and line by line. So control characters
are escaped before any processor sees them.

An unconfigured structlog prints every event to standard output, so it is used only if the program configured it. It is
imported with the first logger, not before: importing it takes longer than importing all of this library.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from neli_router.errors import plain

__all__ = ["logger"]


def logger() -> Any:
    """A structlog logger; its methods take the event's name, and the fields as keywords."""
    import structlog  # noqa: PLC0415 - see the essay.

    if structlog.is_configured():
        return structlog.wrap_logger(None, processors=_PlainTextFirst(), logger_factory_args=("neli_router",))
    return structlog.wrap_logger(
        logging.getLogger("neli_router"),
        processors=[structlog.stdlib.filter_by_level, _rendered],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


class _PlainTextFirst:
    """One processor of ours, followed by the program's, looked up again for each line."""

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        import structlog  # noqa: PLC0415 - see the essay.

        yield lambda _, __, event: _plain(event)
        yield from structlog.get_config()["processors"]


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: plain(value) if isinstance(value, str) else value for key, value in fields.items()}


def _rendered(_: object, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """A readable line, and its parts for a JSON formatter."""
    name = event.pop("event")
    fields = _plain(event)
    words = (f"{key}={value!r}" if " " in str(value) else f"{key}={value}" for key, value in fields.items())
    # All fields in one attribute: a record already has attributes such as "name" and "args", and logging refuses those.
    return (" ".join((name, *words)),), {"extra": {"event": name, "fields": fields}}
