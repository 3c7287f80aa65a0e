"""The app that test_crash_points.py kills in separate processes, and that it later runs in its own process as well.

Handlers and the inline runner write lines to a file in the test's folder, which outlives the processes. `python -m
tests.faults.crashing` is a producer; its one argument selects what it does.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import asyncpg

from holdfast import Holdfast, RunningJob
from holdfast.schedules import Occurrence
from holdfast.store.postgres.store import PostgresStore

COPIED = 400
_JOURNAL = "journal"
_GATE = "gate"

Job = RunningJob[object]


class Start(NamedTuple):
    """One start of a handler."""

    kind: str
    job: UUID
    fence: int


def folder() -> Path:
    return Path(os.environ["HOLDFAST_TEST_FOLDER"])


def open_gate() -> None:
    """Let `slow` jobs end from now on."""
    (folder() / _GATE).touch()


def lines(kind: str) -> list[str]:
    journal = folder() / _JOURNAL
    written = journal.read_text().splitlines() if journal.exists() else []
    return [line.partition(" ")[2] for line in written if line.partition(" ")[0] == kind]


def starts() -> list[Start]:
    return [Start(kind, UUID(line.split()[0]), int(line.split()[1])) for kind in HANDLERS for line in lines(kind)]


def note(kind: str, text: str) -> None:
    """Write in one call and without waiting, because the process may die a moment later."""
    with (folder() / _JOURNAL).open("ab", buffering=0) as journal:
        journal.write(f"{kind} {text}\n".encode())


async def plain(job: Job) -> None:
    note("plain", f"{job.id} {job.fence}")


async def answering(job: Job) -> dict[str, int]:
    note("answering", f"{job.id} {job.fence}")
    return {"fence": job.fence}


async def slow(job: Job) -> None:
    note("slow", f"{job.id} {job.fence}")
    while not (folder() / _GATE).exists():  # noqa: ASYNC110 - the signal comes from another process
        await asyncio.sleep(0.01)


async def transactional(job: Job) -> None:
    note("transactional", f"{job.id} {job.fence}")
    connection = await asyncpg.connect(os.environ["HOLDFAST_TEST_URL"])
    try:
        async with connection.transaction():
            await connection.execute("INSERT INTO effect (job, fence) VALUES ($1, $2)", job.id, job.fence)
            await job.finish_in(connection, {"fence": job.fence})
    finally:
        await connection.close()


async def told(job: Job) -> None:
    note("told", f"{job.id} {job.fence}")


async def by_schedule(job: Job) -> None:
    note("by_schedule", f"{job.id} {job.fence}")


async def inline(occurrence: Occurrence) -> None:
    note("inline", str(occurrence.at))


HANDLERS: Mapping[str, Callable[[Job], Awaitable[object]]] = {
    each.__name__: each for each in (plain, answering, slow, transactional, told, by_schedule)
}


def build(url: str | None = None) -> Holdfast:
    app = Holdfast(url)
    for kind in ("plain", "answering", "slow", "transactional"):
        app.handler(kind)(HANDLERS[kind])
    app.on("order.*", name="told")(told)
    return app


def build_scheduled(url: str | None = None) -> Holdfast:
    app = Holdfast(url)
    app.schedule("every 1h", name="by_schedule")(by_schedule)
    app.runner("inline", "every 1h")(inline)
    return app


def build_relaying(url: str | None = None) -> Holdfast:
    app = Holdfast(url)
    if exchange := os.environ.get("HOLDFAST_TEST_EXCHANGE"):
        app.relay("order.*", exchange=exchange, url=os.environ["HOLDFAST_TEST_BROKER"], mandatory=True)
    return app


app, scheduled, relaying = build(), build_scheduled(), build_relaying()


async def _produce(what: str) -> None:
    async with app:
        match what:
            case "enqueue":
                await app.enqueue("plain", {}, key="once")
            case "copy":
                # Force COPY, even if a round trip on a busy machine took a long time.
                assert isinstance(app.opened.store, PostgresStore)
                app.opened.store._round_trip = timedelta(0)
                await app.enqueue_many([app.job("plain", {}) for _ in range(COPIED)])
            case "publish":
                await app.publish("order.made", {}, key="once")


if __name__ == "__main__":
    asyncio.run(_produce(sys.argv[1]))
