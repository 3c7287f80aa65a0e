"""The world of one schedule: processes of the real engine, producers and operators, and all faults that hit them.

Neighbors: `network.py` connects processes to the store, `plan.py` decides everything beforehand, `oracle.py` judges.
"""

import asyncio
import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import cast
from uuid import UUID

from holdfast.domain.cron import Missed
from holdfast.domain.errors import Cancel, Permanent, Retryable, Snooze
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import Handlers, RunningJob, make_handler
from holdfast.domain.job import Lease, NewJob
from holdfast.domain.json_text import Json
from holdfast.domain.signals import Signals
from holdfast.runtime.background import Background
from holdfast.runtime.pacing import Pacing
from holdfast.runtime.queue_runner import QUEUE, QueueRunner
from holdfast.runtime.queue_runs import QueueRuns
from holdfast.runtime.tick import TickLimits
from holdfast.scheduling.board import ScheduleBoard
from holdfast.scheduling.job_schedules import JobSchedules
from holdfast.scheduling.schedules import Declared, job_template, to_timing
from holdfast.store.contract import JobFilter, Store
from holdfast.store.memory.schedules import MemoryRuns, MemorySchedules
from holdfast.store.memory.store import MemoryClock
from holdfast.store.schedules import NewSchedule
from holdfast.worker.worker import Worker
from holdfast_lab.faults.simulation.engine import replaced_names
from holdfast_lab.faults.simulation.lanes import LanedStore
from holdfast_lab.faults.simulation.loop import Machine, VirtualLoop, nothing
from holdfast_lab.faults.simulation.network import Link, done, tell
from holdfast_lab.faults.simulation.oracle import Oracle
from holdfast_lab.faults.simulation.plan import (
    AT_ONCE,
    EPOCH,
    FEWEST_STEPS,
    NARROW,
    QUICK,
    TIMEOUT_SECONDS,
    USUAL,
    Act,
    Attempt,
    Plan,
    PlannedJob,
    draw_plan,
)
from holdfast_lab.faults.simulation.witness import Ending

SCHEDULE = "every second"
MOST_STEPS = 300_000
_PATIENCE_SECONDS = 90.0
"""How long everything may take after the last fault, including retries, snoozes and the turns of suspects."""
_STOP_SECONDS = 30.0
_LONGEST_COMMIT_SECONDS = 1.0
_MORE_SECONDS = 0.1
_NARROW_LEASE = timedelta(seconds=0.5)
_FAILURES = Failures()


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311 - a schedule must be repeatable from its seed
        self.plan: Plan = draw_plan(self.random)
        self.machine = Machine(self.random, is_orderly=self.plan.weather.is_orderly)
        self.oracle = Oracle(self.machine.monotonic, self.plan.settings.lease.total_seconds())
        self.store = LanedStore()
        self.store.clock = _VirtualClock(self.machine)
        self.runs = MemoryRuns(self.store)
        self.schedules = MemorySchedules(self.store, self.runs)
        self.processes: list[Process] = []
        self._ended: list[Process] = []
        self.is_calm = False
        self._born = 0
        self._to_come = 0
        self._planned: dict[UUID, PlannedJob] = {}
        self._resting: list[tuple[Process, Lease, asyncio.Future[None]]] = []
        self._ids = 0
        self._first_occurrence: datetime | None = None

    def run(self) -> Oracle:
        machine, oracle = self.machine, self.oracle
        machine.on_failure = lambda what: oracle.blame("unforeseen error", "", what)
        with replaced_names(machine, self.random, lambda what: oracle.blame("unforeseen error", "", what)):
            self._begin()
            machine.run(self._is_over, until=machine.now + self.plan.seconds + _PATIENCE_SECONDS)
            is_over = self._is_over()
            if not oracle.violations:
                self._judge(is_over=is_over)
            if not oracle.violations:
                self._stop_last()
            for process in list(self.processes):
                process.end()
            for process in self._ended:
                process.bury()
        return oracle

    def _begin(self) -> None:
        machine, random, weather, seconds = self.machine, self.random, self.plan.weather, self.plan.seconds
        for _ in range(self.plan.processes):
            machine.after(random.uniform(0.0, 0.1), self.bear)
        for at, jobs in self.plan.bursts:
            self._to_come += 1
            is_late = random.random() < weather.late
            machine.after(at, self._begin_late if is_late else self._enqueue, jobs)
        for move, times in (
            (self._kill_any, weather.deaths),
            (self._stop_any, weather.shutdowns),
            (self._cut_off_any, weather.outages),
            (self._cancel_any, weather.cancels),
            (self._retry_any, weather.retries),
        ):
            for _ in range(times):
                machine.after(random.uniform(0.1, 1.0) * seconds, move)
        machine.after(seconds, self._calm_down)
        machine.on_jolt = self._jolt
        machine.jolt_in = random.expovariate(1 / weather.jolt_every)

    def _is_over(self) -> bool:
        oracle = self.oracle
        if oracle.violations:
            return True
        if self.machine.steps > MOST_STEPS:
            oracle.blame("stuck", "", f"{MOST_STEPS} steps and no end")
        return self.is_calm and not oracle.unfinished and not self._to_come

    def _judge(self, *, is_over: bool) -> None:
        found = done(self.store.list(JobFilter(), 10_000))
        self.oracle.check_end({job.id: job for job in found}, is_over=is_over)
        for schedule in done(self.schedules.list()):
            occurrence = self._first_occurrence or EPOCH
            expected = []
            while occurrence < schedule.next_occurrence:
                expected.append(occurrence)
                occurrence = _DECLARED[0].timetable.next_after(occurrence)
            self.oracle.check_occurrences(schedule.name, expected)

    def _stop_last(self) -> None:
        """Check that an undisturbed orderly end leaves nothing behind. Earlier ends may have been disturbed.

        One process is enough, because they are all alike by now.
        """
        machine = self.machine
        process = self.random.choice([process for process in self.processes if process.is_serving])
        process.background.stop()
        # The machine asks whether it is over only after an event outside the loops, so make the end one.
        process.task.add_done_callback(lambda _: machine.after(0.0, nothing))
        machine.run(process.task.done, until=machine.now + _STOP_SECONDS)
        if not process.task.done():
            self.oracle.blame("stuck", "", f"{process.witness.name} did not stop")
        elif process.worker.unwritten or not process.worker.is_empty:
            self.oracle.blame("lost", "", f"{process.witness.name} stopped with unfinished work")

    def bear(self) -> None:
        self._born += 1
        process = Process(self, f"p{self._born}")
        self.processes.append(process)
        self.oracle.note(process.witness.name, "", "started")

    def retire(self, process: "Process") -> None:
        self.processes.remove(process)
        self._ended.append(process)

    def new_id(self) -> UUID:
        self._ids += 1
        return UUID(int=(2 << 120) + self._ids)

    # Actions of producers and operators.

    def _begin_late(self, jobs: tuple[PlannedJob, ...]) -> None:
        """Begin a transaction that commits after claims have passed the time of its jobs."""
        self.oracle.note("", "", "late commit")
        self.machine.after(
            self.random.uniform(0.0, _LONGEST_COMMIT_SECONDS), self._enqueue, jobs, self.store.clock.read()
        )

    def _enqueue(self, jobs: tuple[PlannedJob, ...], began: datetime | None = None) -> None:
        """Enqueue jobs. The request or its answer may be lost; a producer with keys then asks again."""
        chance = self.random.random()
        is_lost, is_unanswered = chance < self.plan.weather.cut, 0.8 < chance < 0.8 + self.plan.weather.cut
        fresh = [job for job in jobs if job.new.id not in self._planned]
        if not is_lost:
            new = [job.new for job in jobs if job.new.key is not None or job in fresh]
            answers = self.store.enqueue_late(new, began or self.store.clock.read())
            for job in fresh:
                self._planned[job.new.id] = job
                self.oracle.enqueued(job.new, is_killer=job.is_killer, losses=job.losses)
                self.store.lost_before(job.new.id, job.losses)
            if sum(answer.is_new for answer in answers) != len(fresh):
                self.oracle.blame("unexpected", "", "the same work was taken twice, or not at all")
            self.ring()
        if (is_lost or is_unanswered) and not self.is_calm:
            self.machine.after(self.random.uniform(0.05, 0.5), self._enqueue, jobs)
        elif is_lost:
            self.machine.after(0.05, self._enqueue, jobs)
        else:
            self._to_come -= 1

    def taken_by_schedule(self, job: NewJob, by: str) -> None:
        self._planned[job.id] = PlannedJob(job, (QUICK,))
        self.oracle.enqueued(job, by=by)

    def declare(self, schedules: Sequence[NewSchedule]) -> None:
        done(self.schedules.declare(schedules))
        for schedule in schedules:
            self._first_occurrence = self._first_occurrence or schedule.first_occurrence
            if self.is_calm:
                done(self.schedules.pause(schedule.name))

    def ring(self) -> None:
        weather, random = self.plan.weather, self.random
        for process in self.processes:
            if random.random() >= weather.lost_wake_up:
                for _ in range(2 if random.random() < weather.doubled_wake_up else 1):
                    self.machine.after(random.expovariate(200.0), process.wake)

    def _cancel_any(self) -> None:
        if self._planned:
            id = self.random.choice(list(self._planned))
            (answer,) = done(self.store.cancel([id]))
            self.oracle.canceled(id, answer)

    def _retry_any(self) -> None:
        final = [id for id, account in self.oracle.jobs.items() if account.state.is_final]
        if final:
            id = self.random.choice(final)
            (answer,) = done(self.store.retry([id]))
            self.oracle.revived(id, answer)

    # Faults that hit processes.

    def _calm_down(self) -> None:
        """End all faults: paused processes go on, and most waiting handlers stop waiting."""
        if self.machine.steps < FEWEST_STEPS:
            # All processes were paused or cut off most of the time.
            self.machine.after(_MORE_SECONDS, self._calm_down)
            return
        self.is_calm = True
        self.machine.jolt_in = math.inf
        self.oracle.note("", "", "no more faults")
        done(self.schedules.pause(SCHEDULE))
        for process in self.processes:
            process.is_cut_off = False
            process.pause(0.0)
        for process, lease, rest in self._resting:
            # A handler whose process must stop, or that has lost its lease, must still be stopped.
            if process.is_serving and self.oracle.holds(lease):
                tell(rest, None)
        if not any(process.is_serving for process in self.processes):
            self.bear()

    def _exposed(self) -> list["Process"]:
        return [process for process in self.processes if process.is_alive and not self.is_calm]

    def _kill_any(self) -> None:
        if exposed := self._exposed():
            self.kill(self.random.choice(exposed))

    def kill(self, process: "Process") -> None:
        self.oracle.note(process.witness.name, "", "died")
        process.witness.died_at = self.machine.now
        process.end()
        self.machine.after(self.random.uniform(0.0, 0.3), self.bear)

    def _stop_any(self) -> None:
        if serving := [process for process in self._exposed() if process.is_serving]:
            process = self.random.choice(serving)
            self.oracle.note(process.witness.name, "", "asked to stop")
            process.is_serving = False
            process.witness.stops_at = self.machine.now
            process.background.stop()
            self.machine.after(self.random.uniform(0.0, 0.3), self.bear)

    def _cut_off_any(self) -> None:
        if exposed := self._exposed():
            process = self.random.choice(exposed)
            process.is_cut_off = True
            self.oracle.note(process.witness.name, "", "cut off from the store")
            lease = self.plan.settings.lease.total_seconds()
            self.machine.after(self.random.uniform(0.3, 2.5) * lease, self._reconnect, process)

    def _reconnect(self, process: "Process") -> None:
        if process.is_cut_off:
            process.is_cut_off = False
            self.oracle.note(process.witness.name, "", "reaches the store again")

    def _jolt(self, loop: VirtualLoop["Process"]) -> None:
        """Pause or kill a process between two of its callbacks."""
        self.machine.jolt_in = self.random.expovariate(1 / self.plan.weather.jolt_every)
        if loop.owner in self._exposed():
            if self.random.random() < 0.1 and self.plan.weather.deaths:
                self.kill(loop.owner)
            else:
                self.pause(loop.owner)

    def pause(self, process: "Process") -> None:
        """Pause for less or more than a lease, or until just about the end of one of the process's leases."""
        lease, chance = self.plan.settings.lease.total_seconds(), self.random.random()
        ends = [
            account.held.until
            for account in self.oracle.jobs.values()
            if account.held is not None and account.held.by is process.witness
        ]
        if chance < 0.3 and ends:
            seconds = self.random.choice(ends) - self.machine.now + self.random.choice((-0.002, 0.0, 0.002, 0.25))
        elif chance < 0.7:
            seconds = self.random.uniform(0.01, 0.5) * lease
        else:
            seconds = self.random.uniform(0.5, 2.0) * lease
        if seconds > 0:
            process.pause(seconds)

    # Actions of handlers.

    async def perform(self, process: "Process", job: RunningJob[Json]) -> object:
        oracle, witness = self.oracle, process.witness
        attempts = self._planned[job.id].attempts
        starts = sum(claim.has_started for claim in oracle.jobs[job.id].claims.values())
        attempt = attempts[min(starts, len(attempts) - 1)]
        if self.is_calm and attempt.act is not Act.KILL:
            # There are no more faults, so anything longer would only take time.
            attempt = AT_ONCE
        oracle.started(job.lease, witness, is_stubborn=attempt.act is Act.IGNORE)
        try:
            value = await self._act(process, job.lease, attempt)
        except asyncio.CancelledError:
            oracle.ended(job.lease, witness, Ending.INTERRUPTED)
            raise
        except Exception as error:
            oracle.ended(job.lease, witness, _ENDINGS.get(type(error), Ending.RAISED))
            raise
        if isinstance(value, Retryable):
            oracle.ended(job.lease, witness, Ending.RAISED)
        else:
            oracle.ended(job.lease, witness, Ending.RETURNED, value)
        return value

    async def _act(self, process: "Process", lease: Lease, attempt: Attempt) -> object:
        if attempt.act is Act.BLOCK:
            process.block(attempt.waits[0])
            await asyncio.sleep(0)
            return None
        for seconds in attempt.waits:
            await self._rest(process, lease, seconds)
        match attempt.act:
            case Act.RETURN_RESULT:
                return {"fence": lease.fence}
            case Act.RAISE:
                raise _Broken("as planned")
            case Act.RETURN_ERROR:
                return Retryable("as planned")
            case Act.PERMANENT:
                raise Permanent("PLANNED")
            case Act.SNOOZE:
                raise Snooze(timedelta(seconds=self.random.uniform(0.01, 0.3)))
            case Act.GIVE_UP:
                raise Cancel
            case Act.OVERRUN:
                await self._rest(process, lease, 2 * TIMEOUT_SECONDS)
            case Act.IGNORE:
                with contextlib.suppress(asyncio.CancelledError):
                    await self._rest(process, lease, TIMEOUT_SECONDS)
                await self._rest(process, lease, 0.5)
            case Act.KILL:
                self.kill(process)
                await process.loop.create_future()
        return None

    async def _rest(self, process: "Process", lease: Lease, seconds: float) -> None:
        """Let a handler wait. After the last fault waiting tests nothing and would only take time."""
        if self.is_calm:
            await asyncio.sleep(0)
            return
        rest = process.loop.create_future()
        self._resting.append((process, lease, rest))
        self.machine.after(seconds, tell, rest, None)
        await rest


class _Broken(Exception):
    """The error of a planned failure."""


_ENDINGS = {Permanent: Ending.PERMANENT, Snooze: Ending.SNOOZED, Cancel: Ending.GAVE_UP}


class Process:
    """One process of an app: its event loop, its lease keeper's loop, and its route to the store."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.witness = world.oracle.witness(name)
        self.is_alive = self.is_serving = True
        self.is_cut_off = False
        machine, settings = world.machine, world.plan.settings
        self.loop: VirtualLoop[Process] = machine.open(self)
        self.keeper_loop: VirtualLoop[Process] = machine.open(self)
        link = Link(world, self)
        pacing = Pacing(idle_min=settings.poll / 2, idle_max=settings.poll, error_max=timedelta(seconds=0.5))
        self._signals = Signals()
        self.worker = Worker(cast(Store, link), link.renewer, _HANDLERS, _FAILURES, settings, signals=self._signals)
        queue = QueueRunner(self.worker, pacing, QueueRuns(link.runs, QUEUE, name))
        declared = _DECLARED if world.plan.has_schedule else []
        schedules = JobSchedules(ScheduleBoard(link.schedules, declared), link.schedules, name)
        shutdown = settings.shutdown.total_seconds()
        self.background = Background([schedules, queue], TickLimits(), pacing, shutdown, self._signals)
        self.task: asyncio.Task[None] = asyncio.Task(self.background.run(), loop=self.loop)
        self._left: list[asyncio.Task[object]] = []

    def wake(self) -> None:
        if self.is_alive:
            self._signals.wake(QUEUE)

    def pause(self, seconds: float) -> None:
        """Pause all its threads for this long from now on; zero ends a pause."""
        world, now = self.world, self.world.machine.now
        pauses = self.witness.pauses
        is_paused = bool(pauses) and pauses[-1][1] > now
        if is_paused and not seconds:
            pauses[-1] = (pauses[-1][0], now)
        elif seconds and not is_paused:
            pauses.append((now, now + seconds))
            world.oracle.note(self.witness.name, "", f"paused for {seconds:.3f} s")
        else:
            return
        blocked_until = self.witness.blocks[-1][1] if self.witness.blocks else now
        self.keeper_loop.held_until = now + seconds
        self.loop.held_until = max(now + seconds, blocked_until)

    def block(self, seconds: float) -> None:
        """Let a handler block the event loop while the lease keeper goes on."""
        world, now = self.world, self.world.machine.now
        self.witness.blocks.append((now, now + seconds))
        world.oracle.note(self.witness.name, "", f"event loop blocked for {seconds:.3f} s")
        self.loop.held_until = now + seconds

    def end(self) -> None:
        """End without telling the store or any other process."""
        if self.is_alive:
            self.is_alive = self.is_serving = False
            # Keep references, because a task without any closes its coroutine, which runs some more code.
            self._left = [*asyncio.all_tasks(self.loop), *asyncio.all_tasks(self.keeper_loop)]
            self.world.machine.close(self.loop)
            self.world.machine.close(self.keeper_loop)
            self.world.retire(self)

    def bury(self) -> None:
        """Close what it left behind, once that can no longer affect the schedule."""
        self.worker.stop()
        asyncio._set_running_loop(self.loop)
        for task in self._left:
            with contextlib.suppress(BaseException):
                task.get_coro().close()
        asyncio._set_running_loop(None)


async def _perform(job: RunningJob[Json]) -> object:
    process: Process = asyncio.get_running_loop().owner  # type: ignore[attr-defined]
    return await process.world.perform(process, job)


def _handlers() -> Handlers:
    handlers = Handlers()
    usual = make_handler(
        USUAL,
        _perform,
        payload=Json,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
        backoff="exponential base=20ms max=200ms",
    )
    handlers.add(usual)
    handlers.add(replace(usual, kind=NARROW, lease=_NARROW_LEASE, limit=2))
    return handlers


_HANDLERS = _handlers()
_DECLARED = [Declared(SCHEDULE, to_timing("every 1s", "UTC", Missed.ALL, 1000), job_template(_HANDLERS, USUAL))]


class _VirtualClock(MemoryClock):
    """The store's clock: the machine's clock with a different start."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def read(self) -> datetime:
        return EPOCH + timedelta(seconds=self._machine.now - 1000.0)
