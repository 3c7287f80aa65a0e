"""The app as a test sees it: run what is due, move the clock, inspect what was enqueued."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Self, Unpack, overload
from unittest.mock import patch
from uuid import UUID

from holdfast.app import Holdfast
from holdfast.domain.duration import Duration, to_aware, to_timedelta
from holdfast.domain.errors import Cancel, InvalidInput, Snooze
from holdfast.domain.handlers import Handler
from holdfast.domain.job import Job, JobState
from holdfast.domain.kinds import Kind, Payload, Result, kind_name
from holdfast.domain.outcome import Canceled, Failed, Retried, Snoozed
from holdfast.producer.options import EnqueueOptions
from holdfast.rabbitmq.relays import Relayed
from holdfast.store.contract import JobFilter
from holdfast.testing.attempt import Attempted, RecordedFailures, attempted, claimed, hooked, write
from holdfast.testing.drain import MOST_JOBS, Drain, DrainReport, HandlerFailed
from holdfast.testing.matching import Expected, listed
from holdfast.worker.hooks import Hooks

_MOST_ATTEMPTS = 1000


class AppUnderTest:
    """An app opened by `in_memory` or `on_postgres`. Nothing runs by itself: jobs run in `drain` and `run`."""

    _drain_name = "drain"

    def __init__(self, app: Holdfast, url: str | None = None, *, close: Callable[[], None] | None = None) -> None:
        self.app = app
        self._url = url
        self._close = close
        self._run_here: set[UUID] = set()

    async def __aenter__(self) -> Self:
        """So that `async with` works with each of the fixtures."""
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._close is not None:
            self._close()

    @property
    def url(self) -> str:
        """The address of the store's database, for the test's own connections."""
        if self._url is None:
            raise InvalidInput("url: an app in memory has no database; use testing.on_postgres(app)")
        return self._url

    async def drain(
        self,
        *,
        move_time: bool = False,
        until: Duration | None = None,
        schedules: bool = False,
        raise_errors: bool = True,
        most: int = _MOST_ATTEMPTS,
    ) -> DrainReport:
        """Run everything that is due, one job at a time, until nothing is.

        `move_time` continues with jobs that become due later (retries, snoozes, delays) by moving the clock to them.
        `until` does so for a length of time, and leaves the clock at its end. `schedules` also makes the jobs of the
        occurrences along the way. Raises HandlerFailed at the end if an attempt failed, unless `raise_errors` is False,
        EndlessDrain after `most` attempts, and StuckDrain if due jobs cannot be claimed.
        """
        length = None if until is None else to_timedelta(until, "until")
        if schedules and move_time and length is None:
            raise InvalidInput('until: schedules never end; say how far to go, as in until="1d"')
        before = {job.id: job.errors for job in await self._all()}
        end = None if length is None else await self.now() + length
        drain = self._new_drain(most)
        async with drain:
            while True:
                if schedules:
                    await self._make_scheduled_jobs()
                await drain.run_due()
                due = await self._next_moment(drain, schedules=schedules)
                if due is None or not (move_time or end is not None) or (end is not None and due > end):
                    break
                await self._move_to(due)
        if end is not None:
            await self._move_to(end)
        report = await drain.report(before)
        if report.errors and raise_errors:
            raise HandlerFailed(report, self._drain_name) from next((error.exception for error in report.errors), None)
        return report

    async def _make_scheduled_jobs(self) -> None:
        """Make the jobs that are due. This runs no handler, so a fake lifespan may be unfit for child processes."""
        hooks = Hooks.without_children(self.app, tuple(self.app._arounds))
        with patch.object(self.app, "_hooks", lambda: hooks):
            await self.app.tick(runners=["schedules"])

    def _new_drain(self, most: int) -> Drain:
        return Drain(self.app, most)

    @overload
    async def run(
        self, kind: Kind[None, Result], payload: None = None, **options: Unpack[EnqueueOptions]
    ) -> Result: ...

    @overload
    async def run(self, kind: Kind[Payload, Result], payload: Payload, **options: Unpack[EnqueueOptions]) -> Result: ...

    @overload
    async def run(self, kind: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> Any: ...  # noqa: ANN401

    async def run(self, kind: Kind[Any, Any] | str, payload: object = None, **options: Unpack[EnqueueOptions]) -> Any:
        """Run one handler now, on a new job that `enqueued` does not list. Return its result, or raise its exception.

        A Snooze or Cancel is raised as well, even if the handler returned it. The handler runs in this process,
        regardless of its isolation; there is one attempt, and no timeout.
        """
        handler = self._handler(kind_name(kind))
        job = self.app._given(kind, payload, options)
        opened, failures = self.app.opened, RecordedFailures(self.app.failures)
        await opened.store.enqueue([job])
        self._run_here.add(job.id)
        async with hooked(self.app) as hooks:
            attempt = await attempted(await claimed(opened, job.id), handler, failures, opened.finish_in, hooks)
        await write(opened, attempt)
        done = await opened.reader.get(job.id)
        if done is not None and done.state is JobState.SUCCEEDED:
            return handler.typed.read_result(done.result)
        await opened.store.cancel([job.id])
        raise failures.raised.get((job.id, attempt.job.attempt)) or _as_exception(attempt)

    async def enqueued(
        self,
        kind: Kind[Any, Any] | str | None = None,
        *,
        state: JobState | str | None = None,
        queue: str | None = None,
        tenant: str | None = None,
    ) -> list[Job]:
        """Return the jobs enqueued since the block began, oldest first, in their current states."""
        jobs = await self.app.jobs.list(
            JobFilter(state=state, queue=queue, kind=None if kind is None else kind_name(kind), tenant=tenant),
            MOST_JOBS,
        )
        return [job for job in reversed(jobs) if job.id not in self._run_here]

    async def assert_enqueued(
        self,
        kind: Kind[Any, Any] | str,
        payload: object = None,
        *,
        count: int | None = None,
        queue: str | None = None,
        tenant: str | None = None,
        key: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        headers: dict[str, object] | None = None,
    ) -> list[Job]:
        """Return the jobs that match. There must be at least one, or exactly `count`.

        A payload or headers match if they contain at least what is given here. A delay is counted from the enqueue,
        and can be compared until the job ends.
        """
        expected = Expected(
            kind=kind_name(kind),
            payload=payload,
            queue=queue,
            tenant=tenant,
            key=key,
            priority=priority,
            delay=None if delay is None else to_timedelta(delay, "delay"),
            headers=headers,
        )
        jobs = await self.enqueued()
        found = [job for job in jobs if expected.matches(job)]
        if count is None and not found:
            raise AssertionError(f"nothing like {expected} was enqueued; this was:\n{listed(jobs)}")
        if count is not None and len(found) != count:
            raise AssertionError(f"{len(found)} instead of {count} × {expected} were enqueued; in all:\n{listed(jobs)}")
        return found

    async def assert_nothing_enqueued(self, kind: Kind[Any, Any] | str | None = None) -> None:
        if jobs := await self.enqueued(kind):
            raise AssertionError(f"nothing should have been enqueued, but this was:\n{listed(jobs)}")

    def relayed(self) -> list[Relayed]:
        """Return the events given to relays since the block began, oldest first. They are not sent to any broker."""
        return list(self.app.relays.held_back)

    async def now(self) -> datetime:
        """The store's clock, which decides what is due."""
        return await self.app.clock.now()

    async def advance(self, by: Duration) -> None:
        await self.app.clock.advance(to_timedelta(by, "by"))

    async def freeze(self, at: datetime | None = None) -> None:
        """Stop the store's clock, at this moment or another; `advance` and `drain` still move it."""
        await self.app.clock.freeze(await self.now() if at is None else to_aware(at, "at"))

    def _handler(self, kind: str) -> Handler:
        handler = self.app.handlers.get(kind)
        if handler is None:
            known = ", ".join(each.kind for each in self.app.handlers) or "none"
            raise InvalidInput(f"kind {kind!r} has no handler in this app; it has handlers of: {known}")
        return handler

    async def _all(self) -> list[Job]:
        return await self.app.jobs.list(JobFilter(), MOST_JOBS)

    async def _next_moment(self, drain: Drain, *, schedules: bool) -> datetime | None:
        """When the next job is due or the next occurrence of a job schedule comes."""
        moments = [await drain.next_due()]
        if schedules:
            listed = await self.app.schedules.list()
            moments += [each.next_occurrence for each in listed if each.job is not None and not each.paused]
        return min((moment for moment in moments if moment is not None), default=None)

    async def _move_to(self, time: datetime) -> None:
        now = await self.now()
        if time > now:
            await self.app.clock.advance(time - now)


def _as_exception(attempt: Attempted) -> BaseException:
    """The exception for an outcome that no exception caused."""
    match attempt.outcome:
        case Snoozed(after, until):
            return Snooze(after, until=until)
        case Canceled(error):
            return Cancel(error.message)
        case Retried(error) | Failed(error):
            return AssertionError(f"the handler of {attempt.job.kind!r} did not succeed: {error.summary}")
        case _:
            return AssertionError(f"the outcome of the handler of {attempt.job.kind!r} could not be recorded")
