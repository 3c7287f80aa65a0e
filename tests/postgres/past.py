"""Days in the past: their partitions, job IDs that belong to them, and the invariants that must hold afterwards."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg

from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.store import PostgresStore
from tests.databases import connected

RETENTION = timedelta(days=1)
# Computed once, so a test may run across midnight.
NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)

_TRUE_COUNTS = """
SELECT state::text, queue, kind, count(*) FROM holdfast.finished JOIN holdfast.job USING (id) GROUP BY 1, 2, 3
UNION ALL SELECT state::text, queue, kind, count(*) FROM holdfast.dead_letter GROUP BY 1, 2, 3
"""
_ENTERED = """
SELECT state::text, queue, kind, sum(amount)::bigint FROM holdfast.ledger GROUP BY 1, 2, 3 HAVING sum(amount) <> 0
"""
_TRUE_DAYS = """
SELECT day, sum(jobs)::bigint FROM (
    SELECT holdfast.day_of(id) AS day, count(*) AS jobs FROM holdfast.finished GROUP BY 1
    UNION ALL SELECT holdfast.day_of(id), count(*) FROM holdfast.dead_letter GROUP BY 1
) AS each GROUP BY day
"""
_ENTERED_DAYS = "SELECT day, sum(amount)::bigint FROM holdfast.ledger GROUP BY day HAVING sum(amount) <> 0"
# A job is in exactly one of the four tables, and unless it is a dead letter it has its row in `job`.
_LOST = """
WITH place AS (
    SELECT id, 'live' AS what FROM holdfast.ready UNION ALL SELECT id, 'live' FROM holdfast.lease
    UNION ALL SELECT id, 'final' FROM holdfast.finished UNION ALL SELECT id, 'dead' FROM holdfast.dead_letter
)
SELECT id FROM place GROUP BY id HAVING count(*) > 1
UNION ALL
SELECT id FROM place WHERE what <> 'dead' AND NOT EXISTS (SELECT FROM holdfast.job WHERE job.id = place.id)
UNION ALL
SELECT id FROM holdfast.job WHERE NOT EXISTS (SELECT FROM place WHERE place.id = job.id)
"""


def day_of(days_ago: int) -> date:
    return (NOON - timedelta(days_ago)).date()


def id_of(days_ago: int) -> UUID:
    """Return a new ID, as it would have been made at noon on that day."""
    return UUID(int=(int((NOON - timedelta(days_ago)).timestamp() * 1000) << 80) + (uuid4().int & ((1 << 80) - 1)))


async def add_days(connection: "asyncpg.Connection[asyncpg.Record]", days: int) -> None:
    """Add partitions for the given number of days before today."""
    assert await connection.fetchval("SELECT holdfast.add_partitions($1, $2)", day_of(days), days) == (2 * days)


async def days_with_partitions(connection: "asyncpg.Connection[asyncpg.Record]") -> list[date]:
    return [row[0] for row in await connection.fetch("SELECT * FROM holdfast.partition_days()")]


async def is_sound(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Assert that no job is lost or in two places, and that the ledger is correct."""
    async with connection.transaction(isolation="repeatable_read"):
        assert await connection.fetch(_LOST) == []
        assert set(await connection.fetch(_ENTERED)) == set(await connection.fetch(_TRUE_COUNTS))
        assert set(await connection.fetch(_ENTERED_DAYS)) == set(await connection.fetch(_TRUE_DAYS))


async def pruned(store: PostgresStore, retention: timedelta = RETENTION) -> dict[str, int]:
    """Run one pass of pruning and return its counts."""
    counts: dict[str, int] = {}
    async for batch in PostgresMaintenance(store).prune_jobs(retention):
        for name, number in batch.counts.items():
            counts[name] = counts.get(name, 0) + number
    return counts


async def skipped(store: PostgresStore, retention: timedelta = RETENTION) -> set[str]:
    """Run one pass of pruning and return what it skipped."""
    return {batch.skipped async for batch in PostgresMaintenance(store).prune_jobs(retention) if batch.skipped}


@asynccontextmanager
async def prune_held_open(url: str, days_ago: int) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """Open a transaction that has dropped a day's partitions; it commits at the end of the block."""
    async with connected(url) as connection, connection.transaction():
        row = await connection.fetchrow(
            """
            SELECT dropped.outcome FROM holdfast.look_at_day($1, $2, 1000, 1000000) AS look
            CROSS JOIN LATERAL holdfast.drop_day($1, look.entries, look.recent, 1000, 1000000) AS dropped
            """,
            day_of(days_ago),
            RETENTION,
        )
        assert row is not None
        assert row["outcome"] == "dropped"
        yield connection
