"""Calls an inline runner's function once, on the event loop or in a thread, until it ends or has to stop."""

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial

from holdfast.domain.errors import InvalidInput
from holdfast.domain.failures import Failures, describe
from holdfast.domain.job import JobError
from holdfast.domain.json_text import LARGEST_RESULT, Json, encode
from holdfast.domain.outcome import Snoozed, Succeeded
from holdfast.scheduling.schedules import InlineFunction, Occurrence
from holdfast.worker.forks import ended_in_forks
from holdfast.worker.threads import HandlerThreads

GRACE_SECONDS = 5.0
LOCK_LOST = JobError(
    code="LOCK_LOST", type="LockLost", message="the lock was lost while it ran; the occurrence is not marked as done"
)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended. `is_over` is False if it was stopped early, so that its occurrence is not done."""

    result: Json | None = None
    error: JobError | None = None
    counts: dict[str, object] = field(default_factory=dict)
    is_over: bool = True


class InlineCall:
    def __init__(self, function: InlineFunction, failures: Failures, threads: HandlerThreads) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._failures = failures
        self._threads = threads
        self._work: asyncio.Future[object] | None = None
        self._interrupted = asyncio.Event()
        self._why = ""

    def interrupt(self, why: str) -> None:
        if not self._interrupted.is_set():
            self._why = why
            self._interrupted.set()

    @property
    def is_interrupted(self) -> bool:
        return self._interrupted.is_set()

    async def run(self, occurrence: Occurrence, lost: Awaitable[None]) -> Ending:
        """Call the function. Returns when it ends, or soon after `lost` returns or `interrupt` is called."""
        work = self._work = self._start(occurrence)
        signals: list[asyncio.Future[object]] = [
            asyncio.ensure_future(lost),
            asyncio.ensure_future(self._interrupted.wait()),
        ]
        try:
            await asyncio.wait([work, *signals], return_when=asyncio.FIRST_COMPLETED)
            is_lost = signals[0].done()
        except asyncio.CancelledError:
            self._cancel(work)
            raise
        finally:
            for signal in signals:
                signal.cancel()
            await asyncio.gather(*signals, return_exceptions=True)
        if work.done():
            return self._ending(work)
        self._cancel(work)
        await asyncio.wait({work}, timeout=GRACE_SECONDS)
        if is_lost:
            return Ending(error=LOCK_LOST, is_over=False)
        if work.done() and not self._is_async:
            # A thread is never canceled: it completed its work within the grace period.
            return self._ending(work)
        return Ending(error=JobError(code="INTERRUPTED", type="Interrupted", message=self._why), is_over=False)

    @property
    def is_over(self) -> bool:
        """Whether the function has actually ended, no matter what was recorded about it."""
        return self._work is None or self._work.done()

    async def over(self) -> None:
        if self._work is not None:
            await asyncio.wait({self._work})

    def _start(self, occurrence: Occurrence) -> "asyncio.Future[object]":
        if self._is_async:
            return asyncio.ensure_future(_guarded(self._function, occurrence))
        context = contextvars.copy_context()
        return asyncio.wrap_future(self._threads.submit(partial(context.run, self._function, occurrence)))

    def _cancel(self, work: "asyncio.Future[object]") -> None:
        # Canceling a thread's future would only make it look done.
        if self._is_async:
            work.cancel()

    def _ending(self, work: "asyncio.Future[object]") -> Ending:
        if work.cancelled():
            return Ending(error=JobError(code="ERROR", type="CancelledError", message="it canceled its own task"))
        raised = work.exception()
        if raised is not None:
            return Ending(error=self._error(raised))
        value = work.result()
        try:
            result = None if value is None else encode(value, name="result", limit=LARGEST_RESULT)
        except InvalidInput as error:
            return Ending(error=describe(error, "INVALID_RESULT"))
        return Ending(result, counts=dict(value) if isinstance(value, dict) else {})

    def _error(self, raised: BaseException) -> JobError:
        outcome = self._failures.outcome_of(raised)
        known = None if isinstance(outcome, Succeeded | Snoozed) else outcome.error
        return known or describe(raised, "ERROR")


async def _guarded(function: InlineFunction, occurrence: Occurrence) -> object:
    try:
        return await ended_in_forks(function(occurrence))  # type: ignore[arg-type]
    except (KeyboardInterrupt, SystemExit) as error:
        # asyncio would end the program on these; raised by a function, they only fail its run.
        raise RuntimeError(f"the function raised {type(error).__name__}") from error
