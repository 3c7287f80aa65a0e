"""All waits of an open app: a task that looks at jobs and maintains waiter rows, and a connection that hears rings.

Both start with the first wait and end a few seconds after the last. A ring triggers an immediate look at the jobs it
names. Without rings, one statement per second looks at all of them.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from uuid import UUID, uuid4

from holdfast.domain.duration import Duration, to_text, to_timedelta
from holdfast.domain.errors import HoldfastError, InvalidInput, StoreUnavailable
from holdfast.domain.event_loop import any_done
from holdfast.domain.job import Job
from holdfast.domain.keys import KeyName
from holdfast.logs.records import get_logger
from holdfast.store.waiters import Heard, Rings, WaiterStore
from holdfast.waits.board import Board
from holdfast.waits.watch import NEVER, Pacing, Waiter
from holdfast.wake.link import Outage

log = get_logger("holdfast.waits")

LONGEST_WAIT = timedelta(hours=24)
_LAST_LOOK_SECONDS = 2.0
_AGAIN_SECONDS = 0.5
_CLOSE_SECONDS = 2.0
_LAST_WORD_SECONDS = 1.0

MakeRings = Callable[[UUID, Heard], Rings | None]
"""Takes a holder and a callback. Returns a listener for the holder's rings, or None if there is nothing to hear."""


class Waits:
    """Works on one event loop, that of the store's connections. By default, this is the running loop."""

    def __init__(
        self,
        store: WaiterStore,
        make_rings: MakeRings,
        pacing: Pacing | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._store = store
        self._make_rings = make_rings
        self._pacing = pacing or Pacing()
        self._loop = loop or asyncio.get_running_loop()
        self._holder = uuid4()
        self._board = Board(self._pacing)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._rings: Rings | None = None
        self._ringing: asyncio.Task[None] | None = None
        self._is_deaf = False
        self._is_closed = False
        self._register_at = self._forget_at = self._sweep_at = float("-inf")
        self._idle_since = float("-inf")
        self._outage = Outage("waits", begins="store unavailable, waits continue", ends="store available again")
        begins, ends = "no notifications for waits; polling continues", "notifications for waits are back"
        self._refused = Outage("waits", begins=begins, ends=ends)
        self._trouble: StoreUnavailable | None = None

    async def wait(self, ids: Collection[UUID], timeout: Duration) -> dict[UUID, Job]:
        """Return the jobs as soon as all of them are final, or in their current state at the timeout.

        Raises UnknownJob if one does not exist. A store outage that ends before the timeout only delays the result; an
        outage at the timeout raises StoreUnavailable. A canceled wait leaves nothing behind.
        """
        waiter = self._waiter(timeout)
        waiter.left.update(ids)
        if ids:
            await self._until_done(waiter)
        return {id: waiter.found[id] for id in ids}

    async def wait_for(self, key: KeyName, timeout: Duration) -> Job:
        """Wait for a job to hold the key, and return that job as soon as it is final, or as it is at the timeout.

        The first job found is the one waited for, even if another job takes over the key. Raises UnknownJob if no job
        holds the key at the timeout.
        """
        waiter = self._waiter(timeout, key)
        await self._until_done(waiter)
        (job,) = waiter.found.values()
        return job

    def _waiter(self, timeout: Duration, key: KeyName | None = None) -> Waiter:
        until = time.monotonic() + _seconds(timeout)
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidInput("wait on the event loop that opened the app, or open another app on this loop")
        return Waiter(set(), until, self._loop.create_future(), key)

    async def _until_done(self, waiter: Waiter) -> None:
        self._begin(waiter)
        seconds = waiter.until - time.monotonic()
        try:
            if seconds > 0:
                await asyncio.wait([waiter.done], timeout=seconds)
            if not waiter.done.done():
                self._board.take_any(waiter)
                self._changed.set()
                await any_done([waiter.done], _LAST_LOOK_SECONDS)
        finally:
            self._board.remove(waiter)
            self._idle_since = time.monotonic()
            self._changed.set()
        if waiter.error is not None:
            raise waiter.error
        if not waiter.done.done():
            raise StoreUnavailable("the store did not answer before the wait was over") from self._trouble

    async def close(self) -> None:
        """End all current waits with StoreUnavailable."""
        self._is_closed = True
        self._changed.set()
        if (task := self._task) is not None:
            await asyncio.wait([task], timeout=_CLOSE_SECONDS)
            task.cancel()
            await asyncio.wait([task], timeout=_CLOSE_SECONDS)

    def _begin(self, waiter: Waiter) -> None:
        if self._is_closed:
            raise InvalidInput("the app is closed; wait while it is open")
        self._board.add(waiter)
        self._changed.set()
        if self._task is None:
            self._start()

    def _start(self) -> None:
        # The task serves all waits, so it must not log as the job whose handler happens to wait first.
        Context().run(self._start_here)

    def _start_here(self) -> None:
        self._task = asyncio.create_task(self._run(), name="holdfast waits")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """End or take over all waits, no matter how the task ended."""
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled() and not self._is_closed:
            if not self._board.is_empty:
                self._start()
            return
        if error is not None and not isinstance(error, HoldfastError):
            log.error("waits failed", exc_info=error)
        for waiter in self._board.waiters:
            if isinstance(error, HoldfastError):
                waiter.end(error)
            else:
                why = "the app was closed during the wait" if error is None else "the wait failed, see the log"
                waiter.end(StoreUnavailable(why))

    async def _run(self) -> None:
        try:
            while not self._is_closed and not self._is_idle():
                self._changed.clear()
                await self._pause(await self._step())
        finally:
            await self._hang_up()

    def _is_idle(self) -> bool:
        is_over = time.monotonic() >= self._idle_since + self._pacing.linger
        return self._board.is_empty and not self._board.rows_to_remove() and is_over

    async def _step(self) -> float:
        """Do one step; return the seconds until the next one."""
        try:
            await self._look()
        except StoreUnavailable as error:
            self._trouble = error
            self._outage.goes_on(error)
            self._board.look_at_all()
            self._changed.clear()
            return _AGAIN_SECONDS
        self._trouble = None
        self._outage.is_over()
        await self._keep_rows()
        return self._next_step() - time.monotonic()

    async def _look(self) -> None:
        if keys := self._board.to_seek(time.monotonic()):
            self._board.sent()
            self._board.sought(keys, await self._store.find(keys))
        to_read = self._board.to_read()
        to_check = self._board.to_check(time.monotonic()) - to_read
        if to_check:
            to_read.update(await self._store.not_live(to_check))
        if to_read:
            self._board.sent()
            self._board.tell(to_read, {job.id: job for job in await self._store.read(to_read)})

    async def _keep_rows(self) -> None:
        try:
            await self._remove_rows()
            await self._write_rows()
        except HoldfastError as error:
            # Rows only serve to get rings, so a problem with them ends no wait.
            self._refused.goes_on(error)
            self._register_at = self._sweep_at = time.monotonic() + self._pacing.poll

    async def _remove_rows(self) -> None:
        now = time.monotonic()
        ended = self._board.rows_to_remove()
        if ended and now >= self._sweep_at:
            self._sweep_at = now + self._pacing.sweep
            await self._store.remove(self._holder, ended)
            self._board.rows_removed(ended)

    async def _write_rows(self) -> None:
        if self._ringing is None and not self._is_deaf and not self._board.is_empty:
            self._listen()
        now = time.monotonic()
        if self._rings is None or not self._rings.is_listening or now < self._register_at:
            return
        if rows := self._board.rows_to_write(now):
            if now >= self._forget_at:
                self._forget_at = now + self._pacing.forget
                await self._store.forget_expired()
            await self._store.register(self._holder, rows)
            self._board.rows_written(rows, now)
            self._refused.is_over()

    def _listen(self) -> None:
        self._rings = self._make_rings(self._holder, self._heard)
        if self._rings is None:
            self._is_deaf = True
        else:
            self._ringing = asyncio.create_task(self._rings.run(), name="holdfast rings of final jobs")

    def _heard(self, ids: Collection[UUID] | None) -> None:
        if ids is None:
            # The rows are written again, and then their jobs are looked at.
            self._board.rows_in_doubt()
        else:
            self._board.hear(ids)
        self._changed.set()

    def _next_step(self) -> float:
        if self._board.rows_to_remove():
            # The task does not end before the rows are removed, however long that takes.
            return min(self._board.next_look(), self._sweep_at)
        end = self._idle_since + self._pacing.linger if self._board.is_empty else NEVER
        return min(self._board.next_look(), end)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _hang_up(self) -> None:
        """Stop listening, and remove the rows if the store still answers. If not, they expire on their own."""
        if ringing := self._ringing:
            if self._rings is not None:
                self._rings.stop()
            await asyncio.wait([ringing], timeout=_CLOSE_SECONDS)
            ringing.cancel()
            await asyncio.wait([ringing], timeout=_CLOSE_SECONDS)
        self._rings = self._ringing = None
        if rows := self._board.rows:
            with suppress(HoldfastError, TimeoutError):
                async with asyncio.timeout(_LAST_WORD_SECONDS):
                    await self._store.remove(self._holder, rows)
            self._board.rows_removed(rows)


def _seconds(timeout: Duration) -> float:
    length = to_timedelta(timeout, "timeout")
    if length > LONGEST_WAIT:
        raise InvalidInput(f"timeout: longer than {to_text(LONGEST_WAIT)}; call wait again after that time")
    return length.total_seconds()
