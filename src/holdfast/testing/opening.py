"""Opens an app for a test: in memory, or on a PostgreSQL in which the test gets its own database or schema."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from unittest.mock import patch

from holdfast.app import Holdfast
from holdfast.domain.errors import InvalidInput
from holdfast.domain.event_loop import finished, running_loop
from holdfast.testing.at_once import at_once
from holdfast.testing.tested_app import AppUnderTest
from holdfast.testing.throwaway import throwaway_database, throwaway_schema


@asynccontextmanager
async def in_memory(app: Holdfast) -> AsyncIterator[AppUnderTest]:
    """Open the app on a store in memory until the block ends. No database, broker or setting for them is used.

    Code under test may open and close the app as it does in production; that changes nothing here. A verb with `conn`
    takes effect at once, even if the transaction is rolled back; test code that depends on the transaction with
    `on_postgres`.
    """
    with _stand_in(app, store="memory:"):
        await app.open()
        try:
            with _left_open(app), at_once(app):
                yield AppUnderTest(app)
        finally:
            await app.close()


def in_memory_for_fixture(app: Holdfast, exits: ExitStack) -> AppUnderTest:
    """Like `in_memory`, for a fixture, which has no event loop. Opening and closing a memory store never waits.

    The app closes with `exits`, or at the end of an `async with` around the result.
    """
    block = in_memory(app)
    finished(block.__aenter__())
    closing = exits.enter_context(ExitStack())
    closing.callback(lambda: finished(block.__aexit__(None, None, None)))
    return AppUnderTest(app, close=closing.close)


@asynccontextmanager
async def on_postgres(app: Holdfast, url: str | None = None) -> AsyncIterator[AppUnderTest]:
    """Open the app on a real PostgreSQL until the block ends. The result's `url` is its database.

    Without an address, or with an `embedded:` one, the test gets a new database that contains only Holdfast's schema.
    With the address of a database on a server, it gets a new schema in that database, next to the application's tables.
    Either is dropped at the end.
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
        # In production, a worker does this when it starts.
        await app.opened.events.declare(list(app.subscribed))
        with _left_open(app):
            yield AppUnderTest(app, database)


@contextmanager
def _stand_in(app: Holdfast, *, store: str, schema: str | None = None) -> Iterator[None]:
    """Replace the app's settings with ones that reach nothing outside this test."""
    if app.is_open:
        raise InvalidInput(
            "the app is already open, perhaps by a call of app.sync outside of a block, which needs app.sync.close(); "
            "let only one test use it at a time, one block after the other"
        )
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
    """Let code under test open and close the app without any effect: it stays open."""

    home, open_app, close_app = running_loop(), app.open, app.close

    async def open_elsewhere() -> None:
        if running_loop() is not home:
            await open_app()

    async def close_elsewhere() -> None:
        if running_loop() is not home:
            await close_app()

    with patch.object(app, "open", open_elsewhere), patch.object(app, "close", close_elsewhere):
        try:
            yield
        finally:
            # The synchronous verbs may have connections to what is about to be dropped.
            app.sync.close()
