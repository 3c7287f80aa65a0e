"""The advisory transaction lock of an inline runner: a separate connection, a transaction, and a watch on both.

The lock lasts as long as its transaction. The server frees it 20 seconds after a client vanishes (holdfast.take_lock).
The watch gives up after `PING_SECONDS + ANSWER_SECONDS` without an answer, so the work stops before another can start.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from holdfast.domain.crash_points import reach
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.json_text import Json
from holdfast.logs.records import get_logger
from holdfast.store.postgres.answers import answered
from holdfast.store.postgres.driver import translated
from holdfast.store.postgres.schedule_rows import due_schedules
from holdfast.store.postgres.sql_files import statement
from holdfast.store.schedules import DueSchedules, Schedule

if TYPE_CHECKING:
    import asyncpg

log = get_logger("holdfast.store")

PING_SECONDS = 2.0
ANSWER_SECONDS = 4.0
_STATEMENT_SECONDS = 20.0

# A statement with parameters leaves its portal open until the next statement, and with it a snapshot that pins the
# vacuum horizon. A statement without parameters leaves nothing.
_NOTHING = "SELECT"

Answer = TypeVar("Answer")
Connect = Callable[[], Awaitable["asyncpg.Connection[asyncpg.Record]"]]


class PostgresSingleton:
    """A connection runs one statement at a time, so the work's statements and the watch's take turns."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self._turn = asyncio.Lock()
        self._lost = asyncio.Event()
        self._ended = asyncio.Event()
        connection.add_termination_listener(lambda _: self._lost.set())

    async def take(self, lock: str) -> bool:
        """Begin the transaction and try the lock.

        Read committed, whatever the server's default: a snapshot kept for hours would pin the vacuum horizon.
        """
        with translated():
            await self._connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            taken: bool = await self._connection.fetchval(statement("take_lock", self._schema, 1), lock)
            await self._connection.execute(_NOTHING)
        return taken

    async def due(self, name: str) -> DueSchedules:
        async with self._turn:
            rows = await self._fetch("schedule_due", [name], False)
            await self._answer(self._connection.execute(_NOTHING), _STATEMENT_SECONDS)
        return due_schedules(rows)

    async def done(
        self,
        schedule: Schedule,
        next_occurrence: datetime,
        occurrence: datetime | None,
        run: int,
        result: Json | None,
        error: Json | None,
    ) -> None:
        seen = (schedule.name, schedule.next_occurrence, schedule.timetable, schedule.zone, schedule.run_now)
        async with self._turn:
            await self._fetch("schedule_done", *seen, next_occurrence, occurrence, run, result, error)
            reach("inline.before_commit")
            # Ended even if this fails, because the fate of an unanswered COMMIT is unknown.
            self._ended.set()
            await self._answer(self._connection.execute("COMMIT"), _STATEMENT_SECONDS)

    async def lost(self) -> None:
        await self._lost.wait()

    async def watch(self) -> None:
        """Ping the server until the lock is released or lost."""
        while not self._ended.is_set() and not self._lost.is_set():
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await self._ended.wait()
            except TimeoutError:
                await self._ping()

    async def _ping(self) -> None:
        async with self._turn:
            if self._ended.is_set():
                return
            try:
                await self._answer(self._connection.execute(_NOTHING), ANSWER_SECONDS)
            except Exception as error:  # noqa: BLE001 - whatever the error, the lock can no longer be relied on
                self._lost.set()
                log.warning("lost the connection that holds a lock", error=str(error))

    async def close(self) -> None:
        """Free the lock before returning, if the server still answers."""
        async with self._turn:
            was_done = self._ended.is_set()
            self._ended.set()
            if not self._lost.is_set() and not self._connection.is_closed():
                with suppress(StoreUnavailable):
                    if not was_done:
                        await self._answer(self._connection.execute("ROLLBACK"), ANSWER_SECONDS)
                    await self._answer(self._connection.close(), ANSWER_SECONDS)

    async def _fetch(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        if self._ended.is_set() or self._lost.is_set():
            raise StoreUnavailable("the lock is no longer held")
        sql = statement(verb, self._schema, len(arguments))
        return await self._answer(self._connection.fetch(sql, *arguments), _STATEMENT_SECONDS)

    async def _answer(self, asked: Coroutine[object, object, Answer], seconds: float) -> Answer:
        return await answered(self._connection, asked, seconds)


@asynccontextmanager
async def held_lock(connect: Connect, schema: str, lock: str) -> AsyncIterator[PostgresSingleton | None]:
    connection = await connect()
    singleton = PostgresSingleton(connection, schema)
    watch: asyncio.Task[None] | None = None
    try:
        if not await singleton.take(lock):
            await singleton.close()
            yield None
            return
        watch = asyncio.create_task(singleton.watch())
        yield singleton
    finally:
        try:
            await singleton.close()
            if watch is not None:
                await watch
        finally:
            connection.terminate()
