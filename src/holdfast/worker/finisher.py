"""Writes outcomes: collects them for a few milliseconds, sends them as one fenced statement, and reports stale ones.

An outcome is kept until the store has answered or the worker's shutdown time is over; meanwhile its lease is renewed.
Only one error changes an outcome: if the store refuses its data, it is written without them
(docs/decisions/0014-outages.md).
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from holdfast.domain.crash_points import reach
from holdfast.domain.errors import DuplicateJob, HoldfastError, Unstorable, unforeseen
from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.lifecycle import Transition, without_data
from holdfast.logs.records import get_logger
from holdfast.store.contract import Fenced, Finish, Store
from holdfast.worker.held import HeldJob
from holdfast.worker.loop import Loop, cancel_within

log = get_logger("holdfast.worker")

_GATHER_SECONDS = 0.002
_MOST_AT_ONCE = 1000
_LOCKED_SECONDS = 0.1
_TRY_SECONDS = 0.5
_REFUSED_SECONDS, _LONGEST_REFUSED_SECONDS = 0.1, 30.0
"""The first and the longest wait before outcomes that the store refuses are tried again."""


class Finisher:
    def __init__(self, store: Store, written: Callable[[list[HeldJob], list[Fenced]], None]) -> None:
        self._store = store
        self._written = written
        self._pending: list[HeldJob] = []
        self._under_way: list[HeldJob] = []
        self._refused: list[HeldJob] = []
        """Outcomes that the store refuses even one by one. All of them are tried again at `_refused_at`."""
        self._refused_at = 0.0
        self._refused_wait = 0.0
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
        until_refused = self._take_back_refused() if self._refused else None
        if not self._pending:
            return until_refused
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
        if self._pending:
            return 0 if fresh else _LOCKED_SECONDS
        if self._refused:
            return self._refused_wait
        self._refused_wait = 0.0
        self._idle.set()
        return None

    def _report(self, batch: list[HeldJob], answers: list[Fenced]) -> None:
        if self._is_last_chance:
            batch, answers = self._not_over(batch, answers)
        if Fenced.LOCKED in answers:
            self._put_back([each for each, fenced in zip(batch, answers, strict=True) if fenced is Fenced.LOCKED])
            batch = [each for each, fenced in zip(batch, answers, strict=True) if fenced is not Fenced.LOCKED]
            answers = [fenced for fenced in answers if fenced is not Fenced.LOCKED]
        if Fenced.STALE in answers:
            _log_stale(batch, answers)
        self._written(batch, answers)

    def _put_back(self, left: list[HeldJob]) -> None:
        """Retry locked outcomes soon, and refused ones at growing intervals, so that they hold up no others."""
        were_refused = bool(self._refused)
        for held in left:
            (self._refused if held.is_refused and not self._is_last_chance else self._pending).append(held)
        if self._refused and not were_refused:
            self._refused_wait = min(max(_REFUSED_SECONDS, 2 * self._refused_wait), _LONGEST_REFUSED_SECONDS)
            self._refused_at = time.monotonic() + self._refused_wait

    def _take_back_refused(self) -> float:
        """Queue refused outcomes again if it is time; return the seconds until then."""
        left = self._refused_at - time.monotonic()
        if left <= 0:
            self._pending += self._refused
            self._refused = []
        return left

    async def _answers(self, batch: list[HeldJob]) -> list[Fenced]:
        """Write a batch. If the store refuses it, split it in half, because most outcomes are not to blame."""
        try:
            return await self._store.finish([Finish(held.job.lease, held.transition) for held in batch])
        except HoldfastError as error:
            if not isinstance(error, Unstorable | DuplicateJob):
                # Some kind of outage, which says nothing about any outcome.
                raise
            refusal: Exception = error
        except Exception as error:  # noqa: BLE001 - a bug with one outcome must not hold up all the others
            refusal = error
        if len(batch) == 1:
            return [await self._answer(batch[0], refusal)]
        half = len(batch) // 2
        answers = await self._answers(batch[:half])
        try:
            return answers + await self._answers(batch[half:])
        except Exception:  # noqa: BLE001 - the next try meets it again
            return answers + [Fenced.LOCKED] * (len(batch) - half)

    async def _answer(self, held: HeldJob, refusal: Exception) -> Fenced:
        """Handle an outcome that was refused on its own, over a working connection."""
        is_about_data = isinstance(refusal, Unstorable) and refusal.reason != held.refused_without_data
        if isinstance(refusal, Unstorable) and held.transition.has_data and is_about_data:
            bare = without_data(held.transition, refusal.reason)
            try:
                (fenced,) = await self._store.finish([Finish(held.job.lease, bare)])
            except Unstorable as error:
                # The outcome was refused even without its data, so the data are not to blame.
                refusal = error
                held.refused_without_data = error.reason
            else:
                if fenced is Fenced.DONE:
                    held.transition = bare
                    log.error(
                        "outcome written without its data, which the store refuses", **held.named, why=refusal.reason
                    )
                return fenced
        if not held.is_refused:
            held.is_refused = True
            why = refusal.reason if isinstance(refusal, Unstorable) else str(refusal)
            log.error(
                "outcome refused, keeping it and trying again", **held.named, why=why, exc_info=unforeseen(refusal)
            )
        return Fenced.LOCKED

    async def drained(self, seconds: float) -> int:
        """Wait until all outcomes are written. Returns how many are not; their jobs are rescued when the leases end."""
        if self._refused:
            self._refused_at = 0.0
            self._writing.wake()
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
        """Make a last attempt, because the current request may hang and failed ones wait longer and longer.

        This does not wait for any single request either, because each may hang, and a request to an unreachable server
        cannot even be canceled in time.
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
        """The outcomes that are left, starting with those that are in no current request."""
        under_way = {*self._under_way, *(each for task, batch in tries.items() if not task.done() for each in batch)}
        return sorted(self._left(), key=under_way.__contains__)[:_MOST_AT_ONCE]

    def _left(self) -> list[HeldJob]:
        return _once(each for each in (*self._pending, *self._under_way, *self._refused) if not each.is_over)

    def _not_over(self, batch: list[HeldJob], answers: list[Fenced]) -> tuple[list[HeldJob], list[Fenced]]:
        """Leave out outcomes that another request has already written."""
        answered = set(batch)
        self._pending = [each for each in self._pending if each not in answered]
        self._refused = [each for each in self._refused if each not in answered]
        new = [(each, fenced) for each, fenced in zip(batch, answers, strict=True) if not each.is_over]
        for each, fenced in new:
            each.is_over = fenced is not Fenced.LOCKED
        return [each for each, _ in new], [fenced for _, fenced in new]


def _once(each: Iterable[HeldJob]) -> list[HeldJob]:
    return list(dict.fromkeys(each))


def _log_stale(batch: list[HeldJob], answers: list[Fenced]) -> None:
    for held, fenced in zip(batch, answers, strict=True):
        if fenced is Fenced.STALE and not held.has_snoozed and not held.is_withdrawn:
            fence, move = held.job.lease.fence, held.transition.move
            log.warning("outcome refused, lease was lost", **held.named, fence=fence, outcome=move)
