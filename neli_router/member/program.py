"""The program: runs a function until it returns or a signal ends it, and then every member hands over.

    RUNNING --signal--> is the main thread inside of a member? --no--> ENDING: SystemExit(0), every `with` block closes
       ^                  '--yes--> DUE: its wait is broken off, or the signal is sent again         |
       '---------------------------- after AGAIN_EVERY                      second signal: the kernel ends the process

Without this, SIGTERM ends the process on the spot: nothing is handed over, and the others wait for a lease. The exit
status is 0, like that of `neli agent`: the program did what its supervisor asked. Kubernetes shows any other number as
an error, and systemd's `Restart=on-failure` would start the program again. SIGHUP is left to the program.

**Why a signal may have to wait.** Python runs a signal's handler between any two steps of the main thread. An error
that is raised while a member opens, closes or takes its lock could leave it half open, or its lock held forever. So
while the main thread is inside of this package, the handler raises nothing, and the signal is sent again every few
milliseconds. A wait in there may take hours: it is woken, and raises where that does no harm. Only the wait of `close`
goes on, because it is the handover that the signal asks for.

**What Python may miss.** A signal that arrives in the microseconds before the main thread falls asleep does not wake
it: its handler runs after that sleep. So a program that sleeps a second at a time may end a second later.
"""

import _thread
import contextlib
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar, overload

__all__ = ["Signals", "run"]

AGAIN_EVERY = 0.01
"""Seconds until a signal that came at a bad moment is sent again. Lowering it disturbs a member that opens or closes
more often; raising it delays the end."""

TWICE = 0.5
"""Seconds in which a second signal is taken for the first one: `timeout`, and wrappers that pass on a Ctrl-C, send two.
Raising it keeps an impatient person waiting; lowering it ends programs without a handover on a busy host."""

_HERE = "neli_router.member."

Answer = TypeVar("Answer")


class Signals:
    """SIGTERM and SIGINT during one `run`. Belongs to the main thread."""

    present: "Signals | None" = None
    """Those of the `run` in progress."""

    def __init__(self) -> None:
        self.came = False
        self.waits: threading.Condition | None = None
        """The condition that the main thread waits on in a member."""
        self.cancel: Callable[[], object] | None = None
        """Cancels the program, if it runs in an event loop."""
        self.is_ending = self._is_due = self._is_again = False
        self._came_at = 0.0
        self._process = os.getpid()

    @classmethod
    def here(cls) -> "Signals | None":
        """Those of the `run` in progress, if the caller is the main thread."""
        return cls.present if threading.current_thread() is threading.main_thread() else None

    def check(self) -> bool:
        """End the program if a signal came. Call this where an error does no harm; the answer is False."""
        if self.came and not self.is_ending and self.cancel is None:
            self.is_ending = True
            raise SystemExit(0)
        return False

    def handle(self, number: int, frame: FrameType | None) -> None:
        is_again, self._is_again = self._is_again, False
        is_second = self.came and not is_again
        if os.getpid() != self._process or (is_second and time.monotonic() > self._came_at + TWICE):
            signal.signal(number, signal.SIG_DFL)  # A forked child has nothing to hand over.
            signal.raise_signal(number)
        if not self.came:
            self.came, self._came_at = True, time.monotonic()
        if is_second or self.is_ending:
            return
        if self.cancel is not None:
            self.is_ending = True
            self.cancel()
            return
        while frame is not None and not frame.f_globals.get("__name__", "").startswith(_HERE):
            frame = frame.f_back
        if frame is None or frame.f_code is run.__code__:
            self.check()
        elif not self._is_due:
            self._is_due = True
            _thread.start_new_thread(self._again, (number,))  # This thread may hold the locks that `threading` takes.

    def _again(self, number: int) -> None:
        while not self.is_ending:
            time.sleep(AGAIN_EVERY)
            if (changed := self.waits) is not None:
                with changed:
                    changed.notify_all()
            if self._is_again:  # The main thread may handle the last one and this one, or only one of them.
                self._came_at = time.monotonic()
            self._is_again = True
            signal.pthread_kill(threading.main_thread().ident or 0, number)


@overload
def run(main: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer: ...
@overload
def run(main: Callable[[], Answer]) -> Answer: ...
def run(main: Callable[[], Any]) -> Any:
    """Call `main`, and end the program in good order on SIGTERM and SIGINT (Ctrl-C). Returns what `main` returns.

    A signal raises SystemExit on the main thread: every `with` block closes, each member hands over, and the process
    exits with status 0. A second signal ends it immediately. If `main` is a coroutine function, it runs in an event
    loop of its own, and a signal cancels it. Only for the main thread, because Python handles no signal on another.
    """
    if threading.current_thread() is not threading.main_thread() or Signals.present is not None:
        raise RuntimeError("neli_router.run() belongs on the main thread, once: elsewhere, close each member yourself")
    signals = Signals.present = Signals()
    # An ignored signal stays ignored: the background jobs of a script survive the script's Ctrl-C.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, signals.handle)
        answer = main()
        if inspect.iscoroutine(answer):
            answer = _run_in_loop(signals, answer)
    finally:
        Signals.present, signals.is_ending = None, True
        if not signals.came:  # Otherwise they stay until the process ends: the signal may be sent once more.
            for number, handler in before.items():
                signal.signal(number, handler)
    if signals.came:
        raise SystemExit(0)
    return answer


def _run_in_loop(signals: Signals, program: Coroutine[Any, Any, Answer]) -> Answer | None:
    import asyncio  # noqa: PLC0415 - it takes a third of the import time, and most programs do not use it.

    async def cancellable() -> Answer:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"

        def cancel() -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed, and the program ends anyway.
                loop.call_soon_threadsafe(task.cancel)

        signals.cancel = cancel
        return await program

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not signals.came:
            raise
        return None
