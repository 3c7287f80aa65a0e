"""The composition root: settings become a store, a producer and a worker.

Neighbors: declaring.py has the decorators, producer/producer.py the methods that producers call.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Generic, Self, Unpack
from uuid import UUID

from holdfast.declaring import Declaring
from holdfast.domain.address import MaskedAddress
from holdfast.domain.duration import Duration
from holdfast.domain.errors import InvalidInput
from holdfast.domain.event_loop import running_loop
from holdfast.domain.handlers import State
from holdfast.domain.inherited import leave_to_parent
from holdfast.domain.job import Job, to_ids
from holdfast.domain.keys import KeyName
from holdfast.domain.kinds import Kind
from holdfast.events.subscriptions import Subscriptions
from holdfast.producer.undeclared import UndeclaredKinds
from holdfast.rabbitmq.publisher import Publisher
from holdfast.rabbitmq.subscriber import Trigger
from holdfast.runtime.compose import AppParts, broker, build_process
from holdfast.runtime.process import Process
from holdfast.runtime.tick import TickReport
from holdfast.scheduling.every_tick import at_every_poll
from holdfast.scheduling.schedules import Schedules
from holdfast.settings import GivenSettings, Settings, check_given
from holdfast.store.contract import JobReader, Shard, StoreClock
from holdfast.store.opening import OpenStore, announce_default, database_url, migrate, opened, server_url
from holdfast.store.postgres.migrate import Applied
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.store import RowStore
from holdfast.store.schedules import RunStore
from holdfast.waits.opening import open_waits
from holdfast.waits.waits import Waits
from holdfast.worker.hooks import Hooks, check_lifespan, remember
from holdfast.worker.settings import WorkerSettings


class Holdfast(Declaring[State], Generic[State]):
    """An app. Register handlers at import time; open it to enqueue or work: `async with app: await app.enqueue(…)`."""

    def __init__(
        self,
        store: str | None = None,
        *,
        schema: str | None = None,
        lifespan: "Callable[[Holdfast[State]], AbstractAsyncContextManager[State]] | None" = None,
        **settings: Unpack[GivenSettings],
    ) -> None:
        """Settings passed here override those of the environment, one by one; None keeps the environment's value.

        `lifespan` opens what handlers need, once in each process that runs them; `job.state` is the value it yields.
        """
        check_given(settings)
        check_lifespan(lifespan)
        self.lifespan = self._given_lifespan = lifespan
        self.settings = Settings.load(called={"db_schema": "schema"}, store=store, db_schema=schema, **settings)
        super().__init__()
        self._opened: dict[asyncio.AbstractEventLoop | None, _Opened] = {}
        self._undeclared = UndeclaredKinds()
        leave_to_parent(self)
        if lifespan is not None:
            remember(self)

    async def open(self) -> None:
        """Connect. `close` releases everything, and so does an `open` that fails.

        Connections belong to an event loop. An app can be open on several at once, each with its own.
        """
        loop = running_loop()
        if loop in self._opened:
            raise InvalidInput("the app is already open; open it once per event loop")
        parts = _Opened(AsyncExitStack())
        try:
            await self._open_parts(parts)
        except BaseException:
            await parts.exits.aclose()
            raise
        self._opened[loop] = parts

    async def _open_parts(self, parts: "_Opened") -> None:
        self._follow_framework()
        given = self.settings
        if self._framework is not None and self._framework.is_followed(given.store):
            self._framework.check_use()
        is_memory = given.store.startswith("memory")
        if is_memory and (shared := next(iter(self._opened.values()), None)) is not None:
            # The jobs exist only in that store, so all event loops share it.
            parts.store = replace(shared.store, loop=running_loop())
            return
        store = opened(MaskedAddress(given.store), given.db_schema, direct_url=given.listen_url)
        parts.store = await parts.exits.enter_async_context(store)
        if given.rabbitmq_url is not None:
            publisher = Publisher(Trigger(broker(given)))
            parts.exits.push_async_callback(publisher.close)
            parts.store = replace(parts.store, ring=publisher.hand_over)
        if "store" not in given.model_fields_set:
            announce_default(given.store)
        if is_memory:
            # No other process can declare subscriptions in memory.
            await parts.store.events.declare(list(self.subscribed))

    def _follow_framework(self) -> None:
        """Switch to the test database of the framework, if its tests are running."""
        if self._framework is not None:
            store = self._framework.store_url(self.settings.store)
            if store != self.settings.store:
                self.settings = self.settings.changed(store=store)

    async def close(self) -> None:
        """Close everything that `open` opened on this event loop."""
        parts = self._opened.pop(running_loop(), None)
        if parts is not None:
            await parts.exits.aclose()

    def _left_to_parent(self) -> object:
        left, self._opened = self._opened, {}
        return left

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def migrate(self, *, grant: str | None = None) -> Applied:
        """Create Holdfast's tables in the database, or bring them up to date. The memory store needs none.

        `grant`: the role that workers and producers connect as, if it does not own the tables.
        """
        self._follow_framework()
        given = self.settings
        if given.store.startswith("memory"):
            return Applied()
        async with server_url(MaskedAddress(given.store)) as server:
            return await migrate(server, given.db_schema, grant=grant)

    async def wait(self, job_id: UUID | str, timeout: Duration = "30s") -> Job:
        """Wait until the job is final or the timeout passes, and return it; check its `state`. "0s" checks once.

        Raises UnknownJob if there is no such job, and StoreUnavailable if the store is unavailable at the timeout.
        """
        (job,) = (await self.wait_many([job_id], timeout)).values()
        return job

    async def wait_many(self, job_ids: Iterable[UUID | str], timeout: Duration = "30s") -> dict[UUID, Job]:
        """Wait until all jobs are final or the timeout passes, and return them in the order of the IDs."""
        return await self._waits_of_store().wait(to_ids(job_ids), timeout)

    async def wait_for(self, kind: Kind | str, key: str, timeout: Duration = "30s", *, tenant: str = "") -> Job:
        """Wait until the job with this key is final or the timeout passes, and return it. It may not exist yet.

        The wait stays with the first job it finds, even if a newer job gets the key. Raises UnknownJob if no job has
        the key at the timeout.
        """
        return await self._waits_of_store().wait_for(KeyName.of(kind, key, tenant), timeout)

    def _waits_of_store(self) -> Waits:
        here = self._here()
        if here.waits is None:
            here.waits = open_waits(here.store, self.settings)
            here.exits.push_async_callback(here.waits.close)
        return here.waits

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
        """Return the rows of a mapping as jobs: `jobs` reads them, `cancel` and `retry` act on them."""
        if self.opened.rows is None:
            raise InvalidInput("rows need a PostgreSQL store; use postgresql://user@host/database or embedded:")
        return self.opened.rows(mapping)

    @property
    def clock(self) -> StoreClock:
        return self.opened.clock

    @property
    def is_open(self) -> bool:
        """Whether the app is open on the running event loop."""
        return self._found() is not None

    @property
    def url(self) -> str:
        """The address of the store's database, for your own connections with asyncpg or psycopg.

        An embedded database has one while the app is open.
        """
        found = self._found() or next(iter(self._opened.values()), None)
        if found is not None:
            return database_url(found.store.url)
        self._follow_framework()
        return database_url(self.settings.store)

    @property
    def opened(self) -> OpenStore:
        # Every enqueue gets here, so the usual path is short.
        try:
            return self._opened[asyncio.get_running_loop()].store
        except (KeyError, RuntimeError):
            pass
        return self._here().store

    @property
    def _ring(self) -> Callable[[Sequence[UUID]], None] | None:
        found = self._found() or next(iter(self._opened.values()), None)
        return None if found is None else found.store.ring

    def _here(self) -> "_Opened":
        found = self._found()
        if found is not None:
            return found
        if running_loop() is None:
            where = "is open on several event loops" if self._opened else "is not open"
            raise InvalidInput(
                f"the app {where}; use app.sync, such as app.sync.run(lambda: app.schedules.list()), or in a coroutine "
                "`async with app:`"
            )
        if self._opened:
            raise InvalidInput("the app is not open on this event loop; use `async with app:`")
        raise InvalidInput("the app is not open; use `async with app:` or `await app.open()`")

    def _found(self) -> "_Opened | None":
        loop = running_loop()
        if loop is None and len(self._opened) == 1:
            return next(iter(self._opened.values()))
        # An app in memory may have been opened without a loop, and then it serves every loop.
        return self._opened.get(loop) or self._opened.get(None)

    def worker(self, settings: WorkerSettings | None = None, *, runners: Sequence[str] | None = None) -> Process:
        """Return a process that runs jobs and schedules: `await worker.run()` until `worker.stop()`, or one tick."""
        if not len(self.handlers) and not len(self.declarations):
            raise InvalidInput("the app has no handlers; register one with @app.handler(kind)")
        self.relays.use(self.settings.rabbitmq_url)
        self._here().exits.push_async_callback(self.relays.close)
        parts = AppParts(
            self.opened,
            self.settings,
            self.handlers,
            self.failures,
            self.declarations,
            list(self.subscribed),
            list(self.row_queues),
            self._hooks(),
        )
        names = self.settings.runners if runners is None else runners
        return build_process(parts, settings or self.worker_settings(), names)

    def _hooks(self) -> Hooks:
        """The lifespan and the wrappers around the handlers of one process."""
        return Hooks.of(self, tuple(self._arounds))

    async def tick(self, *, runners: Sequence[str] | None = None) -> TickReport:
        """Make one bounded pass over the runners, for cron and similar tools."""
        return await self.worker(runners=runners).tick()

    def worker_settings(self, **changes: Unpack[GivenSettings]) -> WorkerSettings:
        """The app's settings with some of them changed; None keeps a setting."""
        check_given(changes)
        given = self.settings.changed(**changes)
        return WorkerSettings(
            concurrency=given.concurrency,
            queues=given.queues,
            lease=given.lease,
            poll=given.poll,
            idle_backoff_max=given.idle_backoff_max,
            shutdown=given.shutdown,
            most_ahead=given.most_ahead,
            claim_max=given.claim_max,
            processes=given.processes,
            process_jobs=given.process_jobs,
            process_megabytes=given.process_megabytes,
            claim_bytes=given.claim_bytes,
            renew=given.renew,
            log_attempts=given.log_attempts,
            log_tracebacks=given.log_tracebacks,
            log_blocked=given.log_blocked,
            shard=_shard(given.shard_index, given.shard_count),
        )

    async def declare(self) -> None:
        """Store this code's schedules, subscriptions and kinds, as a worker does when it starts."""
        now = await self.clock.now()
        await self.opened.schedules.declare(
            [declared.as_new(now) for declared in at_every_poll(self.declarations, self.settings.poll)]
        )
        await self.opened.events.declare(list(self.subscribed))
        await self.opened.kinds.declare(self.handlers.versions)

    @property
    def subscriptions(self) -> Subscriptions:
        return Subscriptions(self.opened.events, self.subscribed, self.handlers)


@dataclass(slots=True)
class _Opened:
    """The open parts of an app on one event loop."""

    exits: AsyncExitStack
    store: OpenStore = field(init=False)
    waits: Waits | None = None


def _shard(index: int | None, count: int | None) -> Shard | None:
    if index is None or count is None:
        return None
    return Shard(index, count)
