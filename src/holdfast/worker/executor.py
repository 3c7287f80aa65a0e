"""Runs one attempt: takes a held job, returns its outcome. No store, no lease, no clock but the deadline.

Returns None when there is nothing to write because the lease is gone.
"""

import asyncio
import contextvars
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, assert_never

from pydantic import ValidationError

from holdfast.domain.crash_points import around
from holdfast.domain.event_loop import is_being_canceled
from holdfast.domain.failures import Failures, bounded_error, describe, outcome_of_value
from holdfast.domain.handlers import CURRENT_JOB, FinishInTransaction, Isolation, RunningJob, describe_validation
from holdfast.domain.job import JobError
from holdfast.domain.json_text import Json, decode
from holdfast.domain.lease_clock import lease_now
from holdfast.domain.lifecycle import CANCEL_REQUESTED
from holdfast.domain.outcome import Canceled, Failed, Interrupted, Outcome, Retried, Succeeded
from holdfast.worker.held import HeldJob, Interruption
from holdfast.worker.processes import Attempt, Processes, ProcessLimits
from holdfast.worker.threads import HandlerThreads

_START_SECONDS = 60.0
_NOT_COMMITTED = JobError(
    code="NOT_COMMITTED",
    type="NotCommitted",
    message="the handler returned after finish_in, but its transaction did not commit, or finish_in was not awaited",
)


class Executor:
    def __init__(
        self, failures: Failures, processes: ProcessLimits, finish_in: Callable[[], FinishInTransaction | None]
    ) -> None:
        self._failures = failures
        self._finish_in = finish_in
        self._threads = HandlerThreads()
        self._processes = Processes(processes)

    @around("handler")
    async def run(self, held: HeldJob) -> Outcome | None:
        """None: the lease is gone. Raises CancelledError if somebody cancels this task, and what nobody foresaw."""
        try:
            job = self._prepare(held)
        except ValidationError as error:
            return Failed(bounded_error("VALIDATION_ERROR", "ValidationError", describe_validation(error)))
        except ValueError as error:
            return Failed(describe(error, "VALIDATION_ERROR"))
        CURRENT_JOB.set(job)
        try:
            if held.handler.isolation is Isolation.ASYNC:
                outcome = outcome_of_value(await held.handler.function(job))
            elif held.handler.isolation is Isolation.THREAD:
                outcome = outcome_of_value(await self._in_thread(held, job))
            else:
                outcome = await self._in_process(held, job)
        except asyncio.CancelledError as error:
            if held.interruption is not None:
                return outcome_of_interruption(held)
            if is_being_canceled():
                raise
            # Something that the handler waited for was canceled: its own doing, and not the end of this task.
            outcome = self._failures.outcome_of(error)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its attempt's outcome
            if held.interruption is not None:
                return outcome_of_interruption(held)
            if isinstance(error, KeyboardInterrupt | SystemExit) and held.handler.isolation is Isolation.ASYNC:
                # asyncio treats these as the end of the program; raised by a handler they are a failed attempt.
                error = RuntimeError(f"the handler raised {type(error).__name__}")
            outcome = self._failures.outcome_of(error)
        held.finish_requested |= job.finish_requested
        if held.finish_requested and isinstance(outcome, Succeeded):
            # If the transaction committed, this claim has finished the job and this is "already" done.
            return Retried(_NOT_COMMITTED)
        return outcome

    def _prepare(self, held: HeldJob) -> RunningJob[Any]:
        leased, handler = held.job, held.handler
        return RunningJob(
            lease=leased.lease,
            kind=leased.kind,
            queue=leased.queue,
            payload=handler.read_payload(leased.payload),
            headers=_read_headers(leased.headers) if leased.headers else {},
            tenant=leased.tenant,
            correlation_id=leased.correlation_id,
            attempt=leased.attempt,
            losses=leased.losses,
            max_attempts=leased.max_attempts or handler.attempts,
            created_at=leased.created_at,
            deadline=datetime.now(UTC) + handler.timeout,
            _report=held.report,
            _finish_in=self._finish_in(),
            _finishing=held.finishing,
        )

    async def _in_thread(self, held: HeldJob, job: RunningJob[Any]) -> object:
        context = contextvars.copy_context()
        thread = self._threads.submit(partial(context.run, held.handler.function, job))
        try:
            return await asyncio.shield(asyncio.wrap_future(thread))
        except asyncio.CancelledError:
            if not thread.cancel():
                held.abandoned = thread
            held.finish_requested |= job.finish_requested
            raise

    async def _in_process(self, held: HeldJob, job: RunningJob[Any]) -> Outcome:
        sent: RunningJob[Json] = replace(job, payload=held.job.payload, _report=_drop, _finishing=_nothing)
        attempt = Attempt(held.handler.function, held.handler.payload_type, sent, self._failures, held.handler.timeout)
        # Waiting for a process, starting it and importing the application is not the handler's doing: its time counts
        # from `started`.
        held.started = math.inf

        def has_process() -> None:
            held.started = lease_now() + _START_SECONDS

        def set_kill(kill: Callable[[], None]) -> None:
            held.kill = kill
            if held.interruption is not None:
                kill()

        def started() -> None:
            held.started = lease_now()

        ended = await self._processes.run(attempt, has_process, started, held.report, held.finishing, set_kill)
        held.kill = None
        held.finish_requested |= ended.finish_requested
        if held.interruption is not None:
            raise asyncio.CancelledError
        return ended.outcome

    def close(self) -> None:
        self._threads.close()
        self._processes.close()


def _read_headers(headers: Json) -> dict[str, Any]:
    """A producer that speaks SQL may have written any JSON."""
    read = decode(headers)
    if read is not None and not isinstance(read, dict):
        raise ValueError(f"headers: {type(read).__name__} is not an object with a value for each name")
    return read or {}


def outcome_of_interruption(held: HeldJob) -> Outcome | None:
    match held.interruption:
        case Interruption.LEASE_LOST | None:
            return None
        case Interruption.CANCELED:
            return Canceled(CANCEL_REQUESTED)
        case Interruption.TIMEOUT:
            return Retried(_timeout_error(held.handler.timeout))
        case Interruption.SHUTDOWN:
            return Interrupted(_interrupted("the worker shut down before the handler was done"))
        case Interruption.UNRENEWED:
            # The lease may still be ours when the store is back.
            return Interrupted(_interrupted("the store could not be reached to renew the lease"))
        case _:
            assert_never(held.interruption)


def _interrupted(message: str) -> JobError:
    return JobError(code="INTERRUPTED", type="Interrupted", message=message)


def _timeout_error(timeout: timedelta) -> JobError:
    message = f"the handler ran longer than its timeout of {timeout.total_seconds():g} s"
    return JobError(code="TIMEOUT", type="Timeout", message=message)


def _drop(progress: Json) -> None:
    """Stands in for the reporter while a job travels to its process."""


def _nothing() -> None:
    """Stands in likewise for what hears that the handler finishes."""
