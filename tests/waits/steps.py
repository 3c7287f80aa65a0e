"""Shared steps of these tests: waits at a pace that the test sets, running jobs, and their outcomes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

import asyncpg

from holdfast import Holdfast, Job
from holdfast.domain.job import LeasedJob
from holdfast.domain.lifecycle import Transition
from holdfast.store.contract import Fenced, Finish
from holdfast.store.opening import OpenStore, opened
from holdfast.waits.opening import open_waits
from holdfast.waits.waits import Waits
from holdfast.waits.watch import Pacing
from holdfast.wake.final import FinalListener
from tests.databases import connected
from tests.store_contract.steps import ENDINGS, job, wants
from tests.worker.harness import PATIENCE, until

Answer = TypeVar("Answer")

LONG = timedelta(minutes=10)
"""Longer than any test waits: a wait that reaches its timeout has failed."""
QUICK = timedelta(milliseconds=200)
RINGS_ALONE = Pacing(soon=(), poll=3600.0, sweep=0.01)
"""After its initial looks, only a ring ends a wait."""
POLLS_ALONE = Pacing(soon=(), poll=0.02, sweep=0.01)


async def ended(waiting: Awaitable[Answer]) -> Answer:
    """Fail long before the wait's own timeout, at which it would return a final job as well."""
    async with asyncio.timeout(PATIENCE):
        return await waiting


@dataclass(frozen=True)
class Scene:
    """An open store and its waits."""

    opened: OpenStore
    waits: Waits

    async def running(self, number: int = 1) -> list[LeasedJob]:
        await self.opened.store.enqueue([job() for _ in range(number)])
        leased = await self.opened.store.claim(wants(limit=number))
        assert len(leased) == number
        return leased

    async def finish(self, leased: Sequence[LeasedJob], ending: Transition = ENDINGS["succeed"]) -> None:
        answers = await self.opened.store.finish([Finish(each.lease, ending) for each in leased])
        assert set(answers) == {Fenced.DONE}

    async def wait(self, id: UUID, timeout: timedelta = LONG) -> Job:
        return (await self.waits.wait([id], timeout))[id]

    def waiting(self, id: UUID, timeout: timedelta = LONG) -> "asyncio.Task[Job]":
        return asyncio.create_task(self.wait(id, timeout))


@asynccontextmanager
async def waiting_in(
    url: str, pacing: Pacing | None = None, *, listen: bool = True, listen_url: str | None = None
) -> AsyncIterator[Scene]:
    """With a `listen_url`, the listener notices a dead connection quickly."""
    settings = Holdfast(url).settings.changed(listen=listen)
    async with opened(url) as store:
        waits = open_waits(store, settings, pacing)
        if listen_url is not None and store.waiters is not None:
            waits = Waits(
                store.waiters,
                lambda holder, heard: FinalListener(listen_url, holder, heard, ping=QUICK, patience=5 * QUICK),
                pacing,
            )
        try:
            yield Scene(store, waits)
        finally:
            await waits.close()


async def registered(url: str) -> list[UUID]:
    async with connected(url) as connection:
        return [row["job_id"] for row in await connection.fetch("SELECT job_id FROM holdfast.waiter")]


async def until_registered(url: str, number: int) -> None:
    async def are_registered() -> bool:
        return len(await registered(url)) == number

    await until(are_registered, f"{number} waits are registered")


async def connections(url: str) -> int:
    """The number of client connections, not counting this one."""
    async with connected(url) as connection:
        number: int = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        return number


_LISTENERS = """
FROM pg_stat_activity WHERE datname = current_database() AND (query LIKE 'LISTEN %' OR query = 'SELECT 1')
"""


async def listeners(url: str) -> int:
    """The number of connections whose last statement was LISTEN or a ping."""
    async with connected(url) as connection:
        number: int = await connection.fetchval(f"SELECT count(*) {_LISTENERS}")
        return number


async def kill_listeners(connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    return len(await connection.fetch(f"SELECT pg_terminate_backend(pid) {_LISTENERS}"))


async def all_of(tasks: "Sequence[asyncio.Task[Job]]") -> list[Job]:
    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*tasks)
