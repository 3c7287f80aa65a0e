"""Retention beside the load: partitions are created, detached and dropped; a table without partitions loses rows."""

import asyncio
from dataclasses import dataclass

import asyncpg

from bench.layout.candidates import Candidate, partition_name, partition_of_day

PAUSE = 0.1
BATCH = 2500


@dataclass(slots=True)
class Kept:
    """What retention did while the load ran; it ends after its current step once `stopping` is set."""

    partitions_dropped: int = 0
    rows_deleted: int = 0
    lock_timeouts: int = 0
    stopping: bool = False


async def retain(connection: asyncpg.Connection, candidate: Candidate, days: range, kept: Kept) -> None:
    """Removes these days of history and makes a new day's partitions for each."""
    for day in days:
        if not candidate.partitioned:
            await delete_day(connection, day, kept)
        for table in candidate.partitioned:
            if kept.stopping:
                return
            await patiently(connection, await partition_of_day(connection, table, day + 11), kept)
            await asyncio.sleep(PAUSE)
            await patiently(connection, drop_of_day(candidate, table, day), kept)
            kept.partitions_dropped += 1
            await asyncio.sleep(PAUSE)


def drop_of_day(candidate: Candidate, table: str, day: int) -> str:
    """Detach, put the rows of living jobs back (they go to the default partition), drop."""
    partition = f"holdfast.{partition_name(table, day)}"
    steps = [f"ALTER TABLE holdfast.{table} DETACH PARTITION {partition}"]
    if table == "job":
        living = " UNION ALL ".join(
            f"SELECT id FROM holdfast.{live}"
            f" WHERE id BETWEEN (SELECT id FROM {partition} ORDER BY id LIMIT 1)"
            f" AND (SELECT id FROM {partition} ORDER BY id DESC LIMIT 1)"
            for live in candidate.live_tables
        )
        steps.append(f"INSERT INTO holdfast.job SELECT * FROM {partition} WHERE id IN ({living})")
    steps.append(f"DROP TABLE {partition}")
    return "; ".join(steps)


async def patiently(connection: asyncpg.Connection, statement: str, kept: Kept) -> None:
    """Runs the statement with a short lock timeout until it gets through: the load never queues behind it for long."""
    while not kept.stopping:
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL lock_timeout = '20ms'")
                await connection.execute(statement)
            return
        except asyncpg.LockNotAvailableError:
            kept.lock_timeouts += 1
            await asyncio.sleep(0.02)


async def delete_day(connection: asyncpg.Connection, day: int, kept: Kept) -> None:
    while not kept.stopping:
        status = await connection.execute(
            "DELETE FROM holdfast.job WHERE ctid = ANY (ARRAY (SELECT ctid FROM holdfast.job WHERE state IN (1, 4)"
            f" AND finished_at < date_trunc('day', clock_timestamp()) + {day + 1} * interval '1 day'"
            f" ORDER BY finished_at LIMIT {BATCH}))"
        )
        deleted = int(status.split()[-1])
        if not deleted:
            return
        kept.rows_deleted += deleted
        await asyncio.sleep(PAUSE / 3)
