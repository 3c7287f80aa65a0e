"""The event loop of a program that runs jobs. Handlers that cannot be stopped do not keep the program from exiting."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from holdfast.logs.records import get_logger
from holdfast.worker.threads import HandlerThreads

log = get_logger("holdfast.worker")

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")

_PATIENCE_SECONDS = 1.0
_BORROWED = "holdfast-borrowed"
# The same limit that asyncio.to_thread has by default.
_MOST_BORROWED = min(32, (os.cpu_count() or 1) + 4)

_abandoned: list[asyncio.Runner] = []
"""Event loops of handlers that ignore their cancellation. Closing such a loop would wait for them forever."""


def run_program(main: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
    """Run `main` on a new event loop, from uvloop if that is installed."""
    runner = asyncio.Runner(loop_factory=_loop_factory())
    with _less_garbage_collection():
        borrowed = _BorrowedThreads()
        runner.get_loop().set_default_executor(borrowed)
        try:
            return runner.run(main())
        finally:
            is_quiet = not runner.run(_tasks_left())
            borrowed.shutdown()
            if _threads_left() or not is_quiet:
                log.error("exiting while handlers that could not be stopped are still running")
            if is_quiet:
                _close(runner)
            else:
                _abandoned.append(runner)


def _close(runner: asyncio.Runner) -> None:
    try:
        runner.close()
    except RuntimeError as error:
        # To end its default executor, the loop starts a thread. The loop itself is closed in any case.
        log.warning("the event loop could not end in order", error=str(error))


@contextmanager
def _less_garbage_collection() -> Iterator[None]:
    # A worker makes tens of objects for each job and hardly any cycles. With these settings 50,000 no-op jobs took 2.4
    # and 2.9 s of processor time, and with the defaults 3.7 and 4.0 s (two pairs on a busy machine; their rates did not
    # agree).
    usual, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        if not is_frozen:
            gc.unfreeze()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _tasks_left() -> bool:
    """Cancel all tasks, and return whether an async handler ignores its cancellation."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return False
    _, pending = await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)
    return bool(pending)


def _threads_left() -> bool:
    """Whether a thread that a handler borrowed (asyncio.to_thread) is still running."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    threads = [thread for thread in threading.enumerate() if thread.name == _BORROWED]
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


class _BorrowedThreads(ThreadPoolExecutor):
    """The pool behind asyncio.to_thread. An event loop accepts only the standard pool, and a program waits for that
    pool's threads when it exits. This class starts daemon threads instead, and none of the standard pool."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._is_closed = False
        self._daemons = HandlerThreads(_BORROWED, _MOST_BORROWED)

    def submit(
        self, fn: Callable[Arguments, Value], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Value]:
        if self._is_closed:
            raise RuntimeError("the program is exiting; it starts no more threads")
        return cast("Future[Value]", self._daemons.submit(partial(fn, *args, **kwargs)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        if not self._is_closed:
            self._is_closed = True
            self._daemons.close()
