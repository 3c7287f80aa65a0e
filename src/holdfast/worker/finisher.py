"""Writes outcomes: gathers them for a few milliseconds, sends them as one fenced statement, tells who was stale.

An outcome is kept until the store has answered for it, or the worker's time to shut down is over.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from holdfast.domain.crash_points import reach
from holdfast.domain.errors import HoldfastError, SchemaMismatch, StoreUnavailable
from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.failures import describe
from holdfast.domain.lifecycle import Move, Transition
from holdfast.log import get_logger
from holdfast.store.contract import Fenced, Finish, Store
from holdfast.worker.held import HeldJob
from holdfast.worker.loop import Loop, cancel_within

log = get_logger("holdfast.worker")

_GATHER_SECONDS = 0.002
_MOST_AT_ONCE = 1000
_LOCKED_SECONDS = 0.1
_TRY_SECONDS = 0.5
_MOST_REFUSALS = 5


class Finisher:
    def __init__(self, store: Store, written: Callable[[list[HeldJob], list[Fenced]], None]) -> None:
        self._store = store
        self._written = written
        self._pending: list[HeldJob] = []
        self._under_way: list[HeldJob] = []
        self._writing = Loop("finish", self._write)
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_last_chance = False

    async def run(self) -> None:
        """Until `stop`."""
        await self._writing.run()

    def stop(self) -> None:
        self._writing.stop()

    def put(self, held: HeldJob, transition: Transition) -> None:
        held.transition = transition
        self._pending.append(held)
        if len(self._pending) == 1:
            self._idle.clear()
            self._writing.wake()

    async def _write(self) -> float | None:
        if not self._pending:
            return None
        if len(self._pending) < _MOST_AT_ONCE:
            await asyncio.sleep(_GATHER_SECONDS)
        batch, self._pending = self._pending[:_MOST_AT_ONCE], self._pending[_MOST_AT_ONCE:]
        self._under_way = batch
        reach("finish.before")
        try:
            answers = await self._answers(batch)
        except BaseException:
            self._pending = _once(each for each in (*batch, *self._pending) if not each.is_over)
            raise
        finally:
            self._under_way = []
        reach("finish.after")
        fresh = bool(self._pending)
        self._report(batch, answers)
        reach("finish.reported")
        if not self._pending:
            self._idle.set()
            return None
        return 0 if fresh else _LOCKED_SECONDS

    def _report(self, batch: list[HeldJob], answers: list[Fenced]) -> None:
        if self._is_last_chance:
            batch, answers = self._not_over(batch, answers)
        if Fenced.LOCKED in answers:
            self._pending += [each for each, fenced in zip(batch, answers, strict=True) if fenced is Fenced.LOCKED]
            batch = [each for each, fenced in zip(batch, answers, strict=True) if fenced is not Fenced.LOCKED]
            answers = [fenced for fenced in answers if fenced is not Fenced.LOCKED]
        if Fenced.STALE in answers:
            _log_stale(batch, answers)
        self._written(batch, answers)

    async def _answers(self, batch: list[HeldJob]) -> list[Fenced]:
        try:
            return await self._store.finish([Finish(held.job.lease, held.transition) for held in batch])
        except (StoreUnavailable, SchemaMismatch):
            raise
        except Exception as error:  # noqa: BLE001 - logged below
            # One outcome that cannot be written must not hold up all the others, for ever.
            if not any(held.refusals for held in batch):
                log.warning("outcomes refused, writing them one by one", count=len(batch), **_told(error))
            return [await self._answer(held) for held in batch]

    async def _answer(self, held: HeldJob) -> Fenced:
        try:
            (fenced,) = await self._store.finish([Finish(held.job.lease, held.transition)])
            return fenced
        except (StoreUnavailable, SchemaMismatch):
            raise
        except Exception as error:  # noqa: BLE001 - logged below
            held.refusals += 1
            if held.refusals == _MOST_REFUSALS:
                # From now on something that can surely be written: a person will find the job and the reason.
                held.transition = Transition(Move.FAIL, error=describe(error, "OUTCOME_UNWRITABLE"))
            if held.refusals < 2 * _MOST_REFUSALS:
                return Fenced.LOCKED
            # Nobody renews its lease any more: it runs out, and the job is tried again or ends dead.
            log.error("outcome cannot be written", **held.named, **_told(error))  # noqa: TRY400
            held.is_given_up = True
            return Fenced.STALE

    async def drained(self, seconds: float) -> int:
        """Wait until everything is written. How many are not by then; they are left to the rescue of their leases."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds / 2):
                await self._idle.wait()
        if not self._idle.is_set():
            await self._write_beside(seconds / 2)
        left = [str(held.id) for held in self._left()]
        if left:
            log.error("stopping although outcomes could not be written", count=len(left), job_ids=left[:20])
        return len(left)

    async def _write_beside(self, seconds: float) -> None:
        """The last chance: what is under way may hang on its connection, and what failed waits ever longer.

        Nor is any of these requests waited for, because each may hang as well; and a request that hangs on a server
        that is cut off cannot even be canceled in time.
        """
        self._is_last_chance = True
        end = time.monotonic() + seconds
        tries: dict[asyncio.Task[None], list[HeldJob]] = {}
        try:
            while (batch := self._least_tried(tries)) and (left := end - time.monotonic()) > 0:
                writing = asyncio.create_task(self._try(batch))
                tries[writing] = batch
                await asyncio.wait([writing], timeout=min(_TRY_SECONDS, left))
                if self._left():
                    await asyncio.sleep(min(_LOCKED_SECONDS, max(0.0, end - time.monotonic())))
        finally:
            await cancel_within(0, *(each for each in tries if not each.done()))

    async def _try(self, batch: list[HeldJob]) -> None:
        try:
            self._report(batch, await self._answers(batch))
        except (Exception, asyncio.CancelledError) as error:
            if is_being_canceled():
                raise
            if not isinstance(error, HoldfastError):
                log.exception("outcomes could not be written, trying again", count=len(batch))

    def _least_tried(self, tries: "dict[asyncio.Task[None], list[HeldJob]]") -> list[HeldJob]:
        """Those first of which no request is under way."""
        under_way = {*self._under_way, *(each for task, batch in tries.items() if not task.done() for each in batch)}
        return sorted(self._left(), key=under_way.__contains__)[:_MOST_AT_ONCE]

    def _left(self) -> list[HeldJob]:
        return _once(each for each in (*self._pending, *self._under_way) if not each.is_over)

    def _not_over(self, batch: list[HeldJob], answers: list[Fenced]) -> tuple[list[HeldJob], list[Fenced]]:
        """Without those for which the other request was answered before."""
        answered = set(batch)
        self._pending = [each for each in self._pending if each not in answered]
        new = [(each, fenced) for each, fenced in zip(batch, answers, strict=True) if not each.is_over]
        for each, fenced in new:
            each.is_over = fenced is not Fenced.LOCKED
        return [each for each, _ in new], [fenced for _, fenced in new]


def _once(each: Iterable[HeldJob]) -> list[HeldJob]:
    return list(dict.fromkeys(each))


def _log_stale(batch: list[HeldJob], answers: list[Fenced]) -> None:
    for held, fenced in zip(batch, answers, strict=True):
        if fenced is Fenced.STALE and not held.is_given_up:
            fence, move = held.job.lease.fence, held.transition.move
            log.warning("outcome refused, lease was lost", **held.named, fence=fence, outcome=move)


def _told(error: Exception) -> dict[str, Any]:
    """One line where the store says what is wrong; the traceback where nobody foresaw it."""
    return {"error": str(error), "exc_info": None if isinstance(error, HoldfastError) else error}
