"""Runs one attempt of one given job with the worker's executor, and writes its outcome by the worker's rules."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

from holdfast.app import Holdfast
from holdfast.domain.errors import InvalidInput
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import CURRENT_JOB, FinishInTransaction, Handler, Isolation
from holdfast.domain.job import Lease, LeasedJob
from holdfast.domain.lease_clock import lease_now
from holdfast.domain.lifecycle import SUSPECT, Move, after_outcome
from holdfast.domain.outcome import Outcome
from holdfast.store.contract import ClaimRequest, Fenced, Finish, KindClaim
from holdfast.store.opening import OpenStore
from holdfast.worker.child import ProcessLimits
from holdfast.worker.executor import Executor
from holdfast.worker.held import HeldJob
from holdfast.worker.hooks import Hooks

# This lease is never renewed, and no handler under test should take that long.
LEASE = timedelta(hours=1)

_AT_ONCE = 1000


class RecordedFailures(Failures):
    """The app's own rules, which also keep the exceptions themselves, because a store has only their description."""

    def __init__(self, registered: Failures) -> None:
        self._rules = registered._rules
        self.raised: dict[tuple[UUID, int], BaseException] = {}

    def outcome_of(self, raised: BaseException) -> Outcome:
        job = CURRENT_JOB.get()
        if job is not None:
            self.raised[job.id, job.attempt] = raised
        return super().outcome_of(raised)

    def __getstate__(self) -> dict[str, object]:
        """Send only the rules to a handler's process: not every exception can be pickled."""
        return {"_rules": self._rules, "raised": {}}


@dataclass(frozen=True, slots=True)
class Attempted:
    """How an attempt ended; `outcome` is None if there is nothing to write."""

    job: LeasedJob
    handler: Handler
    outcome: Outcome | None
    finish_requested: Move | None = None
    """How the handler wanted to end its job in its own transaction."""


@asynccontextmanager
async def hooked(app: Holdfast[Any], *, children: bool = False) -> AsyncIterator[Hooks]:
    """Open the app's lifespan for the block, as a running worker does. Only child processes have to import it."""
    hooks = app._hooks() if children else Hooks.without_children(app, tuple(app._arounds))
    await hooks.lifespan.enter(asyncio.Event())
    try:
        yield hooks
    finally:
        await hooks.lifespan.leave()


async def claimed(opened: OpenStore, id: UUID) -> LeasedJob:
    """Lease this job, which must be due, and no other."""
    job = await opened.reader.get(id)
    if job is None:
        raise InvalidInput(f"job {id} is not in the store of this test")
    request = ClaimRequest(
        holder=uuid4(),
        limit=_AT_ONCE,
        queues=(job.queue,),
        kinds={job.kind: KindClaim(LEASE, _AT_ONCE)},
        suspects=job.suspicion >= SUSPECT,
    )
    await opened.store.look([job.queue], [job.kind])
    others: list[Lease] = []
    wanted: LeasedJob | None = None
    while wanted is None and (leased := await opened.store.claim(request)):
        wanted = next((each for each in leased if each.id == id), None)
        others += [each.lease for each in leased if each.id != id]
    await opened.store.release(others)
    if wanted is None:
        raise InvalidInput(f"job {id} cannot be run: it is {job.state}, and not before {job.run_at}")
    return wanted


async def attempted(
    job: LeasedJob,
    handler: Handler,
    failures: Failures,
    finish_in: FinishInTransaction | None,
    hooks: Hooks,
    context: Context | None = None,
) -> Attempted:
    """Run the handler in this process, regardless of its isolation, and in its own context."""
    executor = Executor(failures, ProcessLimits(1), lambda: finish_in, hooks)
    handler = in_this_process(handler)
    loop = asyncio.get_running_loop()
    held = HeldJob(job, handler, LEASE.total_seconds(), lease_now(), loop)
    try:
        task = loop.create_task(executor.run(held), context=copy_context() if context is None else context)
        return Attempted(job, handler, await task, held.finish_requested)
    finally:
        executor.close()


async def write(opened: OpenStore, attempt: Attempted) -> Move | None:
    """Write the outcome to the store, as the worker's finisher does. Return how the attempt ended."""
    if attempt.outcome is None:
        return None
    transition = after_outcome(
        attempt.outcome,
        attempt=attempt.job.attempt,
        losses=attempt.job.losses,
        max_attempts=attempt.job.max_attempts or attempt.handler.attempts,
        backoff=attempt.handler.backoff,
        random=Random(),  # noqa: S311 - spreads retries, guards nothing
    )
    (fenced,) = await opened.store.finish([Finish(attempt.job.lease, transition)])
    return attempt.finish_requested or Move.SUCCEED if fenced is Fenced.ALREADY else transition.move


def in_this_process(handler: Handler) -> Handler:
    if handler.isolation is not Isolation.PROCESS:
        return handler
    is_async = inspect.iscoroutinefunction(handler.function)
    return replace(handler, isolation=Isolation.ASYNC if is_async else Isolation.THREAD)
