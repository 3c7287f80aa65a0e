"""Deliberately broken builds of Holdfast. The judge must catch each one.

A worker process imports this module as its app; an environment variable chooses the sabotage.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from holdfast.domain.job import Lease, LeasedJob
from holdfast.domain.lifecycle import PLAIN_SUCCESS, Transition
from holdfast.domain.outcome import Outcome
from holdfast.runtime.queue_runner import QueueRunner
from holdfast.store.contract import ClaimRequest, Ended, Fenced, Finish, Rescued
from holdfast.store.postgres.finishing import Finishing
from holdfast.store.postgres.leasing import Leasing
from holdfast.store.postgres.store import PostgresStore
from holdfast.wake.postgres import Listener
from holdfast.worker.finisher import Finisher
from holdfast.worker.held import HeldJob
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast.worker.turn import Turn
from holdfast.worker.worker import Worker
from holdfast_lab.faults.app import app

__all__ = ["SABOTAGES", "app"]

SABOTAGE = "FAULTS_SABOTAGE"


def no_fence_check() -> None:
    """Let any worker finish any job, in the name of its current holder."""
    finish = PostgresStore.finish

    async def unfenced(self: Finishing, finishes: Sequence[Finish]) -> list[Fenced]:
        async with self.acquired() as connection:
            rows = await connection.fetch(
                f"SELECT id, fence, claim FROM {self.schema}.lease WHERE id = ANY ($1)",
                [each.lease.id for each in finishes],
            )
        now = {row["id"]: Lease(row["id"], row["fence"], row["claim"]) for row in rows}
        return await finish(self, [each._replace(lease=now.get(each.lease.id, each.lease)) for each in finishes])

    PostgresStore.finish = unfenced  # type: ignore[method-assign]


def acknowledge_before_running() -> None:
    claim = PostgresStore.claim

    async def acknowledged(self: PostgresStore, request: ClaimRequest) -> list[LeasedJob]:
        jobs = await claim(self, request)
        await self.finish([Finish(job.lease, PLAIN_SUCCESS) for job in jobs])
        return jobs

    PostgresStore.claim = acknowledged  # type: ignore[assignment, method-assign]


def no_rescue() -> None:
    async def nobody(self: Leasing, limit: int, ended: Ended | None = None) -> list[Rescued]:
        return []

    PostgresStore.rescue = nobody  # type: ignore[method-assign]


def lease_kept_by_the_event_loop() -> None:
    kept: list[asyncio.Task[None]] = []

    def start(self: LeaseKeeper) -> None:
        kept.append(asyncio.get_running_loop().create_task(self._keep()))

    LeaseKeeper.start = start  # type: ignore[method-assign]
    LeaseKeeper.join = lambda self, timeout: None  # type: ignore[method-assign]


def outcome_dropped_on_shutdown() -> None:
    stop = Worker.stop

    def dropping(self: Worker) -> None:
        stop(self)
        Finisher.put = lambda self, held, transition: None  # type: ignore[method-assign]

    Worker.stop = dropping  # type: ignore[method-assign]


def attempt_not_counted() -> None:
    claim = PostgresStore.claim

    async def uncounted(self: PostgresStore, request: ClaimRequest) -> list[LeasedJob]:
        jobs = await claim(self, request)
        async with self.acquired() as connection:
            await connection.execute(
                f"UPDATE {self.schema}.lease SET attempt = attempt - 1 WHERE id = ANY ($1)", [job.id for job in jobs]
            )
        return jobs

    PostgresStore.claim = uncounted  # type: ignore[assignment, method-assign]


def notify_trusted() -> None:
    """Workers never look for jobs unless notified."""
    wake_of = Listener.__init__

    def init(self: Listener, *arguments: object, **named: object) -> None:
        wake_of(self, *arguments, **named)  # type: ignore[arg-type]
        wake = self._wake
        self._wake = lambda queue: wake(queue) if queue is not None else None

    plan = QueueRunner._plan_next_turn

    def never_by_the_clock(self: QueueRunner, turn: Turn) -> None:
        plan(self, turn)
        if turn.is_idle and self._turn_at > time.monotonic():
            self._turn_at = math.inf

    Listener.__init__ = init  # type: ignore[method-assign]
    QueueRunner._plan_next_turn = never_by_the_clock  # type: ignore[method-assign]


def workers_clock_used() -> None:
    decide = Worker._decide

    def by_our_clock(self: Worker, held: HeldJob, outcome: Outcome | None) -> Transition | None:
        transition = decide(self, held, outcome)
        if transition is None or not transition.delay:
            return transition
        return replace(transition, delay=timedelta(0), at=datetime.now(UTC) + transition.delay)

    Worker._decide = by_our_clock  # type: ignore[method-assign]


SABOTAGES: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        no_fence_check,
        acknowledge_before_running,
        no_rescue,
        lease_kept_by_the_event_loop,
        outcome_dropped_on_shutdown,
        attempt_not_counted,
        notify_trusted,
        workers_clock_used,
    )
}

if os.environ.get(SABOTAGE):
    SABOTAGES[os.environ[SABOTAGE]]()
