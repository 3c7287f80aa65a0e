"""One attempt of one named job, run by the worker's executor and written to the store by the rules of the worker."""

import asyncio
import inspect
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from uuid import UUID, uuid4

from holdfast.domain.errors import InvalidInput
from holdfast.domain.failures import Failures
from holdfast.domain.handlers import CURRENT_JOB, FinishInTransaction, Handler, Isolation
from holdfast.domain.job import Lease, LeasedJob
from holdfast.domain.lease_clock import lease_now
from holdfast.domain.lifecycle import SUSPECT, after_outcome
from holdfast.domain.outcome import Outcome
from holdfast.store.contract import ClaimRequest, Finish, KindClaim
from holdfast.store.opening import OpenStore
from holdfast.worker.executor import Executor
from holdfast.worker.held import HeldJob
from holdfast.worker.processes import ProcessLimits

# Nobody renews it, and no handler under test should take that long.
LEASE = timedelta(hours=1)

_AT_ONCE = 1000


class RecordedFailures(Failures):
    """The app's own rules, which also keep the exceptions themselves: a store has only their description."""

    def __init__(self, registered: Failures) -> None:
        self._rules = registered._rules
        self.raised: dict[tuple[UUID, int], BaseException] = {}

    def outcome_of(self, raised: BaseException) -> Outcome:
        job = CURRENT_JOB.get()
        if job is not None:
            self.raised[job.id, job.attempt] = raised
        return super().outcome_of(raised)

    def __getstate__(self) -> dict[str, object]:
        """A handler's process gets the rules alone: not every exception can travel."""
        return {"_rules": self._rules, "raised": {}}


@dataclass(frozen=True, slots=True)
class Attempted:
    """How an attempt ended; `outcome` is None if there is nothing to write."""

    job: LeasedJob
    handler: Handler
    outcome: Outcome | None


async def claimed(opened: OpenStore, id: UUID) -> LeasedJob:
    """Lease this job, which is due, and no other."""
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
    context: Context | None = None,
) -> Attempted:
    """Run the handler, in this process whatever its isolation, in a context of its own."""
    executor = Executor(failures, ProcessLimits(1), lambda: finish_in)
    handler = _in_this_process(handler)
    loop = asyncio.get_running_loop()
    held = HeldJob(job, handler, LEASE.total_seconds(), lease_now(), loop)
    try:
        task = loop.create_task(executor.run(held), context=copy_context() if context is None else context)
        return Attempted(job, handler, await task)
    finally:
        executor.close()


async def write(opened: OpenStore, attempt: Attempted) -> None:
    """What the worker's finisher does with an outcome."""
    if attempt.outcome is not None:
        transition = after_outcome(
            attempt.outcome,
            attempt=attempt.job.attempt,
            losses=attempt.job.losses,
            max_attempts=attempt.job.max_attempts or attempt.handler.attempts,
            backoff=attempt.handler.backoff,
            random=Random(),  # noqa: S311 - spreads retries, guards nothing
        )
        await opened.store.finish([Finish(attempt.job.lease, transition)])


def _in_this_process(handler: Handler) -> Handler:
    if handler.isolation is not Isolation.PROCESS:
        return handler
    is_async = inspect.iscoroutinefunction(handler.function)
    return replace(handler, isolation=Isolation.ASYNC if is_async else Isolation.THREAD)
