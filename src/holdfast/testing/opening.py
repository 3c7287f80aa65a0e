"""Opens an app for a test: in memory, or on a PostgreSQL of which the test gets a part of its own."""

from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, fields
from typing import Self, TypeVar, Unpack
from unittest.mock import patch

from holdfast.app import Holdfast
from holdfast.errors import InvalidInput
from holdfast.job import NewJob
from holdfast.producer.producer import EnqueueOptions, PublishOptions
from holdfast.producer.publish import Published
from holdfast.store.contract import Enqueued
from holdfast.testing.tested_app import AppUnderTest
from holdfast.testing.throwaway import throwaway_database, throwaway_schema

Value = TypeVar("Value")


@asynccontextmanager
async def in_memory(app: Holdfast) -> AsyncIterator[AppUnderTest]:
    """The app, open on a store in memory until the block is left: no database, no broker, no setting counts.

    Code under test may open and close the app as it does in production; that changes nothing here. `enqueue_in`
    and its like enqueue at once, whatever becomes of the transaction: what depends on that belongs on `on_postgres`.
    """
    with _stand_in(app, store="memory:"):
        await app.open()
        try:
            with _left_open(app), _recording(app):
                yield AppUnderTest(app)
        finally:
            await app.close()


@contextmanager
def in_memory_for_fixture(app: Holdfast) -> Iterator[AppUnderTest]:
    """The same for a fixture, which has no event loop: opening and closing memory never waits."""
    block = in_memory(app)
    tested = finished(block.__aenter__())
    try:
        yield tested
    finally:
        finished(block.__aexit__(None, None, None))


@asynccontextmanager
async def on_postgres(app: Holdfast, url: str | None = None) -> AsyncIterator[AppUnderTest]:
    """The app, open on a real PostgreSQL until the block is left; `url` of what it gives is its database.

    Without an address, or with an `embedded:` one, the test gets a new database with nothing but Holdfast's schema in
    it, dropped at the end. With the address of a server's database it gets a schema of its own in that database,
    beside the application's tables, also dropped at the end.
    """
    async with AsyncExitStack() as exits:
        if url is None or url.startswith("embedded:"):
            schema = app.settings.db_schema
            database = await exits.enter_async_context(throwaway_database(url, schema))
        else:
            database, schema = url, await exits.enter_async_context(throwaway_schema(url))
        exits.enter_context(_stand_in(app, store=database, schema=schema))
        await app.open()
        exits.push_async_callback(app.close)
        with _left_open(app):
            yield AppUnderTest(app, database)


@contextmanager
def _stand_in(app: Holdfast, *, store: str, schema: str | None = None) -> Iterator[None]:
    """The app's settings, with what would reach beyond this test taken out."""
    if app.is_open:
        raise InvalidInput("the app is open already; give each test the app for itself, one block after the other")
    kept = app.settings
    changes: dict[str, object] = {"store": store, "rabbitmq_url": None, "listen": False}
    if schema is not None:
        changes["db_schema"] = schema
    app.settings = kept.model_copy(update=changes)
    try:
        yield
    finally:
        app.settings = kept


@contextmanager
def _left_open(app: Holdfast) -> Iterator[None]:
    """Code under test that opens the app finds it open, and does not close it."""

    async def nothing() -> None:
        """The block opens and closes it."""

    with patch.object(app, "open", nothing), patch.object(app, "close", nothing):
        yield


@contextmanager
def _recording(app: Holdfast) -> Iterator[None]:
    """Those that take the caller's connection do without it: a transaction means nothing to memory."""

    def enqueue_in(
        _connection: object, job: NewJob | str, payload: object = None, **options: Unpack[EnqueueOptions]
    ) -> "_Recorded":
        new = job if isinstance(job, NewJob) else app.job(job, payload, **options)
        (enqueued,) = finished(app.enqueue_many([new]))
        return _Recorded(*(getattr(enqueued, field.name) for field in fields(enqueued)))

    def enqueue_many_in(_connection: object, jobs: Iterable[NewJob]) -> "_RecordedMany":
        return _RecordedMany(finished(app.enqueue_many(list(jobs))))

    def publish_in(
        _connection: object, type: str, payload: object = None, **options: Unpack[PublishOptions]
    ) -> "_RecordedEvent":
        published = finished(app.publish(type, payload, **options))
        return _RecordedEvent(published.event_id, published.jobs)

    with ExitStack() as exits:
        for stand_in in (enqueue_in, enqueue_many_in, publish_in):
            exits.enter_context(patch.object(app, stand_in.__name__, stand_in))
        yield


class _Awaitable:
    """A blocking caller uses it, an async one awaits it; the kind of its connection is not known here."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self


@dataclass(frozen=True, slots=True)
class _Recorded(_Awaitable, Enqueued):
    pass


class _RecordedMany(_Awaitable, list[Enqueued]):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _RecordedEvent(_Awaitable, Published):
    pass


def finished(coroutine: Coroutine[object, object, Value]) -> Value:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Value = end.value
        return result
    coroutine.close()
    raise InvalidInput("this cannot be done without an event loop; use `async with in_memory(app)`")
