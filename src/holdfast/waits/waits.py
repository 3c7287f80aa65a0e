"""All waits of an open app: a task that looks, registers and removes, and a connection that hears the rings.

Both begin with the first wait and end a few seconds after the last. A ring makes it look at once at the jobs that it
names; without any ring it looks at all of them once a second, in one statement.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import timedelta
from uuid import UUID, uuid4

from holdfast.domain.duration import Duration, to_text, to_timedelta
from holdfast.domain.errors import HoldfastError, InvalidInput, StoreUnavailable
from holdfast.domain.event_loop import any_done
from holdfast.domain.job import Job
from holdfast.log import get_logger
from holdfast.store.waiters import Heard, Rings, WaiterStore
from holdfast.waits.board import NEVER, Board, Pacing, Waiter
from holdfast.wake.link import Outage

log = get_logger("holdfast.waits")

LONGEST_WAIT = timedelta(hours=24)
_LAST_LOOK_SECONDS = 2.0
_AGAIN_SECONDS = 0.5
_CLOSE_SECONDS = 2.0
_LAST_WORD_SECONDS = 1.0

MakeRings = Callable[[UUID, Heard], Rings | None]
"""From a holder and what to call, to what hears the rings for it; None if there is nothing to hear."""


class Waits:
    """On one event loop: that of the store's connections, which is the running one unless told otherwise."""

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
        self._outage = Outage("waits", begins="the store is away, waits go on", ends="the store is back")
        self._refused = Outage("waits", begins="waits are not rung for, polling goes on", ends="waits are rung for")
        self._trouble: StoreUnavailable | None = None

    async def wait(self, ids: Collection[UUID], timeout: Duration) -> dict[UUID, Job]:
        """The jobs as soon as all of them are final, or at the timeout as they are then.

        UnknownJob if one is not there. An outage of the store that is over before the timeout only makes the wait
        longer; at the timeout it is StoreUnavailable. A canceled wait leaves nothing behind.
        """
        seconds = _seconds(timeout)
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidInput("wait on the event loop that opened the app, or open another app on this one")
        if not ids:
            return {}
        waiter = Waiter(set(ids), time.monotonic() + seconds, self._loop.create_future())
        self._begin(waiter)
        try:
            if seconds:
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
        if waiter.left:
            raise StoreUnavailable("the store did not answer before the wait was over") from self._trouble
        return {id: waiter.found[id] for id in ids}

    async def close(self) -> None:
        """Waits that go on end with StoreUnavailable."""
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
        self._task = asyncio.create_task(self._run(), name="holdfast waits")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """However the task ended, no wait is left to itself."""
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled() and not self._is_closed:
            if not self._board.is_empty:
                self._start()
            return
        if error is not None and not isinstance(error, HoldfastError):
            log.error("waits broke off", exc_info=error)
        for waiter in self._board.waiters:
            if isinstance(error, HoldfastError):
                waiter.end(error)
            else:
                why = "the app was closed during the wait" if error is None else "the wait broke off, see the log"
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
        """Seconds until the next one."""
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
            # Rows are only there to be rung for, so whatever is wrong with them ends no wait.
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
            # They are written again, and after that their jobs are looked at.
            self._board.rows_in_doubt()
        else:
            self._board.hear(ids)
        self._changed.set()

    def _next_step(self) -> float:
        if self._board.rows_to_remove():
            # It does not end before they are removed, however long that takes.
            return min(self._board.next_check(), self._sweep_at)
        end = self._idle_since + self._pacing.linger if self._board.is_empty else NEVER
        return min(self._board.next_check(), end)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _hang_up(self) -> None:
        """Its rows are removed if the store still answers; if not, they expire by themselves."""
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
        raise InvalidInput(f"timeout: longer than {to_text(LONGEST_WAIT)}; wait again when that is over")
    return length.total_seconds()
