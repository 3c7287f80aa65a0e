"""Handlers that finish their job in their own transaction, one per driver and kind of isolation.

Each also writes an effect and a child job; all three must commit together or not at all. A handler halts at a
named point while the test keeps a file `<point>.hold` in its folder.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import asyncpg
import psycopg

from holdfast import Cancel, Holdfast, Permanent, RunningJob, Snooze, Statement
from holdfast.domain.statement import nothing

LEVELS = ("read committed", "repeatable read", "serializable")
THEN_RAISE = {
    "error": RuntimeError("after all"),
    "permanent": Permanent("LATE"),
    "snooze": Snooze("1h"),
    "cancel": Cancel(),
}

# Enqueues child jobs in the transactions of the handlers; it is never opened.
producer = Holdfast("postgresql://")


@dataclass
class Task:
    url: str
    level: str = "read committed"
    finish_last: bool = False
    rolls_back_attempt: int = 0
    raises_attempt: int = 0
    then_raises: str = ""


class RollBack(Exception):
    pass


Job = RunningJob[Task]


def _reach(point: str) -> Path:
    folder = Path(os.environ["HOLDFAST_TEST_FOLDER"])
    (folder / f"{point}.reached").touch()
    return folder / f"{point}.hold"


def halt(point: str) -> None:
    hold = _reach(point)
    while hold.exists():
        time.sleep(0.005)


async def halt_async(point: str) -> None:
    hold = _reach(point)
    while hold.exists():  # noqa: ASYNC110 - the signal may come from another process
        await asyncio.sleep(0.005)


def _effect(job: Job) -> Statement[None]:
    sql = "INSERT INTO effect (job, fence, note) VALUES ($1, $2, $3) RETURNING number"
    return Statement(sql, (job.id, job.fence, "written"), nothing)


def _ends(job: Job) -> None:
    if job.attempt == job.payload.rolls_back_attempt:
        raise RollBack
    if job.attempt == job.payload.raises_attempt:
        raise RuntimeError("inside the transaction")


async def _transaction(job: Job, connection: object) -> None:
    await halt_async("open")
    if not job.payload.finish_last:
        await job.finish_in(connection, {"attempt": job.attempt})
        await halt_async("finished")
    await cast(Awaitable[None], _effect(job).execute_on(connection))
    await producer.enqueue("child", conn=cast(Any, connection))
    await halt_async("written")
    if job.payload.finish_last:
        await job.finish_in(connection, {"attempt": job.attempt})
        await halt_async("finished")
    _ends(job)


def _transaction_blocking(job: Job, connection: object) -> None:
    halt("open")
    if not job.payload.finish_last:
        job.finish_in(connection, {"attempt": job.attempt})
        halt("finished")
    _effect(job).execute_on(connection)
    producer.sync.enqueue("child", conn=cast(Any, connection))
    halt("written")
    if job.payload.finish_last:
        job.finish_in(connection, {"attempt": job.attempt})
        halt("finished")
    _ends(job)


def _after(job: Job) -> None:
    _reach("committed")
    if job.payload.then_raises:
        raise THEN_RAISE[job.payload.then_raises]


async def with_asyncpg(job: Job) -> None:
    connection = await asyncpg.connect(job.payload.url)
    try:
        with contextlib.suppress(RollBack):
            async with connection.transaction(isolation=job.payload.level.replace(" ", "_")):  # type: ignore[arg-type]
                await _transaction(job, connection)
    finally:
        await connection.close()
    _after(job)


async def with_asyncpg_pool(job: Job) -> None:
    async with asyncpg.create_pool(job.payload.url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        with contextlib.suppress(RollBack):
            async with connection.transaction(isolation=job.payload.level.replace(" ", "_")):  # type: ignore[arg-type]
                await _transaction(job, connection)
    _after(job)


async def with_psycopg_async(job: Job) -> None:
    with contextlib.suppress(RollBack):
        async with await psycopg.AsyncConnection.connect(job.payload.url) as connection:
            await connection.set_isolation_level(_level(job))
            await _transaction(job, connection)
    _after(job)


def with_psycopg(job: Job) -> None:
    with contextlib.suppress(RollBack), psycopg.connect(job.payload.url) as connection:
        connection.isolation_level = _level(job)
        _transaction_blocking(job, connection)
    _after(job)


def in_child(job: Job) -> None:
    with_psycopg(job)


async def in_child_async(job: Job) -> None:
    await with_asyncpg(job)


async def child(job: RunningJob[dict[str, object]]) -> None:
    """Enqueued by the other handlers; no worker runs it."""


def _level(job: Job) -> psycopg.IsolationLevel:
    return psycopg.IsolationLevel[job.payload.level.upper().replace(" ", "_")]


KINDS = ("asyncpg", "asyncpg_pool", "psycopg", "psycopg_async", "in_child", "in_child_async")


def register(app: Holdfast) -> Holdfast:
    app.handler("asyncpg", backoff="steps 10ms")(with_asyncpg)
    app.handler("asyncpg_pool", backoff="steps 10ms")(with_asyncpg_pool)
    app.handler("psycopg", backoff="steps 10ms")(with_psycopg)
    app.handler("psycopg_async", backoff="steps 10ms")(with_psycopg_async)
    app.handler("in_child", backoff="steps 10ms", isolation="process")(in_child)
    app.handler("in_child_async", backoff="steps 10ms", isolation="process")(in_child_async)
    return app
