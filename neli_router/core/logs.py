"""The log: the program's structlog if it is configured, otherwise the standard library's logging.

    structlog.configure(...) was called   its loggers, its processors, its format
    logging is configured                 logger "neli_router": `event key=value ...`, parts as record.event, .fields
    neither                               warnings and errors go to standard error, as Python itself decides

Names come from anyone who may write to a ledger, and logs are read on terminals and line by line. So control characters
are escaped before any processor sees them.

An unconfigured structlog prints every event to standard output, so it is used only if the program configured it. Only
a program that imported it can have done that, so this library need not import it. That takes 70 ms, which is a third of
the time that a process needs until it leads.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neli_router.errors import plain

__all__ = ["logger"]


def logger() -> Any:
    """A logger whose methods take the event's name, and the fields as keywords."""
    structlog = sys.modules.get("structlog")
    if structlog is not None and getattr(structlog, "is_configured", bool)():  # Another thread may be importing it.
        return structlog.wrap_logger(None, processors=_PlainTextFirst(), logger_factory_args=("neli_router",))
    return _StandardLog({})


class _StandardLog:
    """The methods of a structlog logger that this library calls, for the standard library's logging."""

    def __init__(self, bound: Mapping[str, object]) -> None:
        self._bound = bound

    def bind(self, **fields: object) -> "_StandardLog":
        return _StandardLog({**self._bound, **fields})

    def info(self, event: str, /, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, given: Mapping[str, object]) -> None:
        """A readable line, and its parts for a JSON formatter."""
        log = logging.getLogger("neli_router")
        if not log.isEnabledFor(level):
            return
        fields = _plain({**self._bound, **given})
        words = (f"{key}={value!r}" if " " in str(value) else f"{key}={value}" for key, value in fields.items())
        # All in two attributes: a record already has attributes such as "name" and "args", and logging refuses those.
        log.log(level, " ".join((event, *words)), extra={"event": event, "fields": fields}, stacklevel=3)


class _PlainTextFirst:
    """One processor of ours, followed by the program's, looked up again for each line."""

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        structlog = sys.modules["structlog"]
        yield lambda _, __, event: _plain(event)
        yield from structlog.get_config()["processors"]


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: plain(value) if isinstance(value, str) else value for key, value in fields.items()}
