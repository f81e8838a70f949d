"""Runs a call in a forked child, and reports its result or its error."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable

from tests.support.waiting import PATIENCE

__all__ = ["in_child", "raised_by"]


def fork() -> int:
    """`os.fork`, with no tracer in the child: it would wait for its own locks, held by threads of the parent."""
    tracer = sys.gettrace()
    sys.settrace(None)
    child = os.fork()
    if child:
        sys.settrace(tracer)
    return child


def in_child(act: Callable[[], object]) -> object:
    """Run `act` in a forked child and return its result, which travels as JSON; the child may take its time."""
    reading, writing = os.pipe()
    child = fork()
    if not child:  # pragma: no cover - counted in another process.
        signal.alarm(int(PATIENCE))  # A deadlock must fail the test, not outlive it.
        try:
            answer = act()
        except BaseException:  # noqa: BLE001 - reported to the parent.
            answer = traceback.format_exc()
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(told)


def raised_by(call: Callable[[], object]) -> str:
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - the kind is the answer.
        return type(error).__name__
    return "nothing"
