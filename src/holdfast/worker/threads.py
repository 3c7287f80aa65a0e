"""Threads for `def` handlers. They are daemons: one that cannot be stopped must not keep the process from ending.

The standard thread pool joins its threads at the interpreter's exit, so a worker told to stop would wait for them.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

_Work = tuple[Future[object], Callable[[], object]]


class HandlerThreads:
    """Started when first needed and kept for the next handler.

    Without `most` the caller bounds how many run at once: by its slots.
    """

    def __init__(self, name: str = "holdfast-handler", most: int | None = None) -> None:
        self._name = name
        self._most = most
        self._started = 0
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], object]) -> Future[object]:
        future: Future[object] = Future()
        self._work.put((future, call))
        # With all threads at work, the first that is free finds it, and counts as idle once too often: no matter, for
        # there is none left to start.
        if not self._idle.acquire(blocking=False) and (self._most is None or self._started < self._most):
            try:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
                self._started += 1
            except RuntimeError:
                # Or the next idle thread would run it, without a slot.
                future.cancel()
                raise
        return future

    def close(self) -> None:
        """Idle threads end now, busy ones when their handler does."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            _run(*work)
            del work  # or the last handler's job would live until the next one comes
            self._idle.release()
        self._work.put(None)


def _run(future: Future[object], call: Callable[[], object]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        value = call()
    except StopIteration as error:
        # asyncio's futures refuse it, and whoever waits for one would wait for ever. A coroutine does the same to it.
        future.set_exception(_as_runtime_error(error))
    except BaseException as error:  # noqa: BLE001 - the waiting side decides
        future.set_exception(error)
    else:
        future.set_result(value)


def _as_runtime_error(error: StopIteration) -> RuntimeError:
    wrapped = RuntimeError(repr(error))
    wrapped.__cause__ = error
    return wrapped
