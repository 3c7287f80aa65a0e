"""The benchmark's limits must do the same work as Holdfast; otherwise the comparison would mean nothing."""

import asyncpg
import pytest

from holdfast_lab.bench.apart import MeasurementFailed, run_apart
from holdfast_lab.bench.app import PAYLOAD_BYTES, app, new_jobs
from holdfast_lab.bench.bare import (
    WARM_UP_CALLS,
    ClaimAndFinish,
    Copy,
    CopyPacked,
    Gaps,
    InsertEach,
    OneTableQueue,
    notify_to_claim,
)
from tests.databases import Database

pytestmark = [pytest.mark.postgres, pytest.mark.long, pytest.mark.parametrize("server", ["embedded-18"], indirect=True)]

_JOBS = 25
_BATCH = 10
_NO_GAPS = Gaps(0, 0)


async def fetched(database: Database, sql: str) -> list[tuple[object, ...]]:
    connection = await asyncpg.connect(database.url)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def written(database: Database, jobs: int = _JOBS) -> list[tuple[object, ...]]:
    """Both rows of every job, in the order of enqueueing, without the values that differ between runs."""
    rows = await fetched(
        database,
        "SELECT (to_jsonb(job) - ARRAY['id', 'created_at', 'correlation_id']) "
        "|| (to_jsonb(ready) - ARRAY['id', 'run_at']), job.correlation_id = job.id::text, run_at = created_at "
        "FROM holdfast.job JOIN holdfast.ready USING (id) ORDER BY id",
    )
    assert len(rows) == jobs
    return rows


async def enqueued_by_holdfast(database: Database) -> list[tuple[object, ...]]:
    app.settings = app.settings.model_copy(update={"store": database.url, "db_schema": "holdfast"})
    async with app:
        await app.enqueue_many(new_jobs(_JOBS))
    rows = await written(database)
    await fetched(database, "TRUNCATE holdfast.job, holdfast.ready")
    return rows


async def states(database: Database) -> list[tuple[object, ...]]:
    return await fetched(
        database,
        "SELECT (SELECT count(*) FROM holdfast.ready), (SELECT count(*) FROM holdfast.lease), "
        "(SELECT count(*) FROM holdfast.finished WHERE state = 'succeeded')",
    )


async def test_a_payload_has_exactly_the_stated_size(server: object) -> None:
    assert {len(job.payload.encode()) for job in new_jobs(3)} == {PAYLOAD_BYTES}


@pytest.mark.parametrize("copy", [Copy, CopyPacked])
async def test_bare_copy_writes_the_rows_of_bulk_enqueue(
    database: Database, copy: type[Copy] | type[CopyPacked]
) -> None:
    expected = await enqueued_by_holdfast(database)
    spent = await copy(database.url, "holdfast", _JOBS, _BATCH).run()
    assert spent.jobs == _JOBS
    assert await written(database) == expected


async def test_bare_insert_writes_the_rows_of_single_enqueue(database: Database) -> None:
    expected = await enqueued_by_holdfast(database)
    spent = await InsertEach(database.url, "holdfast", _JOBS).run()
    assert spent.jobs == _JOBS
    # The first job is a warm-up and differs from the others only in its number.
    assert (await written(database, _JOBS + 1))[:_JOBS] == expected


@pytest.mark.parametrize("is_overlapping", [False, True])
async def test_bare_claim_and_finish_drains_the_whole_backlog(database: Database, is_overlapping: bool) -> None:
    await Copy(database.url, "holdfast", _JOBS).run()
    spent = await ClaimAndFinish(database.url, "holdfast", _BATCH, is_overlapping=is_overlapping).run()
    assert spent.jobs == _JOBS
    assert await states(database) == [(0, 0, _JOBS)]


async def test_the_one_table_queue_is_drained_and_removed(database: Database) -> None:
    spent = await OneTableQueue(database.url, "holdfast", _JOBS, _BATCH).run()
    assert spent.jobs == _JOBS
    assert await fetched(database, "SELECT to_regclass('holdfast.bare_queue')") == [(None,)]


@pytest.mark.parametrize("batch", [1, 5])
async def test_every_notified_job_is_claimed_by_the_other_process(database: Database, batch: int) -> None:
    waits = await notify_to_claim(database.url, "holdfast", 3, _NO_GAPS, batch=batch)
    assert len(waits) == 3 * batch
    assert await states(database) == [(0, 0, 3 * batch + WARM_UP_CALLS)]


async def test_a_measurement_that_fails_says_why_in_one_line(database: Database) -> None:
    with pytest.raises(MeasurementFailed, match=r"^ClaimAndFinish failed: .*no matching Holdfast schema.*") as caught:
        await run_apart(ClaimAndFinish(database.url, "elsewhere"))
    assert "\n" not in str(caught.value)
