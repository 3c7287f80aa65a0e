"""Writes outcomes: gathers them for a few milliseconds, sends them as one fenced statement, tells who was stale.

An outcome is kept until the store has answered for it, or the worker's time to shut down is over.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.crash_points import reach
from holdfast.errors import HoldfastError, SchemaMismatch, StoreUnavailable
from holdfast.failures import describe
from holdfast.lifecycle import Event, Transition
from holdfast.log import get_logger
from holdfast.store.contract import Fenced, Finish, Store
from holdfast.worker.held import HeldJob

log = get_logger("holdfast.worker")

_GATHER_SECONDS = 0.002
_MOST_AT_ONCE = 1000
_LOCKED_SECONDS = 0.1
_MOST_REFUSALS = 5


@dataclass(slots=True)
class Pending:
    held: HeldJob
    finish: Finish
    refusals: int = 0
    is_given_up: bool = False


class Finisher:
    def __init__(self, store: Store, written: Callable[[list[Pending], list[Fenced]], None]) -> None:
        self._store = store
        self._written = written
        self._pending: list[Pending] = []
        self._under_way: list[Pending] = []
        self._arrived: Callable[[], None] = lambda: None
        self._idle = asyncio.Event()
        self._idle.set()

    def on_arrival(self, wake: Callable[[], None]) -> None:
        self._arrived = wake

    def put(self, pending: Pending) -> None:
        self._pending.append(pending)
        self._idle.clear()
        if len(self._pending) == 1:
            self._arrived()

    async def step(self) -> float | None:
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
            self._pending = batch + self._pending
            raise
        finally:
            self._under_way = []
        reach("finish.after")
        fresh = bool(self._pending)
        if Fenced.LOCKED in answers:
            self._pending += [each for each, fenced in zip(batch, answers, strict=True) if fenced is Fenced.LOCKED]
            batch = [each for each, fenced in zip(batch, answers, strict=True) if fenced is not Fenced.LOCKED]
            answers = [fenced for fenced in answers if fenced is not Fenced.LOCKED]
        if Fenced.STALE in answers:
            _log_stale(batch, answers)
        self._written(batch, answers)
        reach("finish.reported")
        if not self._pending:
            self._idle.set()
            return None
        return 0 if fresh else _LOCKED_SECONDS

    async def _answers(self, batch: list[Pending]) -> list[Fenced]:
        try:
            return await self._store.finish([pending.finish for pending in batch])
        except (StoreUnavailable, SchemaMismatch):
            raise
        except Exception as error:  # noqa: BLE001 - logged below
            # One outcome that cannot be written must not hold up all the others, for ever.
            if not any(pending.refusals for pending in batch):
                log.warning("outcomes refused, writing them one by one", count=len(batch), **_told(error))
            return [await self._answer(pending) for pending in batch]

    async def _answer(self, pending: Pending) -> Fenced:
        try:
            (fenced,) = await self._store.finish([pending.finish])
            return fenced
        except (StoreUnavailable, SchemaMismatch):
            raise
        except Exception as error:  # noqa: BLE001 - logged below
            pending.refusals += 1
            if pending.refusals == _MOST_REFUSALS:
                # From now on something that can surely be written: a person will find the job and the reason.
                unwritable = Transition(Event.FAIL, error=describe(error, "OUTCOME_UNWRITABLE"))
                pending.finish = Finish(pending.finish.lease, unwritable)
            if pending.refusals < 2 * _MOST_REFUSALS:
                return Fenced.LOCKED
            # Nobody renews its lease any more: it runs out, and the job is tried again or ends dead.
            log.error("outcome cannot be written", **pending.held.named, **_told(error))  # noqa: TRY400
            pending.is_given_up = True
            return Fenced.STALE

    async def drained(self, seconds: float) -> int:
        """Wait until everything is written. How many are not by then; they are left to the rescue of their leases."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            pass
        left = [str(pending.held.id) for pending in [*self._under_way, *self._pending]]
        if left:
            log.error("stopping although outcomes could not be written", count=len(left), job_ids=left[:20])
        return len(left)


def _log_stale(batch: list[Pending], answers: list[Fenced]) -> None:
    for pending, fenced in zip(batch, answers, strict=True):
        if fenced is Fenced.STALE and not pending.is_given_up:
            log.warning(
                "outcome refused, lease was lost",
                **pending.held.named,
                fence=pending.finish.lease.fence,
                outcome=pending.finish.transition.event,
            )


def _told(error: Exception) -> dict[str, Any]:
    """One line where the store says what is wrong; the traceback where nobody foresaw it."""
    return {"error": str(error), "exc_info": None if isinstance(error, HoldfastError) else error}
