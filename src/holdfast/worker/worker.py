"""The worker: the story of each attempt, from the claim that brought its job to the store's answer to its outcome.

`fill` claims jobs, and `_attempt` is what happens to each of them. Claimer, executor and finisher do not know each
other. Alongside them, the lease keeper renews what is held. The worker belongs to the process: a slow job stays in its
slot no matter how many ticks go by.
"""

import asyncio
import contextvars
import math
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
from holdfast.domain.handlers import FinishInTransaction, Handlers, Isolation
from holdfast.domain.job import JobError, JobState
from holdfast.domain.lease_clock import lease_now
from holdfast.domain.lifecycle import PLAIN_SUCCESS, Move, Transition, after_outcome
from holdfast.domain.outcome import Outcome, Retried, Succeeded, Unstarted
from holdfast.domain.retry import DEFAULT_BACKOFF
from holdfast.domain.shared_process import SharedProcess
from holdfast.domain.signals import Signals
from holdfast.logs.records import get_logger
from holdfast.store.contract import Fenced, Renewer, Rescued, Store
from holdfast.worker.attempt_log import AttemptLog
from holdfast.worker.blocked import BlockedLoop
from holdfast.worker.claimer import Claimer
from holdfast.worker.executor import Executor, outcome_of_interruption
from holdfast.worker.finisher import Finisher
from holdfast.worker.held import HeldJob, Interruption, Slots
from holdfast.worker.hooks import Hooks
from holdfast.worker.lease_keeper import GRACE_SECONDS, LeaseKeeper
from holdfast.worker.loop import Loop, cancel_within, in_thread_or_here
from holdfast.worker.losses import Losses
from holdfast.worker.not_stopped import noted
from holdfast.worker.settings import WorkerSettings
from holdfast.worker.starts import Starts
from holdfast.worker.store_time import StoreTime
from holdfast.worker.turn import Turn
from holdfast.worker.unheard import Unheard

log = get_logger("holdfast.worker")

_RESCUE_AT_ONCE = 500
_TURN_SECONDS = 0.0005
"""Start handlers for at most this long, then yield to the event loop, so that claims and outcomes keep moving. With
2 ms, a drain takes a fifth longer."""
_WATCH_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 1.0
_LAST_STEP_SECONDS = 1.0
_LAST_WRITES_SECONDS = 2.0
_KEEPER_SECONDS = 2.0
_SAY_AGAIN_SECONDS = 30.0
_GOES_ON = "handler was told to stop but is still running; it keeps its slot until it ends"
_RELEASE = Transition(Move.RELEASE)
_TASK_CANCELED = JobError(code="ERROR", type="CancelledError", message="the handler's task was canceled")

# Not loop.create_task, because an application's task factory may not support contexts.
_begin: Callable[..., asyncio.Task[None]] = asyncio.Task
if sys.version_info >= (3, 12):
    # The first step runs immediately, so that a handler that never waits costs no turn of the loop.
    _begin = partial(asyncio.Task, eager_start=True)


class Rescue(NamedTuple):
    """How many jobs were rescued, and in how many seconds to look again."""

    rescued: int
    again_in: float


class Worker:
    """Runs jobs in its slots from `start` to `close`. The queue runner decides when to fill the slots."""

    def __init__(
        self,
        store: Store,
        renewer: Callable[[], AbstractAsyncContextManager[Renewer]],
        handlers: Handlers,
        failures: Failures,
        settings: WorkerSettings,
        finish_in: Callable[[], FinishInTransaction | None] = lambda: None,
        signals: Signals | None = None,
        hooks: Hooks | None = None,
        process: SharedProcess | None = None,
    ) -> None:
        """`signals` belong to the process; the worker sets them when there is something to claim and when to stop.
        `process` is shared with the other workers and the inline runners of the process."""
        self.holder: UUID = new_holder()
        self.tally: Counter[str] = Counter()
        """The number of attempts by how they ended. "stale" counts outcomes that were refused."""
        self.something_ended = asyncio.Event()
        """A handler has ended, or a job is no longer held. Cleared by a claim, and by the code that waits for it."""
        self.is_stuck = False
        """Whether half of the slots are lost to handlers that cannot be stopped, or handlers cannot be started."""
        self.unwritten = 0
        """How many outcomes could not be written before the end; their leases will expire."""
        self._store = store
        self._settings = settings
        self._signals = signals or Signals()
        self._random = Random()  # noqa: S311 - spreads retries, guards nothing
        self._slots = Slots(settings.concurrency, settings.most_ahead)
        self._unheard = Unheard(store, self.holder)
        leases = [(handler.lease or settings.lease).total_seconds() for handler in handlers]
        default_lease = settings.lease.total_seconds()
        self._store_time = StoreTime()
        self._starts = Starts(self._note_due, self._end_stuck)
        self._claimer = Claimer(
            *(store, self._slots, handlers, self.holder, settings, self._unheard, self._note_due, self._give_back),
            *(self._starts, process or SharedProcess()),
        )
        self._executor = Executor(failures, settings.process_limits, finish_in, hooks, self._starts)
        self._finisher = Finisher(store, self._written)
        self._losses = Losses(store)
        self._blocked = BlockedLoop(settings.log_blocked.total_seconds(), lambda: list(self._slots.running))
        self._keeper = LeaseKeeper(
            *(lambda: list(self._slots.held), renewer, min(leases, default=default_lease), settings.renew_at),
            *(self._blocked.look, lambda: self._blocked.is_blocked),
        )
        self._attempts = AttemptLog(settings)
        self._shortest_timeout = min((handler.timeout.total_seconds() for handler in handlers), default=math.inf)
        self._watch = Loop("watch", self._watch_deadlines)
        self._context = contextvars.Context()
        self._is_job_due = False
        """Whether a job of ours is ready again."""
        self._next_starts: asyncio.Handle | None = None
        self._is_watching = self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def fill(self, limit: int | None = None, *, looks_first: bool = False, to_end: bool = False) -> Turn:
        """Claim as many jobs as there are free slots, up to `limit`, and start them.

        `looks_first`: there is probably nothing to claim. `to_end`: return nothing only if there really is nothing.
        """
        # Cleared before the claim, not after it, so that nothing that happens during the claim is lost.
        self._is_job_due = False
        self.something_ended.clear()
        try:
            turn = await self._claimer.step(limit, looks_first=looks_first, to_end=to_end)
        finally:
            self._start_waiting()
        if turn.claimed and turn.is_idle:
            # The worker is not at full load, so let the handlers begin before anything else happens in this turn.
            await asyncio.sleep(0)
        return turn

    def _start_soon(self) -> None:
        """Schedule one call of `_start_waiting` for all attempts that end in this turn of the loop."""
        if self._next_starts is None and not self._is_stopping:
            loop = asyncio.get_running_loop()
            self._next_starts = loop.call_soon(self._start_waiting, context=self._context)

    def _start_waiting(self) -> None:
        """Give waiting jobs their slots and begin their attempts, for at most one turn of the loop."""
        if self._next_starts is not None:
            self._next_starts.cancel()
            self._next_starts = None
        if self._is_stopping:
            # A claim was in progress when the worker was told to stop.
            self._give_back_unstarted()
        self._blocked.turned()
        turn_ends = lease_now() + _TURN_SECONDS
        while not self._is_stopping and (held := self._slots.next_to_start()) is not None:
            context = self._context.copy()
            task = _begin(self._attempt(held), loop=held.loop, name=held.handler.kind, context=context)
            if not task.done():
                held.task = task
            if (held.ended or lease_now()) > turn_ends:
                self._start_soon()
                break
        self._note_room()
        if self.is_empty:
            self._blocked.rests()
        elif not self._is_watching:
            self._is_watching = True
            self._watch.wake()

    async def _attempt(self, held: HeldJob) -> None:
        """The story of an attempt: start it, execute it, decide what happens to its job, hand that over."""
        if self._may_start(held):
            try:
                outcome = await self._executor.run(held)
            except BaseException as error:  # noqa: BLE001 - whatever was raised, the attempt is over
                outcome = _unforeseen(error)
            held.ended = lease_now()
            transition = self._decide(held, outcome)
            if held.interruption is not None or held.ended - (held.started or 0.0) > self._shortest_timeout:
                if held.goes_on and not (held.settled and self._is_stopping):
                    log.warning("handler that could not be stopped has ended", **held.named, why=held.interruption)
                transition = noted(held, outcome, transition)
        else:
            transition = self._unstarted(held)
        self._hand_over(held, transition)
        self._leave_slot(held)

    def _may_start(self, held: HeldJob) -> bool:
        """Return False if the job was interrupted while it waited, or if its lease is about to end because the claim
        was answered late or the process was paused: another worker may be running the job."""
        now = lease_now()
        return held.start(now) and held.interruption is None and not held.nears_end(now) and not self._is_stopping

    def _decide(self, held: HeldJob, outcome: Outcome | None) -> Transition | None:
        if outcome is None:
            return None
        if isinstance(outcome, Succeeded) and outcome.result is None:
            return PLAIN_SUCCESS
        if isinstance(outcome, Unstarted):
            self._starts.failed(held.handler, outcome.error)
            return _RELEASE
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
            # The application's own policy failed. If the error went unhandled, the job would stay `running` forever.
            log.exception("backoff policy failed, using the default", kind=held.job.kind)
            return decide(backoff=DEFAULT_BACKOFF)
        return transition

    def _unstarted(self, held: HeldJob) -> Transition | None:
        """Nothing has run, so give the attempt back, unless the job is canceled or no longer ours."""
        if held.interruption in (Interruption.CANCELED, Interruption.LEASE_LOST):
            return self._decide(held, outcome_of_interruption(held))
        return _RELEASE

    def _hand_over(self, held: HeldJob, transition: Transition | None) -> None:
        """The only way to the finisher. The first outcome of an attempt counts. None means that the lease is gone."""
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
        """Free the slot for the next job."""
        if held.task is not None:
            # A task consists of many objects, and it takes a while until the outcome is written.
            held.task = None
        self._slots.stopped_running(held)
        self.something_ended.set()
        self._start_soon()

    def _written(self, batch: list[HeldJob], answers: list[Fenced]) -> None:
        """The end of the story: the store's answer to each outcome."""
        self._slots.forget(batch)
        self.something_ended.set()
        self._note_room()
        plain, has_all = 0, self._attempts.has_all
        for held, fenced in zip(batch, answers, strict=True):
            transition = held.transition
            if fenced is Fenced.DONE and transition is PLAIN_SUCCESS:
                plain += 1
                if has_all:
                    self._attempts.succeeded(held)
            elif fenced is Fenced.ALREADY or (fenced is Fenced.STALE and held.has_snoozed):
                self.tally[held.finish_requested or Move.SUCCEED] += 1
                self._attempts.finished(held)
            elif fenced is Fenced.DONE or held.is_withdrawn:
                # The lease keeper itself has usually given back the jobs that it withdrew.
                self.tally[transition.move] += 1
                self._attempts.ended(held, transition)
                self._come_back_for(transition)
            else:
                self.tally["stale"] += 1
                self._losses.note(held.job.lease)
        if plain:
            self.tally[Move.SUCCEED] += plain

    def _note_room(self) -> None:
        """Signal that there is room. Called once per turn or batch: once per job would cost more than the job."""
        if self.may_claim:
            self._signals.changed.set()

    def _note_due(self) -> None:
        self._is_job_due = True
        self._signals.changed.set()

    def _come_back_for(self, transition: Transition) -> None:
        """If a job becomes ready again soon, do not leave it to the next poll."""
        is_soon = transition.at is None and transition.delay < self._settings.longest_wait
        if transition.state is JobState.READY and is_soon:
            asyncio.get_running_loop().call_later(transition.delay.total_seconds(), self._note_due)

    @property
    def may_claim(self) -> bool:
        """Whether a slot was freed or a job came due since the last claim, so that another claim may find something."""
        has_ended = self.something_ended.is_set() and self._claimer.may_have_more
        return self._is_job_due or (has_ended and self._slots.wanted > 0)

    @property
    def is_empty(self) -> bool:
        return not self._slots.held and not self._slots.running

    @property
    def queues(self) -> tuple[str, ...]:
        return self._claimer.queues

    @property
    def not_started(self) -> str | None:
        """Why handlers of some kind cannot be started, if that is so."""
        return self._starts.trouble

    @property
    def is_keeping(self) -> bool:
        """Whether the thread that renews leases is alive."""
        return self._keeper.is_alive

    async def rescue(self) -> Rescue:
        """Make jobs whose lease has expired claimable again, no matter which worker held them."""
        started = time.monotonic()
        reach("rescue.before")
        asked = lease_now()
        moment = await self._store.now()
        rescued: list[Rescued] = []
        for ended in self._store_time.ended(moment, asked, lease_now()):
            rescued += await self._store.rescue(_RESCUE_AT_ONCE - len(rescued), ended)
        took = time.monotonic() - started
        if rescued:
            reach("rescue.after")
            log.warning("rescued jobs whose lease had expired", count=len(rescued))
        if len(rescued) == _RESCUE_AT_ONCE:
            return Rescue(len(rescued), 0)
        # A rescue scans the leases, which is slow while a pinned snapshot keeps dead ones around.
        lease = self._settings.lease.total_seconds()
        return Rescue(len(rescued), max(self._settings.rescue_every.total_seconds(), min(20 * took, lease)))

    def expect(self) -> None:
        """Keep inline runners from beginning before this worker has begun, because it begins with suspects."""
        self._claimer.suspects.expect()

    def has_begun(self) -> None:
        """The first turn is over, even if it failed."""
        self._claimer.suspects.has_begun()

    def start(self) -> None:
        # First, because it fails if no thread can be started, and the worker then starts later.
        self._keeper.start()
        log.info("worker started", holder=str(self.holder), concurrency=self._settings.concurrency)
        self._attempts.start()
        self._blocked.start()
        # Every attempt gets a copy of this context, so that none inherits anything from another.
        self._context = contextvars.copy_context()
        loops = (self._finisher, self._watch, self._unheard, self._losses)
        self._tasks = [asyncio.create_task(each.run()) for each in loops]

    def stop(self) -> None:
        """Start no more handlers. A claim in progress may still bring jobs; `close` gives them back."""
        self._is_stopping = True
        self.something_ended.set()

    async def close(self, seconds: float) -> None:
        """Start nothing more, give handlers this long to finish, give the rest back and write all outcomes."""
        try:
            await self._shut_down(seconds)
        except asyncio.CancelledError:
            # A cancellation is urgent, but no handler may keep running while nothing renews its lease.
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
            # Bounded, because a step may be waiting for a store that does not answer.
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_LAST_STEP_SECONDS)
            await cancel_within(_LAST_STEP_SECONDS, *self._tasks)
            await self._losses.close()
            await in_thread_or_here(partial(self._keeper.join, _KEEPER_SECONDS))
            await in_thread_or_here(self._executor.close)
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
        await self._signals.unless_hurried(self._handlers_over(grace))
        for held in list(self._slots.running):
            held.interrupt(Interruption.SHUTDOWN)
        await self._handlers_over(GRACE_SECONDS)
        for held in list(self._slots.running):
            if not held.settled:
                self._give_up(held)
        reach("shutdown.outcomes")
        # Use only the time that the handlers left over, so that an outage does not double the shutdown time.
        left = max(end - time.monotonic(), _LAST_WRITES_SECONDS)
        unwritten = await self._signals.unless_hurried(self._finisher.drained(left))
        self.unwritten = await self._finisher.drained(_LAST_WRITES_SECONDS) if unwritten is None else unwritten

    async def _handlers_over(self, seconds: float) -> None:
        running = [held for held in self._slots.running if not held.goes_on]
        tasks = [held.task for held in running if held.task is not None and not held.task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def _watch_deadlines(self) -> float | None:
        """Check the deadlines of running handlers. Rests while there is nothing to watch."""
        now = lease_now()
        self._blocked.turned()
        # Jobs have turned out slower than the look-ahead expected, and other workers may run these sooner.
        self._give_back(self._slots.give_up_waiting(now - _LONGEST_WAIT_SECONDS))
        for held in list(self._slots.running):
            if held.started is None:
                self._clear_slot_of_unstarted(held)
            elif held.interruption is not None:
                self._look_at_told(held, now)
            elif not held.settled and now > held.started + held.handler.timeout.total_seconds():
                held.interrupt(Interruption.TIMEOUT)
        if self._slots.stuck * 2 >= self._slots.capacity and not self._is_stopping and not self.is_stuck:
            log.error("half of the slots are held by handlers that cannot be stopped; draining for a restart")
            self._end_stuck()
        self._is_watching = not self.is_empty
        if not self._is_watching:
            self._blocked.rests()
        return _WATCH_SECONDS if self._is_watching else None

    def _end_stuck(self) -> None:
        self.is_stuck = True
        self._signals.stop.set()

    def _clear_slot_of_unstarted(self, held: HeldJob) -> None:
        """If the task was canceled before its first step, no part of the attempt has run: give the job back."""
        if held.task is not None and held.task.done():
            self._give_back([held])
            self._leave_slot(held)

    def _give_back_unstarted(self) -> None:
        self._give_back(self._slots.take_waiting())
        self._give_back(self._slots.take_suspects())

    def _give_back(self, unstarted: list[HeldJob]) -> None:
        for held in unstarted:
            self._hand_over(held, _RELEASE)

    def _look_at_told(self, held: HeldJob, now: float) -> None:
        """Handle a handler that was told to stop. A thread cannot be stopped, and a coroutine may ignore it. The job
        stays ours, because a second attempt would run alongside this one."""
        patience = 0.0 if held.handler.isolation is Isolation.THREAD else GRACE_SECONDS
        if now <= held.interrupted + patience:
            return
        held.goes_on = True
        if held.interruption is Interruption.LEASE_LOST:
            self._hand_over(held, None)
        if now >= held.said_again:
            seconds = round(now - held.interrupted, 1)
            held.said_again = now + max(_SAY_AGAIN_SECONDS, seconds)
            log.error(_GOES_ON, **held.named, why=held.interruption, seconds=seconds)

    def _give_up(self, held: HeldJob) -> None:
        """The worker is ending, and a handler that cannot be stopped ends with the process: write its outcome now."""
        log.error("handler cannot be stopped and is left behind, its job is given back", **held.named)
        self._hand_over(held, self._decide(held, outcome_of_interruption(held)))
        if held.task is not None:
            held.task.cancel()


def _unforeseen(error: BaseException) -> Outcome:
    """The outcome for an unexpected error, such as a cancellation by the handler itself or an error in a validator."""
    return Retried(_TASK_CANCELED if isinstance(error, asyncio.CancelledError) else describe(error, "ERROR"))
