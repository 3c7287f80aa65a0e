"""Runs one attempt: takes a held job and returns its outcome. It has no store, no lease and no clock but the deadline.

It returns None if there is nothing to write because the lease is gone.
"""

import asyncio
import contextvars
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, assert_never

from pydantic import ValidationError

from holdfast.domain.crash_points import around
from holdfast.domain.errors import HoldfastError
from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.failures import Failures, bounded_error, describe, outcome_of_value
from holdfast.domain.handlers import CURRENT_JOB, FinishInTransaction, Isolation, RunningJob
from holdfast.domain.job import JobError
from holdfast.domain.json_text import Json, decode
from holdfast.domain.kinds import describe_validation
from holdfast.domain.lease_clock import lease_now
from holdfast.domain.lifecycle import CANCEL_REQUESTED
from holdfast.domain.outcome import Canceled, Failed, Interrupted, Outcome, Retried, Snoozed, Succeeded, Unstarted
from holdfast.domain.versions import upgraded, version_of, wait_for_newer_worker
from holdfast.logs.records import get_logger
from holdfast.worker.child import NOT_STARTED, Attempt, ProcessLimits
from holdfast.worker.forks import end_fork, ended_in_forks, this_process
from holdfast.worker.held import HeldJob, Interruption
from holdfast.worker.hooks import Hooks, tidied
from holdfast.worker.processes import Processes
from holdfast.worker.starts import Starts
from holdfast.worker.threads import HandlerThreads

log = get_logger("holdfast.worker")

_START_SECONDS = 60.0
_SLOW_START = JobError(
    code=NOT_STARTED, type="NotStarted", message="the handler's process did not begin with the handler in time"
)
NOT_COMMITTED = JobError(
    code="NOT_COMMITTED",
    type="NotCommitted",
    message="the handler returned after finish_in, but its transaction did not commit, or finish_in was not awaited",
)


class Executor:
    def __init__(
        self,
        failures: Failures,
        processes: ProcessLimits,
        finish_in: Callable[[], FinishInTransaction | None],
        hooks: Hooks | None = None,
        starts: Starts | None = None,
    ) -> None:
        """`starts` learns which handlers have begun while some cannot be started."""
        self._starts = starts or Starts()
        self._failures = failures
        self._finish_in = finish_in
        self._hooks = hooks or Hooks()
        self._lifespan = self._hooks.lifespan
        self._framework = self._hooks.framework
        self._is_wrapped = bool(self._hooks.around) or self._framework is not None
        self._threads = HandlerThreads(at_end=None if self._framework is None else self._framework.leave)
        self._processes = Processes(processes, self._framework)
        self._random = Random()  # noqa: S311 - spreads waits, guards nothing
        self._warned_of_newer: set[str] = set()

    @around("handler")
    async def run(self, held: HeldJob) -> Outcome | None:
        """Run the attempt. None means that the lease is gone. Raises CancelledError if this task is canceled, and
        unexpected errors."""
        try:
            # Most jobs have no headers, and most handlers read only one version.
            if held.job.headers is not None or held.handler.upgrades:
                outcome_before = self._fit_version(held)
                if outcome_before is not None:
                    return outcome_before
            job = self._prepare(held)
        except ValidationError as error:
            return Failed(bounded_error("VALIDATION_ERROR", "ValidationError", describe_validation(error)))
        except ValueError as error:
            return Failed(describe(error, "VALIDATION_ERROR"))
        CURRENT_JOB.set(job)
        try:
            if self._is_wrapped:
                outcome = await self._wrapped(held, job)
            elif held.handler.isolation is Isolation.ASYNC:
                home = this_process()
                try:
                    value = await held.handler.function(job)
                finally:
                    end_fork(home)
                outcome = outcome_of_value(value)
            elif held.handler.isolation is Isolation.THREAD:
                outcome = outcome_of_value(await self._in_thread(held, job))
            else:
                outcome = await self._in_process(held, job)
        except asyncio.CancelledError as error:
            if held.interruption is not None:
                return outcome_of_interruption(held)
            if is_being_canceled():
                raise
            # Something that the handler awaited was canceled, not this task.
            outcome = self._failures.outcome_of(error)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its attempt's outcome
            if held.interruption is not None:
                return outcome_of_interruption(held)
            if isinstance(error, KeyboardInterrupt | SystemExit) and held.handler.isolation is Isolation.ASYNC:
                # asyncio would end the program on these; raised by a handler, they only fail its attempt.
                error = RuntimeError(f"the handler raised {type(error).__name__}")
            outcome = error.outcome if isinstance(error, EndedElsewhere) else self._failures.outcome_of(error)
        if job.finish_requested is not None:
            held.finish_requested = job.finish_requested
        if held.interruption is Interruption.TIMEOUT:
            if held.finish_requested is None:
                log.warning("handler returned after its timeout, its result is dropped", **held.named)
            return outcome_of_interruption(held)
        if held.finish_requested and isinstance(outcome, Succeeded):
            # If the transaction did commit, this claim has already finished the job, and the store answers ALREADY.
            return Retried(NOT_COMMITTED)
        return outcome

    def _fit_version(self, held: HeldJob) -> Outcome | None:
        """Upgrade an older payload to the handler's version. Returns an outcome if the handler cannot be called."""
        job, handler = held.job, held.handler
        version = version_of(job.headers)
        if version > handler.version:
            self._warn_of_newer(job.kind, version, handler.version)
            return Snoozed(after=wait_for_newer_worker(self._random))
        try:
            payload = upgraded(job.payload, version, handler.upgrades)
        except Exception as error:  # noqa: BLE001 - upgrades are application code, like the handler
            return self._failures.outcome_of(error)
        if payload is not job.payload:
            held.job = job._replace(payload=payload)
        return None

    def _warn_of_newer(self, kind: str, version: int, known: int) -> None:
        if kind not in self._warned_of_newer:
            self._warned_of_newer.add(kind)
            log.warning(
                "jobs of this kind wait for a newer worker: their version is higher than the handler's",
                kind=kind,
                version=version,
                handler=known,
            )

    def _prepare(self, held: HeldJob) -> RunningJob[Any]:
        leased, handler = held.job, held.handler
        # Without names, which would double the time that this takes for each job.
        return RunningJob(
            leased.lease,
            leased.kind,
            leased.queue,
            handler.typed.read_payload(leased.payload),
            _read_headers(leased.headers) if leased.headers else {},
            leased.tenant,
            leased.correlation_id,
            leased.attempt,
            leased.losses,
            leased.max_attempts or handler.attempts,
            leased.created_at,
            datetime.now(UTC) + handler.timeout,
            held.report,
            self._finish_in(),
            self._lifespan.state,
            held.finishing,
        )

    async def _wrapped(self, held: HeldJob, job: RunningJob[Any]) -> Outcome:
        unstarted: Unstarted | None = None

        async def call() -> object:
            nonlocal unstarted
            unstarted = None
            if held.handler.isolation is Isolation.ASYNC:
                return await ended_in_forks(tidied(self._framework, held.handler.function)(job))
            try:
                if held.handler.isolation is Isolation.THREAD:
                    return await self._in_thread(held, job)
                outcome = await self._in_process(held, job)
            except EndedElsewhere as ended:
                unstarted = ended.outcome if isinstance(ended.outcome, Unstarted) else None
                raise
            if not isinstance(outcome, Succeeded):
                raise EndedElsewhere(outcome)
            return None if outcome.result is None else decode(outcome.result)

        try:
            value = await ended_in_forks(self._hooks.wrapped(job, call))
        except Exception:
            if unstarted is None:
                raise
            value = None
        # Whatever the functions around the handler made of the error, the handler has not run.
        return unstarted or outcome_of_value(value)

    async def _in_thread(self, held: HeldJob, job: RunningJob[Any]) -> object:
        context = contextvars.copy_context()
        work = partial(context.run, tidied(self._framework, held.handler.function), job)
        try:
            thread = self._threads.submit(work)
        except (RuntimeError, MemoryError) as error:
            raise EndedElsewhere(Unstarted(describe(error, NOT_STARTED))) from error
        if self._starts.has_trouble:
            self._starts.began(held.handler)
        held.thread, is_canceled = thread, False
        try:
            while True:
                # Not shielded: after we give up on a thread, nothing would retrieve what it raises.
                ended = asyncio.wrap_future(thread)
                try:
                    value = await ended
                except asyncio.CancelledError:
                    # A thread cannot be stopped, and the job must not run elsewhere while it is running.
                    is_raised_by_handler = not ended.cancelled()
                    if is_raised_by_handler or thread.cancel() or held.is_left_behind:
                        raise
                    # A cancellation by the application, such as a timeout in an `around`, is only postponed.
                    is_canceled |= held.interruption is None
                else:
                    if is_canceled:
                        raise asyncio.CancelledError
                    return value
        finally:
            # Drop the future, which would keep alive what the handler returned or raised.
            held.thread = None
            held.finish_requested = job.finish_requested

    async def _in_process(self, held: HeldJob, job: RunningJob[Any]) -> Outcome:
        sent: RunningJob[Json] = replace(job, payload=held.job.payload, state=None, _report=_drop, _finishing=_nothing)
        attempt = Attempt(
            held.handler.function,
            held.handler.payload_type,
            sent,
            self._failures,
            held.handler.timeout,
            self._hooks.open_state,
        )
        has_begun = False
        # The handler's timeout counts from `started`, not while it waits for a process to be free, to start and to
        # import the application.
        held.started = math.inf

        def has_process() -> None:
            held.started = lease_now() + _START_SECONDS

        def set_kill(kill: Callable[[], None]) -> None:
            held.kill = kill
            if held.interruption is not None:
                kill()

        def started() -> None:
            nonlocal has_begun
            has_begun, held.started = True, lease_now()
            if self._starts.has_trouble:
                held.loop.call_soon_threadsafe(self._starts.began, held.handler)

        try:
            ended = await self._processes.run(attempt, has_process, started, held.report, held.finishing, set_kill)
        finally:
            held.never_began = not has_begun
        held.kill = None
        held.finish_requested = ended.finish_requested
        if held.interruption is not None:
            raise asyncio.CancelledError
        if isinstance(ended.outcome, Unstarted):
            raise EndedElsewhere(ended.outcome)
        return ended.outcome

    def close(self) -> None:
        self._threads.close()
        self._processes.close()
        if self._framework is not None:
            self._framework.leave()


class EndedElsewhere(HoldfastError):
    """Passes an outcome that is already known through the functions around the attempt."""

    def __init__(self, outcome: Outcome) -> None:
        error = None if isinstance(outcome, Succeeded | Snoozed) else outcome.error
        super().__init__("snoozed" if error is None else f"{error.type}: {error.message}")
        self.outcome = outcome


def _read_headers(headers: Json) -> dict[str, Any]:
    """Decode the headers. Producers that use SQL may have written any JSON."""
    read = decode(headers)
    if read is not None and not isinstance(read, dict):
        raise ValueError(f"headers: {type(read).__name__} is not an object with a value for each name")
    return read or {}


def outcome_of_interruption(held: HeldJob) -> Outcome | None:
    match held.interruption:
        case Interruption.LEASE_LOST | Interruption.WITHDRAWN | None:
            return None
        case Interruption.CANCELED:
            return Canceled(CANCEL_REQUESTED)
        case Interruption.TIMEOUT:
            return Unstarted(_SLOW_START) if held.never_began else Retried(_timeout_error(held.handler.timeout))
        case Interruption.SHUTDOWN:
            return Interrupted(_interrupted("the worker shut down before the handler was done"))
        case Interruption.UNRENEWED:
            # The lease may still be ours when the store is available again.
            return Interrupted(_interrupted("the store could not be reached to renew the lease"))
        case _:
            assert_never(held.interruption)


def _interrupted(message: str) -> JobError:
    return JobError(code="INTERRUPTED", type="Interrupted", message=message)


def _timeout_error(timeout: timedelta) -> JobError:
    message = f"the handler ran longer than its timeout of {timeout.total_seconds():g} s"
    return JobError(code="TIMEOUT", type="Timeout", message=message)


def _drop(progress: Json) -> None:
    """Replaces the progress callback while a job is sent to its process."""


def _nothing() -> None:
    """Replaces the finishing callback while a job is sent to its process."""
