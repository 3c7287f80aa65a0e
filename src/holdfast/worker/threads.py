"""Threads for `def` handlers. They are daemons, so that a handler that cannot be stopped does not block the exit.

The standard thread pool joins its threads when the interpreter exits, so a worker told to stop would wait for them.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from holdfast.worker.forks import end_fork, this_process

_Work = tuple[Future[object], Callable[[], object]]


class HandlerThreads:
    """Starts threads when they are needed and keeps them for later handlers.

    Without `most`, the caller limits how many run at once, by its number of slots.
    """

    def __init__(
        self, name: str = "holdfast-handler", most: int | None = None, at_end: Callable[[], None] | None = None
    ) -> None:
        """`at_end` is called in each thread at its end."""
        self._at_end = at_end
        self._name = name
        self._most = most
        self._started = 0
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], object]) -> Future[object]:
        """Raises RuntimeError, and leaves nothing behind, if the work needs a new thread and the system has none."""
        # If all `most` threads are busy, the first free one takes the work and counts as idle once too often. That is
        # harmless, because there is no thread left to start.
        if not self._idle.acquire(blocking=False) and (self._most is None or self._started < self._most):
            # Before the work is queued: an idle thread would run it without a slot, and count as idle twice.
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            self._started += 1
        future: Future[object] = Future()
        self._work.put((future, call))
        return future

    def close(self) -> None:
        """Idle threads end now, busy ones when their handler does."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            _run(*work)
            del work  # otherwise the last handler's job would stay in memory until the next one arrives
            self._idle.release()
        self._work.put(None)
        if self._at_end is not None:
            self._at_end()


def _run(future: Future[object], call: Callable[[], object]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    home = this_process()
    try:
        try:
            value = call()
        finally:
            end_fork(home)
    except StopIteration as error:
        # asyncio futures reject StopIteration, so the caller would wait forever. Coroutines convert it the same way.
        future.set_exception(_as_runtime_error(error))
    except BaseException as error:  # noqa: BLE001 - the waiting side decides
        future.set_exception(error)
    else:
        future.set_result(value)


def _as_runtime_error(error: StopIteration) -> RuntimeError:
    wrapped = RuntimeError(repr(error))
    wrapped.__cause__ = error
    return wrapped
