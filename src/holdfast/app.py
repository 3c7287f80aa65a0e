"""The composition root: settings become a store, a producer and a worker."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

from holdfast.connections import AwaitedConnection
from holdfast.cron import DEFAULT_MISSED_LIMIT, Missed
from holdfast.duration import Duration, to_timedelta
from holdfast.errors import InvalidInput
from holdfast.event import check_pattern
from holdfast.failures import Failures
from holdfast.handlers import HandlerFunction, Handlers, make_handler
from holdfast.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, Job, NewJob
from holdfast.limits import check_concurrency, check_lease, check_poll
from holdfast.producer.enqueue import enqueue_many_statement, enqueue_statement, new_job
from holdfast.producer.publish import Published, new_event, publish_statement
from holdfast.relay.relays import Relays, RelayTerms
from holdfast.retry import Backoff
from holdfast.runtime.compose import AppParts, broker, build_process
from holdfast.runtime.process import Process
from holdfast.runtime.row_queues import RowQueue, RowQueues
from holdfast.runtime.tick import TickReport
from holdfast.schedules import Declarations, Schedules, job_template, to_terms
from holdfast.settings import Settings
from holdfast.statement import Statement
from holdfast.store.contract import Canceling, Enqueued, JobReader, Retrying, Shard, StoreClock
from holdfast.store.events import NewSubscription
from holdfast.store.opening import OpenStore, opened
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.store import RowStore
from holdfast.store.schedules import RunStore
from holdfast.subscriptions import Subscribed, Subscriptions, kind_for
from holdfast.waiters.opening import open_waits
from holdfast.waiters.waits import Waits
from holdfast.wake.publisher import Publisher
from holdfast.wake.rabbitmq import Trigger
from holdfast.worker.settings import WorkerSettings

Function = TypeVar("Function", bound=HandlerFunction)
Runner = TypeVar("Runner", bound=Callable[..., Any])


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


class HandlerPolicy(TypedDict, total=False):
    queue: str
    attempts: int
    backoff: Backoff | str | None
    timeout: Duration
    lease: Duration | None
    limit: int | None
    isolation: str | None


class HandlerOptions(HandlerPolicy, total=False):
    payload: Any


class Holdfast:
    """Register handlers at import time, open it to enqueue or to work: `async with app: await app.enqueue(…)`."""

    def __init__(self, store: str | None = None, *, schema: str | None = None) -> None:
        self.settings = Settings.load(called={"db_schema": "schema"}, store=store, db_schema=schema)
        self.handlers = Handlers()
        self.declarations = Declarations()
        self.subscribed = Subscribed()
        self.relays = Relays()
        self.row_queues = RowQueues()
        self.failures = Failures()
        self._open: OpenStore | None = None
        self._publisher: Publisher | None = None
        self._waits: Waits | None = None
        self._exits = AsyncExitStack()

    def handler(self, kind: str, **options: Unpack[HandlerOptions]) -> Callable[[Function], Function]:
        """Make a function the handler of a kind. It stays an ordinary function."""
        if callable(kind):
            raise InvalidInput('name the kind: write @app.handler("some.kind"), not @app.handler')

        def register(function: Function) -> Function:
            self.handlers.add(make_handler(kind, function, **options))
            return function

        return register

    def schedule(
        self,
        timetable: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        payload: object = None,
        priority: int = DEFAULT_PRIORITY,
        missed: str = Missed.ONCE,
        missed_limit: int = DEFAULT_MISSED_LIMIT,
        **options: Unpack[HandlerPolicy],
    ) -> Callable[[Function], Function]:
        """Make a job at each slot: of the handler below, or of the kind `name`, whose handler the function becomes."""
        terms = to_terms(timetable, tz, missed, missed_limit)

        def register(function: Function) -> Function:
            kind = self._kind_of(function, name, options)
            job = job_template(self.handlers, kind, payload, priority=priority)
            self.declarations.add_job(kind if name is None else name, terms, job)
            return function

        return register

    def _kind_of(self, function: HandlerFunction, name: str | None, policy: HandlerPolicy) -> str:
        """The kind whose handler the function is; if it is none yet, it becomes one."""
        kinds = [handler.kind for handler in self.handlers.of(function)]
        if not kinds:
            kind = getattr(function, "__name__", "") if name is None else name
            self.handlers.add(make_handler(kind, function, **policy))
            return kind
        if len(kinds) > 1:
            raise InvalidInput(f"{', '.join(kinds)} have the same function; schedule each with a function of its own")
        if policy:
            raise InvalidInput(f"{', '.join(policy)}: say this where {kinds[0]!r} gets its handler")
        return kinds[0]

    def runner(
        self,
        name: str,
        timetable: str,
        *,
        tz: str = "UTC",
        missed: str = Missed.ONCE,
        missed_limit: int = DEFAULT_MISSED_LIMIT,
        lock: str | None = None,
    ) -> Callable[[Runner], Runner]:
        """Run the function itself at each slot, inside a process of the app, on one replica at a time."""
        terms = to_terms(timetable, tz, missed, missed_limit)

        def register(function: Runner) -> Runner:
            self.declarations.add_inline(name, terms, function, lock)
            return function

        return register

    def rows(
        self,
        mapping: Rows,
        *,
        concurrency: int | None = None,
        lease: Duration | None = None,
        poll: Duration | None = None,
    ) -> None:
        """Work on an application's own table as on a queue; the runner is called `rows:` and the mapping's name."""
        queue = RowQueue(
            mapping,
            None if concurrency is None else check_concurrency(concurrency),
            None if lease is None else check_lease(to_timedelta(lease, "lease")),
            None if poll is None else check_poll(to_timedelta(poll, "poll")),
        )
        self.row_queues.add(queue)

    def error(
        self, exception: type[BaseException], *, code: str, retryable: bool = True, after: Duration | None = None
    ) -> None:
        """Give an exception type its code, and say whether the attempt may be tried again."""
        self.failures.register(exception, code=code, retryable=retryable, after=after)

    async def open(self) -> None:
        if self.settings.rabbitmq_url is not None:
            self._publisher = Publisher(Trigger(broker(self.settings)))
            self._exits.push_async_callback(self._publisher.close)
        self._open = await self._exits.enter_async_context(opened(self.settings.store, self.settings.db_schema))
        self._exits.push_async_callback(self.relays.close)
        if self.settings.store.startswith("memory"):
            # Nobody else can declare anything there.
            await self._open.events.declare(list(self.subscribed))

    async def close(self) -> None:
        self._open = self._waits = None
        await self._exits.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def enqueue(self, kind: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> Enqueued:
        """Enqueue one job in a transaction of its own."""
        (enqueued,) = await self.enqueue_many([self.job(kind, payload, **options)])
        return enqueued

    async def enqueue_many(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue all jobs or none, in one transaction. Build them with `job`."""
        enqueued = await self.opened.store.enqueue(jobs)
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
        if isinstance(job, str):
            job = self.job(job, payload, **options)
        elif payload is not None or options:
            raise InvalidInput("this job has its payload and options already; give those to app.job(…)")
        return self.enqueue_statement(job).execute_on(connection)

    @overload
    def enqueue_many_in(  # type: ignore[overload-overlap]
        self, connection: AwaitedConnection, jobs: Iterable[NewJob]
    ) -> Awaitable[list[Enqueued]]: ...

    @overload
    def enqueue_many_in(self, connection: object, jobs: Iterable[NewJob]) -> list[Enqueued]: ...

    def enqueue_many_in(self, connection: object, jobs: Iterable[NewJob]) -> list[Enqueued] | Awaitable[list[Enqueued]]:
        """Like `enqueue_in` for many jobs, by one statement. The answers are in the order of the jobs."""
        return enqueue_many_statement(self._schema_with_transactions, jobs).execute_on(connection)

    def enqueue_statement(self, job: NewJob) -> Statement[Enqueued]:
        """What `enqueue_in` executes, for a library that it does not know: `sql` with $1 … $n, and `parameters`."""
        return enqueue_statement(self._schema_with_transactions, job)

    @property
    def _schema_with_transactions(self) -> str:
        if self.settings.store.startswith("memory"):
            raise InvalidInput("a transaction of yours needs a PostgreSQL store; jobs in memory have no transaction")
        return self.settings.db_schema

    async def cancel(self, ids: Sequence[UUID]) -> list[Canceling]:
        return await self.opened.store.cancel(ids)

    async def retry(self, ids: Sequence[UUID]) -> list[Retrying]:
        return await self.opened.store.retry(ids)

    async def wait(self, job_id: UUID, timeout: Duration = "30s") -> Job:
        """The job as soon as it is final, or at the timeout as it is then: its state tells. "0s" looks once.

        UnknownJob if there is none, StoreUnavailable if the store is away when the time is up.
        """
        return (await self.wait_many([job_id], timeout))[job_id]

    async def wait_many(self, job_ids: Collection[UUID], timeout: Duration = "30s") -> dict[UUID, Job]:
        """The jobs as soon as all of them are final, or at the timeout as they are then."""
        if self._waits is None:
            self._waits = open_waits(self.opened, self.settings)
            self._exits.push_async_callback(self._waits.close)
        return await self._waits.wait(job_ids, timeout)

    @property
    def jobs(self) -> JobReader:
        return self.opened.reader

    @property
    def schedules(self) -> Schedules:
        return Schedules(self.opened.schedules, self.declarations, self.handlers)

    @property
    def runs(self) -> RunStore:
        return self.opened.runs

    def row_store(self, mapping: Rows) -> RowStore:
        """A mapping's rows as jobs: `jobs` to read them, `cancel` and `retry` for a person."""
        if self.opened.rows is None:
            raise InvalidInput("rows need a PostgreSQL store; use postgresql://user@host/database or embedded:")
        return self.opened.rows(mapping)

    @property
    def clock(self) -> StoreClock:
        return self.opened.clock

    @property
    def is_open(self) -> bool:
        return self._open is not None

    @property
    def opened(self) -> OpenStore:
        if self._open is None:
            raise InvalidInput("the app is not open; use `async with app:` or `await app.open()`")
        return self._open

    def worker(self, settings: WorkerSettings | None = None, *, runners: Sequence[str] | None = None) -> Process:
        """What runs jobs and schedules in this process: `await worker.run()` until `worker.stop()`, or one tick."""
        if not len(self.handlers) and not len(self.declarations):
            raise InvalidInput("the app has no handlers; register one with @app.handler(kind)")
        self.relays.use(self.settings.rabbitmq_url)
        parts = AppParts(
            self.opened,
            self.settings,
            self.handlers,
            self.failures,
            self.declarations,
            list(self.subscribed),
            list(self.row_queues),
        )
        names = self.settings.runners if runners is None else runners
        return build_process(parts, settings or self.worker_settings(), names)

    async def tick(self, *, runners: Sequence[str] | None = None) -> TickReport:
        """One bounded pass over the runners, for cron and the like."""
        return await self.worker(runners=runners).tick()

    def worker_settings(self, **changes: Any) -> WorkerSettings:  # noqa: ANN401
        """The app's settings with some of them changed; None changes nothing."""
        given = self.settings.changed(**changes)
        return WorkerSettings(
            concurrency=given.concurrency,
            queues=given.queues,
            lease=given.lease,
            poll=given.poll,
            shutdown=given.shutdown,
            most_ahead=given.most_ahead,
            renew=given.renew,
            shard=_shard(given.shard_index, given.shard_count),
        )

    def on(
        self,
        pattern: str,
        *,
        name: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Function], Function]:
        """Make a job of each event whose type is `pattern`, or begins like it: `invoice.paid`, `invoice.*`, or `*`.

        The function is its handler. The kind is `name`, or the one that the function handles, or the function's name.
        """
        check_pattern(pattern)

        def register(function: Function) -> Function:
            kind = kind_for(self.handlers, function, name)
            if all(handler.kind != kind for handler in self.handlers.of(function)):
                self.handlers.add(make_handler(kind, function, **options))
            elif options:
                raise InvalidInput(f"{', '.join(options)}: say this where {kind!r} gets its handler")
            self.subscribed.add(NewSubscription(kind, pattern, self.handlers.queue_of(kind), priority))
            return function

        return register

    def relay(
        self,
        pattern: str,
        *,
        exchange: str,
        name: str | None = None,
        url: str | None = None,
        mandatory: bool = False,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        limit: int = 100,
    ) -> None:
        """Pass events on to a topic exchange of RabbitMQ: each at least once, however long the broker is away.

        The broker is that of the settings, or of `url`. With `mandatory` an event waits until a queue is bound for it.
        `limit` is how many one worker has under way at once.
        """
        kind = f"relay.{exchange}" if name is None else name
        self.handlers.add(self.relays.handler(kind, RelayTerms(exchange, url, mandatory), queue, limit))
        self.subscribed.add(NewSubscription(kind, pattern, queue, priority))

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
        event = new_event(self.handlers, self.subscribed, type, payload, **options)
        return publish_statement(self._schema_with_transactions, event).execute_on(connection)

    async def declare(self) -> None:
        """Put the schedules and subscriptions of this code into the store, as a worker does when it starts."""
        now = await self.clock.now()
        await self.opened.schedules.declare([declared.as_new(now) for declared in self.declarations])
        await self.opened.events.declare(list(self.subscribed))

    @property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(self.opened.events, self.subscribed, self.handlers)


def _shard(index: int | None, count: int | None) -> Shard | None:
    if index is None or count is None:
        return None
    return Shard(index, count)
