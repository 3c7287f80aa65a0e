"""An event loop in a background thread, through which blocking code in any thread uses an app.

It starts with the first call and ends with `close`, or when the interpreter exits.
"""

import asyncio
import atexit
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextvars import Context
from typing import Any, Protocol, TypeVar

from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.domain.event_loop import running_loop
from holdfast.domain.inherited import leave_to_parent

Answer = TypeVar("Answer")

_CLOSE_SECONDS = 10.0
_CLOSED = "app.sync was closed before this call was answered"
_ENDING = (
    "the program is ending and app.sync is closed; to use it in an exit handler, register the handler after the first "
    "call of app.sync"
)


class Opening(Protocol):
    """An app can be open on several event loops at once."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class Portal:
    """Shared by all threads. A fork starts a new one, because threads and connections stay with the parent."""

    def __init__(self, app: Opening) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._running: _Running | None = None
        leave_to_parent(self)

    def run(self, work: Callable[[], Awaitable[Answer]], *, opens: bool = True) -> Answer:
        """Run `work` on the portal's event loop, in the context of the calling thread, and wait for its answer.

        `opens`: open the app first, unless it is open there already.
        """
        return self._started().answer(work, opens=opens)

    def close(self) -> None:
        """Close the app's connections and end the thread; the next call starts again."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _started(self) -> "_Running":
        with self._lock:
            if self._running is None:
                self._running = _Running(self._app)
            return self._running

    def _left_to_parent(self) -> object:
        left, self._lock, self._running = self._running, threading.Lock(), None
        return left


class _Running:
    """One thread with its event loop. The app opens with the first call, and again after an open that failed."""

    def __init__(self, app: Opening) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._opening: asyncio.Task[None] | None = None
        self._why_closed = _CLOSED
        self._awaited: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="holdfast-portal", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            # From Python 3.12 on, an exiting interpreter refuses new threads.
            self._loop.close()
            raise StoreUnavailable(_ENDING) from None
        atexit.register(self._stop_at_exit)

    def answer(self, work: Callable[[], Awaitable[Answer]], *, opens: bool) -> Answer:
        answering = self._answered(work, opens=opens)
        try:
            future: Future[Answer] = asyncio.run_coroutine_threadsafe(answering, self._loop)
        except RuntimeError:
            answering.close()
            raise StoreUnavailable(self._why_closed) from None
        self._awaited.add(future)
        try:
            if self._loop.is_closed():
                # It closed before it took the call, and nothing else would end the wait.
                future.cancel()
            return future.result()
        except CancelledError:
            raise StoreUnavailable(self._why_closed) from None
        except BaseException:
            # Ctrl-C ends the wait; the call may or may not have taken effect.
            future.cancel()
            raise
        finally:
            self._awaited.discard(future)

    def stop(self) -> None:
        atexit.unregister(self._stop_at_exit)
        self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    def _stop_at_exit(self) -> None:
        self._why_closed = _ENDING
        self.stop()

    async def _answered(self, work: Callable[[], Awaitable[Answer]], *, opens: bool) -> Answer:
        try:
            if opens:
                await self._open()
            return await work()
        except InvalidInput:
            if self._stop.is_set():
                # The stopping portal closes the app while calls are still in progress.
                raise StoreUnavailable(self._why_closed) from None
            raise

    async def _open(self) -> None:
        opening = self._opening
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            # In an empty context, because tasks of the open app outlive the call and must not log the caller's job.
            opening = self._opening = asyncio.get_running_loop().create_task(self._app.open(), context=Context())
        await asyncio.shield(opening)

    def _serve(self) -> None:
        """Without asyncio.Runner: closing one starts a thread, which Python 3.12 and later refuse while they exit."""
        try:
            self._loop.run_until_complete(self._until_stopped())
        finally:
            self._loop.run_until_complete(_cancel_the_others())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            for future in list(self._awaited):
                future.cancel()

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        if self._opening is not None:
            await asyncio.wait([self._opening])
            if not self._opening.cancelled() and self._opening.exception() is None:
                await self._app.close()


async def _cancel_the_others() -> None:
    """End the calls that are not answered yet: their threads wait."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def check_blocking(verb: str) -> None:
    """Refuse to block a thread whose event loop is running, because that would block everything else on the loop."""
    if running_loop() is not None:
        instead = (
            "await the coroutine itself"
            if verb == "run"
            else f"use await app.{verb} or await asyncio.to_thread(app.sync.{verb}, …)"
        )
        raise InvalidInput(f"app.sync.{verb} would block this thread's event loop; {instead}")
