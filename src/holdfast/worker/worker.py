"""The worker: the story of each attempt, from the claim that brought its job to what became of its outcome.

`fill` has jobs claimed and `_attempt` is what happens to each of them. Claimer, executor and finisher do not know each
other. Beside them the lease keeper renews what is held. It belongs to the process: a slow job carries on in its slot
however many ticks go by.
"""

import asyncio
import contextvars
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from random import Random
from typing import NamedTuple
from uuid import UUID

from holdfast.domain.claim import new_holder
from holdfast.domain.crash_points import reach
from holdfast.domain.duration import to_timedelta
from holdfast.domain.failures import Failures, describe
from holdfast.domain.handlers import FinishInTransaction, Handlers
from holdfast.domain.job import JobError, JobState
from holdfast.domain.lease_clock import lease_now
from holdfast.domain.lifecycle import PLAIN_SUCCESS, Move, Transition, after_outcome
from holdfast.domain.outcome import Outcome, Retried, Succeeded
from holdfast.domain.retry import DEFAULT_BACKOFF
from holdfast.domain.signals import Signals
from holdfast.log import get_logger
from holdfast.store.contract import Fenced, Renewer, Store
from holdfast.worker.claimer import Claimer
from holdfast.worker.executor import Executor, outcome_of_interruption
from holdfast.worker.finisher import Finisher
from holdfast.worker.held import HeldJob, Interruption, Slots
from holdfast.worker.lease_keeper import GRACE_SECONDS, LeaseKeeper
from holdfast.worker.loop import Loop, cancel_within
from holdfast.worker.losses import Losses
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.store_time import StoreTime
from holdfast.worker.turn import Turn
from holdfast.worker.unheard import Unheard

log = get_logger("holdfast.worker")

_RESCUE_AT_ONCE = 500
_TURN_SECONDS = 0.0005
"""Start handlers for this long at most, then yield to the event loop, so that claims and outcomes keep moving. With
2 ms a drain takes a fifth longer."""
_WATCH_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 1.0
_LAST_STEP_SECONDS = 1.0
_LAST_WRITES_SECONDS = 2.0
_KEEPER_SECONDS = 2.0
_RELEASE = Transition(Move.RELEASE)
_TASK_CANCELED = JobError(code="ERROR", type="CancelledError", message="the handler's task was canceled")

# Not loop.create_task, because an application's task factory may know nothing of contexts.
_begin: Callable[..., asyncio.Task[None]] = asyncio.Task
if sys.version_info >= (3, 12):
    # The first step is made at once, so that a handler that never waits costs no turn of the loop.
    _begin = partial(asyncio.Task, eager_start=True)


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
        signals: Signals | None = None,
    ) -> None:
        """`signals` are those of the process: it is told when there is something to claim, and when to give up."""
        self.holder: UUID = new_holder()
        self.tally: Counter[str] = Counter()
        """How many attempts ended in each way; "stale" counts outcomes that were refused."""
        self.something_ended = asyncio.Event()
        """A handler is over, or a job is no longer held. Cleared by a claim, and by whoever waits for it."""
        self.is_stuck = False
        """Half of the slots are lost to handlers that cannot be stopped."""
        self.unwritten = 0
        """How many outcomes could not be written until the end; their leases run out."""
        self._store = store
        self._settings = settings
        self._signals = signals or Signals()
        self._random = Random()  # noqa: S311 - spreads retries, guards nothing
        self._slots = Slots(settings.concurrency, settings.most_ahead)
        self._unheard = Unheard(store, self.holder)
        leases = [(handler.lease or settings.lease).total_seconds() for handler in handlers]
        default_lease = settings.lease.total_seconds()
        self._store_time = StoreTime(min(leases, default=default_lease), max(leases, default=default_lease))
        self._claimer = Claimer(
            store, self._slots, handlers, self.holder, settings, self._unheard, self._note_due, self._give_back
        )
        self._executor = Executor(failures, settings.process_limits, finish_in)
        self._finisher = Finisher(store, self._written)
        self._losses = Losses(store)
        self._keeper = LeaseKeeper(
            lambda: list(self._slots.held), renewer, min(leases, default=default_lease), settings.renew_at
        )
        self._watch = Loop("watch", self._watch_deadlines)
        self._context = contextvars.Context()
        self._is_job_due = False
        """A job of ours is ready again."""
        self._next_starts: asyncio.Handle | None = None
        self._is_watching = self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def fill(self, limit: int | None = None, *, looks_first: bool = False, to_end: bool = False) -> Turn:
        """Claim as many jobs as there are free slots, `limit` at most, and start them.

        `looks_first`: most likely there is nothing. `to_end`: find nothing only if there is nothing.
        """
        # Before the claim and not after it: what comes meanwhile must not be forgotten.
        self._is_job_due = False
        self.something_ended.clear()
        try:
            turn = await self._claimer.step(limit, looks_first=looks_first, to_end=to_end)
        finally:
            self._start_waiting()
        if turn.claimed and turn.is_idle:
            # Not at full speed: the handlers begin before anything else is done for this turn.
            await asyncio.sleep(0)
        return turn

    def _start_soon(self) -> None:
        """Once for all attempts that end in one turn of the loop."""
        if self._next_starts is None and not self._is_stopping:
            loop = asyncio.get_running_loop()
            self._next_starts = loop.call_soon(self._start_waiting, context=self._context)

    def _start_waiting(self) -> None:
        """Give waiting jobs their slots and begin their attempts, for one turn of the loop at most."""
        if self._next_starts is not None:
            self._next_starts.cancel()
            self._next_starts = None
        if self._is_stopping:
            # A claim that was under way when the worker was told to stop.
            self._give_back_unstarted()
        turn_ends = time.monotonic() + _TURN_SECONDS
        while not self._is_stopping and (held := self._slots.next_to_start()) is not None:
            context = self._context.copy()
            task = _begin(self._attempt(held), loop=held.loop, name=held.handler.kind, context=context)
            if not task.done():
                held.task = task
            if time.monotonic() > turn_ends:
                self._start_soon()
                break
        self._note_room()
        if not self._is_watching and not self.is_empty:
            self._is_watching = True
            self._watch.wake()

    async def _attempt(self, held: HeldJob) -> None:
        """The story of an attempt: start it, execute it, decide what that does to its job, hand that over."""
        if self._may_start(held):
            try:
                outcome = await self._executor.run(held)
            except BaseException as error:  # noqa: BLE001 - whatever it was, the attempt is over
                outcome = _unforeseen(error)
            transition = self._decide(held, outcome)
        else:
            transition = self._unstarted(held)
        self._hand_over(held, transition)
        self._leave_slot(held)

    def _may_start(self, held: HeldJob) -> bool:
        """False if the job was interrupted while it waited, or if its lease is about to end: the claim was answered
        late or the process was paused, and another worker may be running the job."""
        held.started = lease_now()
        return held.interruption is None and not held.nears_end(held.started) and not self._is_stopping

    def _decide(self, held: HeldJob, outcome: Outcome | None) -> Transition | None:
        if outcome is None:
            return None
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

    def _unstarted(self, held: HeldJob) -> Transition | None:
        """Nothing has run, so the attempt is given back unless the job is canceled or no longer ours."""
        if held.interruption in (Interruption.CANCELED, Interruption.LEASE_LOST):
            return self._decide(held, outcome_of_interruption(held))
        return _RELEASE

    def _hand_over(self, held: HeldJob, transition: Transition | None) -> None:
        """The only way to the finisher; the first outcome of an attempt stands. None: the lease is gone."""
        if held.settled:
            return
        held.settled = True
        if transition is not None:
            self._finisher.put(held, transition)
        else:
            self.tally["lost"] += 1
            self._losses.note(held.job.lease)
            self._slots.forget([held])
            self.something_ended.set()

    def _leave_slot(self, held: HeldJob) -> None:
        """To the next job, unless there is a thread that cannot be stopped."""
        if held.task is not None:
            # Tasks are many objects, and outcomes wait for a while until they are written.
            held.task = None
        thread = held.abandoned
        if thread is None or thread.done():
            self._slots.stopped_running(held)
            self.something_ended.set()
            self._start_soon()
        else:
            log.error("handler's thread cannot be stopped and keeps its slot", **held.named, why=held.interruption)
            thread.add_done_callback(lambda _: _soon(held.loop, self._leave_slot, held))

    def _written(self, batch: list[HeldJob], answers: list[Fenced]) -> None:
        """The end of the story: what the store says to each outcome."""
        self._slots.forget(batch)
        self.something_ended.set()
        self._note_room()
        plain = 0
        for held, fenced in zip(batch, answers, strict=True):
            transition = held.transition
            if fenced is Fenced.ALREADY or (fenced is Fenced.DONE and transition is PLAIN_SUCCESS):
                plain += 1
            elif fenced is Fenced.DONE:
                self.tally[transition.move] += 1
                _log_failure(held, transition)
                self._come_back_for(transition)
            else:
                self.tally["stale"] += 1
                self._losses.note(held.job.lease)
        if plain:
            self.tally[Move.SUCCEED] += plain

    def _note_room(self) -> None:
        """Once for a turn of the loop or a batch of outcomes: for each job it would cost more than the job does."""
        if self.may_claim:
            self._signals.changed.set()

    def _note_due(self) -> None:
        self._is_job_due = True
        self._signals.changed.set()

    def _come_back_for(self, transition: Transition) -> None:
        """A job made ready again soon is not left to the next poll."""
        is_soon = transition.at is None and transition.delay < self._settings.longest_wait
        if transition.state is JobState.READY and is_soon:
            asyncio.get_running_loop().call_later(transition.delay.total_seconds(), self._note_due)

    @property
    def may_claim(self) -> bool:
        """Since the last claim there is room or a job has come due, so that another one may bring something."""
        has_ended = self.something_ended.is_set() and self._claimer.may_have_more
        return self._is_job_due or (has_ended and self._slots.wanted > 0)

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

    async def rescue(self) -> Rescue:
        """Make jobs whose lease ran out claimable again, whoever held them."""
        started = time.monotonic()
        reach("rescue.before")
        asked = lease_now()
        moment = await self._store.now()
        ended_by = self._store_time.ended_by(moment, asked, lease_now())
        rescued = await self._store.rescue(_RESCUE_AT_ONCE, ended_by)
        took = time.monotonic() - started
        if rescued:
            reach("rescue.after")
            log.warning("rescued jobs whose lease ran out", count=len(rescued))
        if len(rescued) == _RESCUE_AT_ONCE:
            return Rescue(len(rescued), 0)
        # A rescue scans the leases; while a pinned snapshot keeps dead ones, that takes its time.
        lease = self._settings.lease.total_seconds()
        return Rescue(len(rescued), max(self._settings.rescue_every.total_seconds(), min(20 * took, lease)))

    def start(self) -> None:
        log.info("worker started", holder=str(self.holder), concurrency=self._settings.concurrency)
        # Every attempt has a copy of it: none inherits anything from another.
        self._context = contextvars.copy_context()
        self._keeper.start()
        loops = (self._finisher, self._watch, self._unheard, self._losses)
        self._tasks = [asyncio.create_task(each.run()) for each in loops]

    def stop(self) -> None:
        """Start no handler any more. A claim that is under way may still bring jobs; `close` gives them back."""
        self._is_stopping = True
        self.something_ended.set()

    async def close(self, seconds: float) -> None:
        """Start nothing more, let handlers finish that long, give the rest back, write what is to be written."""
        try:
            await self._shut_down(seconds)
        except asyncio.CancelledError:
            # Whoever cancels is in a hurry, but no handler may run on without anybody who keeps its lease.
            await self._shut_down(0.0)
            raise
        finally:
            self._finisher.stop()
            self._watch.stop()
            self._unheard.stop()
            self._losses.stop()
            self._keeper.stop()
            await self._claimer.close()
            await self._unheard.close()
            # A step that waits for a store that does not answer would keep the worker from ending.
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_LAST_STEP_SECONDS)
            await cancel_within(_LAST_STEP_SECONDS, *self._tasks)
            await self._losses.close()
            await asyncio.to_thread(self._keeper.join, _KEEPER_SECONDS)
            self._executor.close()
            log.info("worker stopped", holder=str(self.holder), **self.tally)

    async def _shut_down(self, grace: float) -> None:
        self.stop()
        end = time.monotonic() + grace
        log.info("worker is stopping", running=len(self._slots.running), waiting=len(self._slots.waiting))
        reach("shutdown.release")
        self._give_back_unstarted()
        for held in list(self._slots.running):
            if held.waits_for_process:
                held.interrupt(Interruption.SHUTDOWN)
        await self._handlers_over(grace)
        for held in list(self._slots.running):
            held.interrupt(Interruption.SHUTDOWN)
        await self._handlers_over(GRACE_SECONDS)
        for held in list(self._slots.running):
            if not held.settled:
                self._give_up(held)
        reach("shutdown.outcomes")
        # In what the handlers have left of the time, so that a store that is out does not double it.
        self.unwritten = await self._finisher.drained(max(end - time.monotonic(), _LAST_WRITES_SECONDS))

    async def _handlers_over(self, seconds: float) -> None:
        tasks = [held.task for held in self._slots.running if held.task is not None and not held.task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def _watch_deadlines(self) -> float | None:
        """Rests while there is nothing to watch."""
        now = lease_now()
        # Jobs turned out slower than the look-ahead expected: others may run them sooner.
        self._give_back(self._slots.give_up_waiting(now - _LONGEST_WAIT_SECONDS))
        for held in list(self._slots.running):
            if held.started is None:
                self._clear_slot_of_unstarted(held)
            elif held.settled:
                continue
            elif held.interruption is not None:
                if now > held.interrupted + GRACE_SECONDS:
                    self._give_up(held)
            elif now > held.started + held.handler.timeout.total_seconds():
                held.interrupt(Interruption.TIMEOUT)
        if self._slots.stuck * 2 >= self._slots.capacity and not self._is_stopping and not self.is_stuck:
            log.error("half of the slots are held by handlers that cannot be stopped; draining to be restarted")
            self.is_stuck = True
            self._signals.stop.set()
        self._is_watching = not self.is_empty
        return _WATCH_SECONDS if self._is_watching else None

    def _clear_slot_of_unstarted(self, held: HeldJob) -> None:
        """A task that somebody canceled before its first step has run nothing of the attempt's."""
        if held.task is not None and held.task.done():
            self._give_back([held])
            self._leave_slot(held)

    def _give_back_unstarted(self) -> None:
        self._give_back(self._slots.take_waiting())
        self._give_back(self._slots.take_suspects())

    def _give_back(self, unstarted: list[HeldJob]) -> None:
        for held in unstarted:
            self._hand_over(held, _RELEASE)

    def _give_up(self, held: HeldJob) -> None:
        """An async handler that swallows its cancellation: write its outcome without it; it keeps its slot."""
        log.error("handler ignores its cancellation and keeps its slot", **held.named)
        self._hand_over(held, self._decide(held, outcome_of_interruption(held)))


def _unforeseen(error: BaseException) -> Outcome:
    """Such as a cancellation by the handler itself, or what a validator of the application's raises."""
    return Retried(_TASK_CANCELED if isinstance(error, asyncio.CancelledError) else describe(error, "ERROR"))


def _log_failure(held: HeldJob, transition: Transition) -> None:
    if transition.error is not None and transition.move is not Move.SUCCEED:
        report = log.warning if transition.state.is_dead_letter else log.info
        report(
            "attempt did not succeed" if not transition.state.is_dead_letter else "job is a dead letter now",
            **held.named,
            attempt=held.job.attempt,
            correlation_id=held.job.correlation_id,
            code=transition.error.code,
            # Not its message: it may quote the payload, and logs are read by others than those who may see the job.
            error=transition.error.type,
            then=transition.move,
        )


def _soon(loop: asyncio.AbstractEventLoop, callback: Callable[[HeldJob], None], held: HeldJob) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, held)
