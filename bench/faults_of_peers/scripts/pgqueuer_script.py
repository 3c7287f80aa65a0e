"""PgQueuer as its pages on deployment and heartbeats advise: `pgqueuer.run`, which ends when the listener fails.

A supervisor restarts it. Heartbeats and the recovery of stale jobs are PgQueuer's own.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pgqueuer  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from bench.faults_of_peers.scripts.commands import (
    LEASE_SECONDS,
    SLOTS,
    THREAD,
    WORK,
    Job,
    answer,
    handle,
    handle_in_thread,
    url,
)


class PgQueuerScript:
    async def install(self) -> None:
        await self.open()
        await self._queries.install()
        await self._queries.optimize_autovacuum()
        await self.close()

    async def open(self) -> None:
        self._connection = await asyncpg.connect(url(), timeout=5)
        self._queries = Queries(AsyncpgDriver(self._connection))

    async def close(self) -> None:
        self._connection.terminate()

    async def enqueue(self, kind: str, jobs: list[Job]) -> list[Any]:
        payloads: list[bytes | None] = [json.dumps(job).encode() for job in jobs]
        found: list[Any] = await self._queries.enqueue([kind] * len(jobs), payloads, [0] * len(jobs))
        return found

    async def work(self) -> None:
        await pgqueuer.run(
            _worker,
            # PgQueuer requires a limit of at least two batches.
            batch_size=SLOTS // 2,
            max_concurrent_tasks=SLOTS,
            heartbeat_timeout=timedelta(seconds=LEASE_SECONDS),
            # A dequeue finds stale jobs, and an idle worker dequeues this often.
            dequeue_timeout=timedelta(seconds=1),
            shutdown_on_listener_failure=True,
        )


@asynccontextmanager
async def _worker() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url(), timeout=5)
    queuer = pgqueuer.PgQueuer(AsyncpgDriver(connection))

    async def work(job: Any) -> None:  # noqa: ANN401
        await handle(json.loads(job.payload), job.id)

    async def thread(job: Any) -> None:  # noqa: ANN401
        # PgQueuer accepts only async handlers, and its error for others recommends this.
        await asyncio.to_thread(handle_in_thread, json.loads(job.payload), job.id)

    queuer.entrypoint(WORK)(work)
    queuer.entrypoint(THREAD)(thread)
    try:
        yield queuer
    finally:
        connection.terminate()


if __name__ == "__main__":
    answer(PgQueuerScript())
