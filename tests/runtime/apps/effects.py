"""What handlers and inline runners of these apps do: write rows to the table `effect`, each committed at once."""

import asyncio
import os
from pathlib import Path
from uuid import UUID

import asyncpg

_pool: "asyncpg.Pool[asyncpg.Record] | None" = None
_opening = asyncio.Lock()


async def note(text: str, job: UUID | None = None, fence: int | None = None) -> None:
    pool = await _opened()
    await pool.execute("INSERT INTO effect (job, fence, note) VALUES ($1, $2, $3)", job, fence, text)


async def was_noted(text: str, job: UUID) -> bool:
    pool = await _opened()
    found: bool = await pool.fetchval("SELECT EXISTS (SELECT FROM effect WHERE job = $1 AND note = $2)", job, text)
    return found


async def _opened() -> "asyncpg.Pool[asyncpg.Record]":
    """One pool per process, in its event loop. It is closed when the process ends."""
    global _pool
    async with _opening:
        if _pool is None:
            _pool = await asyncpg.create_pool(os.environ["HOLDFAST_TEST_URL"], min_size=1, max_size=4)
    return _pool


def is_there(name: str) -> bool:
    """Whether the gate is open. A gate is a file that the test creates when something may continue."""
    return Path(os.environ["HOLDFAST_TEST_FOLDER"], name).exists()


async def until_there(name: str) -> None:
    while not is_there(name):  # noqa: ASYNC110 - the signal comes from another process
        await asyncio.sleep(0.01)
