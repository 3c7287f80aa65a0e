"""Opens an app for a test: in memory, or on a PostgreSQL of which the test gets a part of its own."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from unittest.mock import patch

from holdfast.app import Holdfast
from holdfast.domain.errors import InvalidInput
from holdfast.testing.recording import finished, recording
from holdfast.testing.tested_app import AppUnderTest
from holdfast.testing.throwaway import throwaway_database, throwaway_schema


@asynccontextmanager
async def in_memory(app: Holdfast) -> AsyncIterator[AppUnderTest]:
    """The app, open on a store in memory until the block is left: no database, no broker, no setting counts.

    Code under test may open and close the app as it does in production; that changes nothing here. `enqueue_in`
    and its like enqueue at once, whatever becomes of the transaction: what depends on that belongs on `on_postgres`.
    """
    with _stand_in(app, store="memory:"):
        await app.open()
        try:
            with _left_open(app), recording(app):
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
        # In production a worker does it when it starts.
        await app.opened.events.declare(list(app.subscribed))
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
        with app.relays.holding_back():
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
