"""The worker: wires claimer, executor, finisher and lease keeper, and stops them in the right order.

It belongs to the process: a slow job carries on in its slot however many ticks go by.

A job's way: `Claimer` adds it to `Slots`, `Starter` gives it a slot, `Executor` turns it into an outcome, `_settle`
turns that into a transition, `Finisher` writes it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from random import Random
from typing import NamedTuple
from uuid import UUID, uuid4

from holdfast.domain.crash_points import reach
from holdfast.domain.duration import to_timedelta
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import FinishInTransaction, Handlers
from holdfast.domain.job import JobState
from holdfast.domain.lifecycle import PLAIN_SUCCESS, Event, Transition, after_outcome
from holdfast.domain.outcome import Outcome, Succeeded
from holdfast.domain.retry import DEFAULT_BACKOFF
from holdfast.log import get_logger
from holdfast.store.contract import Fenced, Finish, Renewer, Store
from holdfast.worker.claimer import Claimer, Turn
from holdfast.worker.executor import Executor, outcome_of_interruption
from holdfast.worker.finisher import Finisher, Pending
from holdfast.worker.held import HeldJob, Interruption, Slots
from holdfast.worker.lease_keeper import GRACE_SECONDS, LeaseKeeper
from holdfast.worker.loop import Loop, cancel_within
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.starter import Starter

log = get_logger("holdfast.worker")

_RESCUE_AT_ONCE = 500
_WATCH_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 1.0
_LAST_STEP_SECONDS = 1.0
_LAST_WRITES_SECONDS = 2.0
_KEEPER_SECONDS = 2.0


class Rescue(NamedTuple):
    """How many were rescued, and in how many seconds to look again."""

    rescued: int
    again_in: float


class Worker:
    """Runs jobs in its slots from `start` to `close`. Who fills the slots, and when, is the queue runner's business."""

    def __init__(
        self,
        store: Store,
        renewer: Callable[[], AbstractAsyncContextManager[Renewer]],
        handlers: Handlers,
        failures: Failures,
        settings: WorkerSettings,
        finish_in: Callable[[], FinishInTransaction | None] = lambda: None,
    ) -> None:
        self.holder: UUID = uuid4()
        self.tally: Counter[str] = Counter()
        """How many attempts ended in each way; "stale" counts outcomes that were refused."""
        self.on_wake: Callable[[], None] = lambda: None
        """Called when there may be something to claim: a slot was freed, or a job of ours is due again."""
        self.on_settled: Callable[[], None] = lambda: None
        """Called when a job is no longer held."""
        self.on_stuck: Callable[[], None] = lambda: None
        """Called once when half of the slots are lost to handlers that cannot be stopped."""
        self.is_stuck = False
        self.unwritten = 0
        """How many outcomes could not be written until the end; their leases run out."""
        self._store = store
        self._settings = settings
        self._random = Random()  # noqa: S311 - spreads retries, guards nothing
        self._slots = Slots(settings.concurrency, settings.most_ahead)
        self._executor = Executor(failures, settings.concurrency, finish_in)
        self._finisher = Finisher(store, self._written)
        self._starter = Starter(self._slots, self._executor.run, self._attempt_over, self._drop_unstarted)
        self._claimer = Claimer(store, self._slots, handlers, self.holder, settings, self._start_claimed)
        self._keeper = LeaseKeeper(
            lambda: list(self._slots.held.values()), renewer, _shortest_lease(handlers, settings), settings.renew_at
        )
        self._stopping = False
        self._writes = Loop("finish", self._finisher.step)
        self._watch = Loop("watch", self._watch_deadlines)
        self._is_watching = False
        self._tasks: list[asyncio.Task[None]] = []
        self._slots.on_freed = self._slot_freed
        self._finisher.on_arrival(self._writes.wake)

    def start(self) -> None:
        log.info("worker started", holder=str(self.holder), concurrency=self._settings.concurrency)
        self._starter.open()
        self._keeper.start()
        self._tasks = [asyncio.create_task(activity.run()) for activity in (self._writes, self._watch)]

    @property
    def is_empty(self) -> bool:
        return not self._slots.held and not self._slots.running

    @property
    def queues(self) -> tuple[str, ...]:
        return self._claimer.queues

    @property
    def is_keeping(self) -> bool:
        """Whether the thread that renews leases is alive."""
        return self._keeper.is_alive

    async def fill(self, limit: int | None = None, *, looks_first: bool = False, to_end: bool = False) -> Turn:
        """Claim as many jobs as there are free slots, `limit` at most, and start them.

        `looks_first`: most likely there is nothing. `to_end`: find nothing only if there is nothing.
        """
        return await self._claimer.step(limit, looks_first=looks_first, to_end=to_end)

    async def rescue(self) -> Rescue:
        """Make jobs whose lease ran out claimable again, whoever held them."""
        started = time.monotonic()
        reach("rescue.before")
        rescued = await self._store.rescue(_RESCUE_AT_ONCE)
        took = time.monotonic() - started
        if rescued:
            reach("rescue.after")
            log.warning("rescued jobs whose lease ran out", count=len(rescued))
        if len(rescued) == _RESCUE_AT_ONCE:
            return Rescue(len(rescued), 0)
        # A rescue scans the leases; while a pinned snapshot keeps dead ones, that takes its time.
        lease = self._settings.lease.total_seconds()
        return Rescue(len(rescued), max(self._settings.rescue_every.total_seconds(), min(20 * took, lease)))

    def stop(self) -> None:
        """Start no handler any more. A claim that is under way may still bring jobs; `close` gives them back."""
        self._stopping = True
        self._starter.stop()

    async def close(self, seconds: float) -> None:
        """Start nothing more, let handlers finish that long, give the rest back, write what is to be written."""
        try:
            await self._shut_down(seconds)
        except asyncio.CancelledError:
            # Whoever cancels is in a hurry, but no handler may run on without anybody who keeps its lease.
            await self._shut_down(0.0)
            raise
        finally:
            self._writes.stop()
            self._watch.stop()
            self._keeper.stop()
            await self._claimer.close()
            # A step that waits for a store that does not answer would keep the worker from ending.
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_LAST_STEP_SECONDS)
            await cancel_within(_LAST_STEP_SECONDS, *self._tasks)
            await asyncio.to_thread(self._keeper.join, _KEEPER_SECONDS)
            self._executor.close()
            log.info("worker stopped", holder=str(self.holder), **self.tally)

    def _start_claimed(self) -> None:
        self._starter.start()
        if not self._is_watching and not self.is_empty:
            self._is_watching = True
            self._watch.wake()

    def _drop_unstarted(self, held: HeldJob) -> None:
        """Interrupted or too late before it had its slot: nothing has run, so the attempt is given back."""
        if held.interruption in (None, Interruption.UNRENEWED):
            self._give_back([held])
        else:
            self._settle(held, outcome_of_interruption(held))

    def _give_back(self, unstarted: list[HeldJob]) -> None:
        for held in unstarted:
            held.settled = True
            self._finisher.put(Pending(held, Finish(held.job.lease, Transition(Event.RELEASE))))

    def _attempt_over(self, held: HeldJob, outcome: Outcome | None) -> None:
        self._settle(held, outcome)
        thread = held.abandoned
        if thread is None or thread.done():
            self._slots.stopped_running(held)
        else:
            log.error(
                "handler's thread cannot be stopped and keeps its slot",
                **held.named,
                why=held.interruption,
            )
            thread.add_done_callback(lambda _: _soon(held.loop, self._slot_over, held))

    def _slot_over(self, held: HeldJob) -> None:
        self._slots.stopped_running(held)
        self._starter.start()

    def _settle(self, held: HeldJob, outcome: Outcome | None) -> None:
        """The only way from a handler's end to the finisher; the first outcome of an attempt stands."""
        if held.settled:
            return
        held.settled = True
        if outcome is None:
            self.tally["lost"] += 1
            self._slots.forget([held])
            return
        self._finisher.put(Pending(held, Finish(held.job.lease, self._transition(held, outcome))))

    def _transition(self, held: HeldJob, outcome: Outcome) -> Transition:
        if isinstance(outcome, Succeeded) and outcome.result is None:
            return PLAIN_SUCCESS
        decide = partial(
            after_outcome,
            outcome,
            attempt=held.job.attempt,
            losses=held.job.losses,
            max_attempts=held.job.max_attempts or held.handler.attempts,
            random=self._random,
        )
        try:
            transition = decide(backoff=held.handler.backoff)
            to_timedelta(transition.delay, "backoff")
        except Exception:
            # An application's own policy. Left to itself, its error would leave the job running for ever.
            log.exception("backoff policy failed, the default one is used", kind=held.job.kind)
            return decide(backoff=DEFAULT_BACKOFF)
        return transition

    def _written(self, batch: list[Pending], answers: list[Fenced]) -> None:
        self._slots.forget([pending.held for pending in batch])
        plain = 0
        for pending, fenced in zip(batch, answers, strict=True):
            transition = pending.finish.transition
            if fenced is Fenced.ALREADY or (fenced is Fenced.DONE and transition is PLAIN_SUCCESS):
                plain += 1
            elif fenced is Fenced.DONE:
                self.tally[transition.event] += 1
                _log_failure(pending.held, transition)
                self._come_back_for(transition)
            else:
                self.tally["stale"] += 1
        if plain:
            self.tally[Event.SUCCEED] += plain

    def _come_back_for(self, transition: Transition) -> None:
        """A job made ready again soon is not left to the next poll."""
        is_soon = transition.at is None and transition.delay < self._settings.longest_wait
        if transition.state is JobState.READY and is_soon:
            asyncio.get_running_loop().call_later(transition.delay.total_seconds(), self.on_wake)

    def _slot_freed(self) -> None:
        self.on_settled()
        if self._claimer.may_have_more:
            self.on_wake()

    async def _watch_deadlines(self) -> float | None:
        """Rests while there is nothing to watch."""
        now = time.monotonic()
        # Jobs turned out slower than the look-ahead expected: others may run them sooner.
        self._give_back(self._slots.give_up_waiting(now - _LONGEST_WAIT_SECONDS))
        for held in list(self._slots.running.values()):
            if held.settled or held.started is None:
                continue
            if held.interruption is not None:
                if now > held.interrupted + GRACE_SECONDS:
                    self._give_up(held)
            elif now > held.started + held.handler.timeout.total_seconds():
                held.interrupt(Interruption.TIMEOUT)
        if self._slots.stuck * 2 >= self._slots.capacity and not self._stopping and not self.is_stuck:
            log.error("half of the slots are held by handlers that cannot be stopped; draining to be restarted")
            self.is_stuck = True
            self.on_stuck()
        self._is_watching = not self.is_empty
        return _WATCH_SECONDS if self._is_watching else None

    def _give_up(self, held: HeldJob) -> None:
        """An async handler that swallows its cancellation: write its outcome without it; it keeps its slot."""
        log.error("handler ignores its cancellation and keeps its slot", **held.named)
        self._settle(held, outcome_of_interruption(held))

    async def _shut_down(self, grace: float) -> None:
        self.stop()
        end = time.monotonic() + grace
        log.info("worker is stopping", running=len(self._slots.running), waiting=len(self._slots.waiting))
        reach("shutdown.release")
        self._give_back(list(self._slots.waiting))
        self._slots.waiting.clear()
        await self._handlers_over(grace)
        for held in list(self._slots.running.values()):
            held.interrupt(Interruption.SHUTDOWN)
        await self._handlers_over(GRACE_SECONDS)
        for held in list(self._slots.running.values()):
            if not held.settled:
                self._give_up(held)
        reach("shutdown.outcomes")
        # In what the handlers have left of the time, so that a store that is out does not double it.
        self.unwritten = await self._finisher.drained(max(end - time.monotonic(), _LAST_WRITES_SECONDS))

    async def _handlers_over(self, seconds: float) -> None:
        tasks = [held.task for held in self._slots.running.values() if held.task is not None and not held.task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)


def _shortest_lease(handlers: Handlers, settings: WorkerSettings) -> float:
    """In seconds: what may come next is looked for as often as it needs, also while nothing is held."""
    return min((handler.lease or settings.lease for handler in handlers), default=settings.lease).total_seconds()


def _log_failure(held: HeldJob, transition: Transition) -> None:
    if transition.error is not None:
        report = log.warning if transition.state.is_dead_letter else log.info
        report(
            "attempt did not succeed" if not transition.state.is_dead_letter else "job is a dead letter now",
            **held.named,
            attempt=held.job.attempt,
            correlation_id=held.job.correlation_id,
            code=transition.error.code,
            # Not its message: it may quote the payload, and logs are read by others than those who may see the job.
            error=transition.error.type,
            then=transition.event,
        )


def _soon(loop: asyncio.AbstractEventLoop, callback: Callable[[HeldJob], None], held: HeldJob) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, held)
