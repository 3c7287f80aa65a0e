"""An app's lifespan: opened once per process before the first handler and closed after the last. It yields `job.state`.

The worker's process and each child process have one. It runs in its own task, because some context managers must be
exited by the task that entered them, and because its end must be bounded in time.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast.logs.records import get_logger
from holdfast.worker.loop import cancel_within

log = get_logger("holdfast.worker")

LEAVE_SECONDS = 5.0
_CANCELED_SECONDS = 1.0


class Lifespan:
    def __init__(self, open: Callable[[], AbstractAsyncContextManager[Any]] | None = None) -> None:
        """If `open` is None, there is nothing to open."""
        self.state: Any = None
        self._open = open
        self._entered = asyncio.Event()
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, stop: asyncio.Event, broken: Callable[[], None] = lambda: None) -> bool:
        """Open the lifespan; its errors are raised here. Returns False if `stop` was set before it was open.

        `broken` is called if the lifespan ends early, as a task group does when one of its tasks fails.
        """
        if self._open is None:
            return True
        self._task = asyncio.create_task(self._live(self._open), name="holdfast-lifespan")
        waits = [asyncio.create_task(event.wait()) for event in (self._entered, stop)]
        try:
            await asyncio.wait([self._task, *waits], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await cancel_within(_CANCELED_SECONDS, self._task)
            raise
        finally:
            for wait in waits:
                wait.cancel()
        if not self._entered.is_set():
            if not self._task.done():
                self._over.set()
                await cancel_within(LEAVE_SECONDS, self._task)
                return False
            log.error("the app's lifespan could not be opened")
            self._task.result()
        self._task.add_done_callback(lambda _: None if self._over.is_set() else broken())
        return True

    async def _live(self, open: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        async with open() as self.state:
            self._entered.set()
            await self._over.wait()

    async def leave(self) -> None:
        """Close the lifespan. Its errors are raised here; if it does not end in time, it is canceled."""
        self._over.set()
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=LEAVE_SECONDS)
        if not self._task.done():
            log.error("the app's lifespan did not end in time and is canceled", seconds=LEAVE_SECONDS)
            await cancel_within(_CANCELED_SECONDS, self._task)
        elif not self._task.cancelled():
            self._task.result()
