"""What a producer does: builds jobs and events, and puts them into the store or into a transaction of its caller's.

Neighbours: app.py, whose apps are producers; enqueue.py and publish.py, which build jobs, events and statements;
arguments.py, which looks at what a caller gave.
"""

from collections.abc import Awaitable, Iterable, Sequence
from datetime import datetime
from typing import TypedDict, Unpack, overload
from uuid import UUID

from holdfast.domain.connections import AwaitedConnection
from holdfast.domain.duration import Duration
from holdfast.domain.errors import InvalidInput
from holdfast.domain.handlers import Handlers
from holdfast.domain.job import NewJob
from holdfast.domain.statement import Statement
from holdfast.events.subscriptions import Subscribed
from holdfast.producer.arguments import check_connection_comes_first, check_job, check_jobs, given_job
from holdfast.producer.enqueue import enqueue_many_statement, enqueue_statement, new_job
from holdfast.producer.publish import Published, new_event, publish_statement
from holdfast.rabbitmq.publisher import Publisher
from holdfast.settings import Settings
from holdfast.store.contract import Enqueued
from holdfast.store.opening import OpenStore


class EnqueueOptions(TypedDict, total=False):
    queue: str | None
    priority: int
    delay: Duration | None
    run_at: datetime | None
    tenant: str | None
    key: str | None
    if_exists: str
    window: Duration | None
    correlation_id: str | None
    attempts: int | None
    headers: dict[str, object] | None
    id: UUID | None


class PublishOptions(TypedDict, total=False):
    tenant: str | None
    key: str | None
    correlation_id: str | None
    headers: dict[str, object] | None
    id: UUID | None


class Producer:
    """What takes the caller's connection needs no open app, only the name of the schema; all else needs one."""

    settings: Settings
    handlers: Handlers
    subscribed: Subscribed
    _publisher: Publisher | None

    @property
    def opened(self) -> OpenStore:
        raise NotImplementedError

    async def enqueue(self, kind: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> Enqueued:
        """Enqueue one job in a transaction of its own."""
        (enqueued,) = await self._enqueue((self.job(kind, payload, **options),))
        return enqueued

    async def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue all jobs or none, in one transaction. Build them with `job`."""
        return await self._enqueue(check_jobs(jobs))

    async def _enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        enqueued = await self.opened.store.enqueue(jobs)
        if self._publisher is not None:
            await self.ring([each.id for each in enqueued if each.is_new or each.replaced])
        return enqueued

    async def ring(self, ids: Sequence[UUID]) -> None:
        """Wake workers by RabbitMQ, if there is one, after a commit of your own; everybody else needs no call.

        Does not wait for the broker: the wake-up is sent beside, before `close` at the latest.
        """
        if self._publisher is not None:
            self._publisher.hand_over(ids)

    def job(self, kind: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> NewJob:
        """A checked job that is not enqueued yet; its id is known already."""
        return new_job(self.handlers, kind, payload, **options)

    # An async connection is an object too, so mypy sees an overlap; the first signature that fits is the right one.
    @overload
    def enqueue_in(  # type: ignore[overload-overlap]
        self,
        connection: AwaitedConnection,
        job: NewJob | str,
        payload: object = None,
        **options: Unpack[EnqueueOptions],
    ) -> Awaitable[Enqueued]: ...

    @overload
    def enqueue_in(
        self, connection: object, job: NewJob | str, payload: object = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued: ...

    def enqueue_in(
        self, connection: object, job: NewJob | str, payload: object = None, **options: Unpack[EnqueueOptions]
    ) -> Enqueued | Awaitable[Enqueued]:
        """Enqueue in the caller's own transaction: commit makes the job visible, rollback leaves nothing.

        The connection, session or cursor is one of asyncpg, psycopg, SQLAlchemy or Django; await the answer if it is an
        async one. The job is a kind with its payload and options, or what `job` built. Needs no open app.
        """
        check_connection_comes_first(connection, "app.enqueue_in")
        return self.enqueue_statement(given_job(self.job, job, payload, options)).execute_on(connection)

    @overload
    def enqueue_many_in(  # type: ignore[overload-overlap]
        self, connection: AwaitedConnection, jobs: Iterable[NewJob]
    ) -> Awaitable[list[Enqueued]]: ...

    @overload
    def enqueue_many_in(self, connection: object, jobs: Iterable[NewJob]) -> list[Enqueued]: ...

    def enqueue_many_in(self, connection: object, jobs: Iterable[NewJob]) -> list[Enqueued] | Awaitable[list[Enqueued]]:
        """Like `enqueue_in` for many jobs, by one statement. The answers are in the order of the jobs."""
        return enqueue_many_statement(self._schema_with_transactions, check_jobs(jobs)).execute_on(connection)

    def enqueue_statement(self, job: NewJob) -> Statement[Enqueued]:
        """What `enqueue_in` executes, for a library that it does not know: `sql` with $1 … $n, and `parameters`."""
        return enqueue_statement(self._schema_with_transactions, check_job(job))

    async def publish(self, type: str, payload: object = None, **options: Unpack[PublishOptions]) -> Published:
        """Publish one event in a transaction of its own: one job for each subscription that matches."""
        event = new_event(self.handlers, self.subscribed, type, payload, **options)
        published = Published(event.id, tuple(await self.opened.events.publish(event)))
        await self.ring(published.new_ids)
        return published

    @overload
    def publish_in(  # type: ignore[overload-overlap]
        self, connection: AwaitedConnection, type: str, payload: object = None, **options: Unpack[PublishOptions]
    ) -> Awaitable[Published]: ...

    @overload
    def publish_in(
        self, connection: object, type: str, payload: object = None, **options: Unpack[PublishOptions]
    ) -> Published: ...

    def publish_in(
        self, connection: object, type: str, payload: object = None, **options: Unpack[PublishOptions]
    ) -> Published | Awaitable[Published]:
        """Publish in the caller's own transaction, on any connection that `enqueue_in` takes."""
        check_connection_comes_first(connection, "app.publish_in")
        return self.publish_statement(type, payload, **options).execute_on(connection)

    def publish_statement(
        self, type: str, payload: object = None, **options: Unpack[PublishOptions]
    ) -> Statement[Published]:
        """What `publish_in` executes, for a library that it does not know: `sql` with $1 … $n, and `parameters`."""
        event = new_event(self.handlers, self.subscribed, type, payload, **options)
        return publish_statement(self._schema_with_transactions, event)

    @property
    def _schema_with_transactions(self) -> str:
        if self.settings.store.startswith("memory"):
            raise InvalidInput("a transaction of yours needs a PostgreSQL store; jobs in memory have no transaction")
        return self.settings.db_schema
