"""The composition root: settings become a store, a producer and a worker.

What code declares is in declaring.py, what producers call in producer/producer.py.
"""

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, Unpack
from uuid import UUID

from holdfast.declaring import Declaring
from holdfast.domain.duration import Duration
from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import Job, to_ids
from holdfast.events.subscriptions import Subscriptions
from holdfast.producer.producer import Producer
from holdfast.rabbitmq.publisher import Publisher
from holdfast.rabbitmq.subscriber import Trigger
from holdfast.runtime.compose import AppParts, broker, build_process
from holdfast.runtime.process import Process
from holdfast.runtime.tick import TickReport
from holdfast.scheduling.schedules import Schedules
from holdfast.settings import GivenSettings, Settings, check_given
from holdfast.store.contract import Canceling, JobReader, Retrying, Shard, StoreClock
from holdfast.store.opening import OpenStore, opened
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.store import RowStore
from holdfast.store.schedules import RunStore
from holdfast.waits.opening import open_waits
from holdfast.waits.waits import Waits
from holdfast.worker.settings import WorkerSettings


class Holdfast(Declaring, Producer):
    """Register handlers at import time, open it to enqueue or to work: `async with app: await app.enqueue(…)`."""

    def __init__(
        self, store: str | None = None, *, schema: str | None = None, **settings: Unpack[GivenSettings]
    ) -> None:
        """What is given goes before the environment, setting by setting; None leaves it to the environment."""
        check_given(settings)
        self.settings = Settings.load(called={"db_schema": "schema"}, store=store, db_schema=schema, **settings)
        super().__init__()
        self._open: OpenStore | None = None
        self._publisher: Publisher | None = None
        self._waits: Waits | None = None
        self._exits = AsyncExitStack()

    async def open(self) -> None:
        """Connect; `close` gives everything back, and so does an `open` that fails."""
        if self._open is not None:
            raise InvalidInput("the app is open already; open it once per process")
        try:
            await self._open_parts()
        except BaseException:
            await self.close()
            raise

    async def _open_parts(self) -> None:
        if self.settings.rabbitmq_url is not None:
            self._publisher = Publisher(Trigger(broker(self.settings)))
            self._exits.push_async_callback(self._publisher.close)
        given = self.settings
        store = opened(given.store, given.db_schema, direct_url=given.listen_url)
        self._open = await self._exits.enter_async_context(store)
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

    async def cancel(self, ids: Iterable[UUID | str]) -> list[Canceling]:
        """Give jobs up; one answer for each id, in their order.

        `canceled`: it was waiting or a dead letter, and now is canceled. `requested`: it runs, and its handler is
        stopped at the next renewal of its lease. `final`: it has succeeded or is canceled already. `locked`: its
        handler's transaction is finishing it right now. `unknown`: no job has this id. The last three change nothing.
        """
        return await self.opened.store.cancel(to_ids(ids))

    async def retry(self, ids: Iterable[UUID | str]) -> list[Retrying]:
        """Give final jobs a new life, those that succeeded too; one answer for each id, in their order.

        `ready`: it waits to run now, with attempts and losses counted from zero. `live`: it waits or runs already.
        `locked`: somebody else is changing it right now. `unknown`: no job has this id. The last three change nothing.
        """
        return await self.opened.store.retry(to_ids(ids))

    async def wait(self, job_id: UUID | str, timeout: Duration = "30s") -> Job:
        """The job as soon as it is final, or at the timeout as it is then: its state tells. "0s" looks once.

        UnknownJob if there is none, StoreUnavailable if the store is away when the time is up.
        """
        (job,) = (await self.wait_many([job_id], timeout)).values()
        return job

    async def wait_many(self, job_ids: Iterable[UUID | str], timeout: Duration = "30s") -> dict[UUID, Job]:
        """The jobs as soon as all of them are final, or at the timeout as they are then, in the order of the ids."""
        ids = to_ids(job_ids)
        if self._waits is None:
            self._waits = open_waits(self.opened, self.settings)
            self._exits.push_async_callback(self._waits.close)
        return await self._waits.wait(ids, timeout)

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

    def worker_settings(self, **changes: Unpack[GivenSettings]) -> WorkerSettings:
        """The app's settings with some of them changed; None changes nothing."""
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
            shard=_shard(given.shard_index, given.shard_count),
        )

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
