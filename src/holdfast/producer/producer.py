"""The producer builds jobs and events, and writes them to the store, on its own or in the caller's transaction.

Neighbors: app.py, whose apps are producers; sync.py, the same for blocking code; new_jobs.py and new_events.py, which
build jobs and events; arguments.py, which checks arguments.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, overload
from uuid import UUID

from holdfast.domain.connections import AwaitedConnection
from holdfast.domain.duration import Duration
from holdfast.domain.enqueued import Enqueued
from holdfast.domain.event import NewEvent
from holdfast.domain.framework import Framework
from holdfast.domain.handlers import Handlers
from holdfast.domain.job import Job, NewJob, to_ids
from holdfast.domain.kinds import Kind, Payload, Result
from holdfast.domain.statement import Statement
from holdfast.events.subscriptions import Subscribed
from holdfast.producer.arguments import check_jobs, given_job
from holdfast.producer.new_events import Published, new_event
from holdfast.producer.new_jobs import new_job
from holdfast.producer.options import EnqueueOptions, PublishOptions
from holdfast.producer.sync import SyncProducer
from holdfast.producer.transactions import Transactions
from holdfast.producer.undeclared import UndeclaredKinds
from holdfast.settings import Settings
from holdfast.store.contract import Canceling, Deleting, Retrying
from holdfast.store.opening import Applied, OpenStore, statements


class Producer:
    """Each verb takes `conn`: the connection, session or cursor whose transaction the verb joins.

    It must be an async one of asyncpg, psycopg or SQLAlchemy; `sync` has the same verbs for blocking ones. With `conn`
    the app does not have to be open; it needs only the name of the schema. Without `conn` the verb uses its own
    transaction, on an open app.
    """

    settings: Settings
    handlers: Handlers
    subscribed: Subscribed
    sync: SyncProducer
    """The same verbs for blocking code."""
    _framework: Framework | None = None
    """A framework that keeps a connection for each thread, such as Django."""
    _undeclared: UndeclaredKinds
    _stand_in: Transactions | None = None
    """Stands in for an app in memory under test, which has no transactions."""

    @property
    def is_open(self) -> bool:
        raise NotImplementedError

    @property
    def opened(self) -> OpenStore:
        raise NotImplementedError

    @property
    def _ring(self) -> Callable[[Sequence[UUID]], None] | None:
        """The function that rings through RabbitMQ, callable on any event loop; None without RabbitMQ."""
        raise NotImplementedError

    async def open(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def migrate(self, *, grant: str | None = None) -> Applied:
        raise NotImplementedError

    async def wait(self, job_id: UUID | str, timeout: Duration = "30s") -> Job:
        raise NotImplementedError

    async def wait_many(self, job_ids: Iterable[UUID | str], timeout: Duration = "30s") -> dict[UUID, Job]:
        raise NotImplementedError

    async def wait_for(self, kind: Kind | str, key: str, timeout: Duration = "30s", *, tenant: str = "") -> Job:
        raise NotImplementedError

    @overload
    def job(
        self, kind: Kind[None, Result], payload: None = None, **options: Unpack[EnqueueOptions]
    ) -> NewJob[Result]: ...

    @overload
    def job(
        self, kind: Kind[Payload, Result], payload: Payload, **options: Unpack[EnqueueOptions]
    ) -> NewJob[Result]: ...

    @overload
    def job(self, kind: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> NewJob: ...

    def job(self, kind: Kind[Any, Any] | str, payload: object = None, **options: Unpack[EnqueueOptions]) -> NewJob:
        """Build and check a job without enqueuing it. Its ID is already set."""
        return new_job(self.handlers, kind, payload, **options)

    @overload
    async def enqueue(
        self,
        kind: Kind[None, Result],
        payload: None = None,
        *,
        conn: AwaitedConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued[Result]: ...

    @overload
    async def enqueue(
        self,
        kind: Kind[Payload, Result],
        payload: Payload,
        *,
        conn: AwaitedConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued[Result]: ...

    @overload
    async def enqueue(self, kind: NewJob[Result], *, conn: AwaitedConnection | None = None) -> Enqueued[Result]: ...

    @overload
    async def enqueue(
        self,
        kind: str,
        payload: object = None,
        *,
        conn: AwaitedConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued: ...

    async def enqueue(
        self,
        kind: Kind[Any, Any] | NewJob | str,
        payload: object = None,
        *,
        conn: AwaitedConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Enqueued:
        """Enqueue one job: a kind with its payload and options, or a job built by `job`."""
        (enqueued,) = await self._enqueue((given_job(self.job, kind, payload, options),), "enqueue", conn)
        return enqueued

    async def enqueue_many(
        self, jobs: Iterable[NewJob[Result]], *, conn: AwaitedConnection | None = None
    ) -> list[Enqueued[Result]]:
        """Enqueue all jobs or none, with one statement. Build them with `job`; the answers are in the same order."""
        return await self._enqueue(check_jobs(jobs), "enqueue_many", conn)

    async def _enqueue(self, jobs: Sequence[NewJob], verb: str, conn: AwaitedConnection | None) -> list[Enqueued]:
        if conn is not None:
            answers = await self._transactions.enqueue(jobs).execute_awaited(conn, verb)
            if self.is_open:
                await self._undeclared.warn_of(jobs, self.handlers, self.opened.kinds)
            return self._answered(jobs, answers)
        opened = self.opened
        enqueued = await opened.store.enqueue(jobs)
        if self._undeclared.has_new(jobs):
            await self._undeclared.warn_of(jobs, self.handlers, opened.kinds)
        if opened.ring is not None:
            opened.ring([each.id for each in enqueued if each.is_new or each.replaced])
        return self._answered(jobs, enqueued)

    async def ring(self, ids: Sequence[UUID]) -> None:
        """Wake workers through RabbitMQ, if configured, after you commit your own transaction. Not needed otherwise.

        Does not wait for the broker: the wake-up is sent in the background, before `close` at the latest.
        """
        if self._ring is not None:
            self._ring(ids)

    async def publish(
        self,
        type: str,
        payload: object = None,
        *,
        conn: AwaitedConnection | None = None,
        **options: Unpack[PublishOptions],
    ) -> Published:
        """Publish one event: make one job for each matching subscription."""
        return await self._publish_event(new_event(self.handlers, self.subscribed, type, payload, **options), conn)

    async def _publish_event(self, event: NewEvent, conn: AwaitedConnection | None = None) -> Published:
        if conn is not None:
            return Published(event.id, tuple(await self._transactions.publish(event).execute_awaited(conn, "publish")))
        published = Published(event.id, tuple(await self.opened.events.publish(event)))
        await self.ring(published.new_ids)
        return published

    async def cancel(self, ids: Iterable[UUID | str], *, conn: AwaitedConnection | None = None) -> list[Canceling]:
        """Cancel jobs; return one answer for each ID, in the same order.

        `canceled`: it was waiting or a dead letter, and is now canceled. `requested`: it is running, and its handler is
        stopped at the next renewal of its lease. `final`: it has already succeeded or been canceled. `locked`: its
        handler's transaction is finishing it right now. `unknown`: no job has this ID. The last three change nothing.
        """
        if conn is not None:
            return await self._transactions.cancel(to_ids(ids)).execute_awaited(conn, "cancel")
        return await self.opened.store.cancel(to_ids(ids))

    async def retry(self, ids: Iterable[UUID | str], *, conn: AwaitedConnection | None = None) -> list[Retrying]:
        """Retry final jobs, even those that succeeded; return one answer for each ID, in the same order.

        `ready`: it now waits to run, with attempts and losses counted from zero. `live`: it is already waiting or
        running. `locked`: another transaction is changing it right now. `unknown`: no job has this ID. The last three
        change nothing.
        """
        if conn is not None:
            return await self._transactions.retry(to_ids(ids)).execute_awaited(conn, "retry")
        return await self.opened.store.retry(to_ids(ids))

    async def delete(self, ids: Iterable[UUID | str], *, conn: AwaitedConnection | None = None) -> list[Deleting]:
        """Delete final jobs, even dead letters, with payload, result and errors; return one answer per ID, in order.

        `deleted`: it is gone, and its key is free. `live`: it is waiting or running; cancel it first. `locked`: another
        transaction is changing it right now. `unknown`: no job has this ID. The last three change nothing.
        """
        if conn is not None:
            return await self._transactions.delete(to_ids(ids)).execute_awaited(conn, "delete")
        return await self.opened.store.delete(to_ids(ids))

    def statement(self, *jobs: NewJob[Result]) -> Statement[list[Enqueued[Result]]]:
        """Return the statement that `conn=` would execute, for a library that Holdfast does not support.

        Run `sql` with its `parameters`, $1 … $n, inside your transaction; `read` turns the rows into answers.
        """
        checked = check_jobs(jobs)
        made = statements(self.settings.store, self.settings.db_schema).enqueue(checked)
        return replace(made, read=lambda rows: self._answered(checked, made.read(rows)))

    @property
    def _transactions(self) -> Transactions:
        return self._stand_in or statements(self.settings.store, self.settings.db_schema)

    def _given(self, kind: object, payload: object, options: Mapping[str, object]) -> NewJob:
        return given_job(self.job, kind, payload, options)

    def _answered(self, jobs: Sequence[NewJob], answers: list[Enqueued]) -> list[Enqueued]:
        """Complete the answers with the app and the kinds needed to wait for results."""
        for job, answer in zip(jobs, answers):  # noqa: B905 - checking their lengths costs more than the loop
            answer._kind, answer._app = job.typed, self
        return answers
