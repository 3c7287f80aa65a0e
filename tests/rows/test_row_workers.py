"""The unchanged worker processes applications' tables: in a tick, next to the queue, and despite crashes."""

import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast import DeadJob, Holdfast, InvalidInput, Permanent, RunningJob
from holdfast.domain.errors import SchemaMismatch
from holdfast.domain.job import JobState
from holdfast.runtime.row_queues import RowQueue
from holdfast.store.contract import JobFilter
from holdfast.types import WorkerSettings
from tests.databases import Database, connected
from tests.rows.conftest import Place
from tests.rows.tables import (
    DELIVERIES_TABLE,
    DISPATCH,
    OUTBOX,
    OUTBOX_TABLE,
    RECEIPTS,
    add_deliveries,
    migrate,
    statuses,
)
from tests.runtime.processes import Commands
from tests.store_contract.steps import job as new_job
from tests.worker.harness import Database as NamedDatabase
from tests.worker.harness import until

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@dataclass
class Push:
    push_token: str
    title: str


def build(url: str) -> Holdfast:
    app = Holdfast(url)
    app.rows(DISPATCH, concurrency=2)
    app.rows(RECEIPTS)

    @app.handler("push.send")
    async def send(job: RunningJob[Push]) -> None:
        if job.payload.title == "tender 2":
            raise Permanent("DEVICE_NOT_REGISTERED", "gone")

    @app.handler("push.receipt")
    async def receipt(job: RunningJob[dict[str, str | None]]) -> None:
        assert job.kind == "push.receipt"

    return app


async def test_one_tick_processes_a_row_with_both_mappings(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 5)
    async with build(deliveries.url) as app:
        report = await app.tick()
        counts = {part.runner: (part.processed, part.failed) for part in report.runners}
        assert list(counts) == ["schedules", "queue", "rows:dispatch", "rows:receipts", "maintenance"]
        assert (counts["queue"], counts["rows:dispatch"], counts["rows:receipts"]) == ((0, 0), (5, 1), (4, 0))
        assert {run.name for run in await app.runs.list(None, 10)} == {"rows:dispatch", "rows:receipts"}
    assert await statuses(deliveries.connection) == {"ok": 4, "invalid": 1}
    rows = await deliveries.connection.fetch("SELECT completed_at, locked_by, locked_at FROM notification_deliveries")
    assert all(row["completed_at"] and not row["locked_by"] and not row["locked_at"] for row in rows)


async def test_rows_are_runners_that_can_be_selected(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 2)
    async with build(deliveries.url) as app:
        report = await app.tick(runners=["rows:dispatch"])
        assert [part.runner for part in report.runners] == ["rows:dispatch"]
        with pytest.raises(InvalidInput, match="'rows:nothing' is not known; this app has schedules, queue, rows:dis"):
            app.worker(runners=["rows:nothing"])
    assert await statuses(deliveries.connection) == {"sent": 1, "invalid": 1}


async def test_jobs_and_rows_of_the_same_kind_do_not_interfere(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    async with build(deliveries.url) as app:
        enqueued = await app.enqueue("push.send", Push("token", "by hand"))
        assert (await app.tick()).is_fine
        assert [job.id for job in await app.jobs.list(JobFilter(), 10)] == [enqueued.id]
        store = app.row_store(RECEIPTS)
        (row,) = await store.jobs.list(JobFilter(), 10)
        assert (row.state, row.kind, await store.retry([row.id])) == ("succeeded", "push.receipt", ["ready"])
    assert await statuses(deliveries.connection) == {"sent": 1}


async def test_a_payload_that_does_not_fit_fails_the_row(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 1)
    await deliveries.connection.execute("DELETE FROM device_installations")
    async with build(deliveries.url) as app:
        assert (await app.tick()).is_fine
    row = await deliveries.connection.fetchrow("SELECT status, last_error_code FROM notification_deliveries")
    assert row is not None
    assert tuple(row) == ("failed", "VALIDATION_ERROR")


async def test_a_row_shows_its_last_error_as_a_job_does(deliveries: Place) -> None:
    await add_deliveries(deliveries.connection, 2)
    async with build(deliveries.url) as app:
        await app.tick(runners=["rows:dispatch"])
        (failed,) = await app.row_store(DISPATCH).jobs.list(JobFilter(state=JobState.FAILED), 10)
    assert failed.last_error is not None
    assert (failed.last_error.code, failed.last_error.message) == ("DEVICE_NOT_REGISTERED", "gone")


async def test_a_handler_finishes_its_row_together_with_its_writes(outbox: Place) -> None:
    app = Holdfast(outbox.url)
    app.rows(OUTBOX)
    await outbox.connection.execute("CREATE TABLE effect (job uuid)")

    @app.handler("work", attempts=1)
    async def work(job: RunningJob[dict[str, bool]]) -> None:
        async with connected(outbox.url) as connection, connection.transaction():
            await connection.execute("INSERT INTO effect VALUES ($1)", job.id)
            await job.finish_in(connection, {"done": True})
            if job.payload["fails"]:
                raise ValueError("after the finish")

    good, bad = new_job(payload='{"fails": false}'), new_job(payload='{"fails": true}')  # type: ignore[arg-type]
    async with app:
        await app.row_store(OUTBOX).enqueue([good, bad])
        (_, report, _) = (await app.tick(runners=["queue", "rows:outbox", "maintenance"])).runners
        assert (report.processed, report.failed) == (2, 1)
    rows = await outbox.connection.fetch('SELECT id, status, result FROM platform."OutboxEvent" ORDER BY status')
    assert [(row["id"], row["status"], row["result"]) for row in rows] == [
        (good.id, "SENT", '{"done": true}'), (bad.id, "FAILED", None),
    ]  # fmt: skip
    assert [row["job"] for row in await outbox.connection.fetch("SELECT job FROM effect")] == [good.id]


async def test_a_mapping_that_does_not_fit_is_reported_at_the_start_unless_it_is_not_selected(place: Place) -> None:
    async with build(place.url) as app:
        await app.enqueue("push.send", Push("token", "by hand"))
        for start in (app.tick, app.worker().run):
            with pytest.raises(SchemaMismatch, match="rows 'dispatch': there is no table 'notification_deliveries'"):
                await start()
        (report,) = (await app.tick(runners=["queue"])).runners
        assert report.processed == 1


def test_mappings_that_cannot_work_together_are_refused(server: object) -> None:
    app = Holdfast("memory:")
    app.rows(DISPATCH)
    with pytest.raises(InvalidInput, match="its own name"):
        app.rows(DISPATCH)
    with pytest.raises(InvalidInput, match="both could hold one row"):
        app.rows(replace(RECEIPTS, fence="another_fence"))
    with pytest.raises(InvalidInput, match="concurrency"):
        app.rows(RECEIPTS, concurrency=0)
    with pytest.raises(InvalidInput, match="is not a mapping; give Rows"):
        app.rows({"name": "dispatch"})  # type: ignore[arg-type]


def test_rows_are_not_claimed_ahead_if_a_lost_lease_counts_as_an_attempt(server: object) -> None:
    assert RowQueue(DISPATCH).settings(WorkerSettings()).most_ahead == 0
    assert RowQueue(OUTBOX).settings(WorkerSettings()).most_ahead == WorkerSettings().most_ahead


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"due": "item.details IS NULL"},
        {"table": "public.notification_deliveries"},
        {"states": replace(DISPATCH.states, column="other_status")},  # type: ignore[type-var]
        {"states": replace(RECEIPTS.states, running="pending")},  # type: ignore[type-var]
        {"states": None},
    ],
    ids=lambda change: "-".join(change) or "same",
)
def test_mappings_with_indistinguishable_locks_are_refused(server: object, change: dict[str, Any]) -> None:
    app = Holdfast("memory:")
    app.rows(DISPATCH)
    with pytest.raises(InvalidInput, match="each would rescue rows of the other") as refused:
        app.rows(replace(DISPATCH, name="second", **change))
    assert ("give each its schema" in str(refused.value)) is ("table" in change)
    app.rows(RECEIPTS)


def test_mappings_of_different_schemas_or_with_different_due_conditions_can_coexist(server: object) -> None:
    app = Holdfast("memory:")
    app.rows(replace(DISPATCH, table="a.deliveries"))
    app.rows(replace(DISPATCH, name="b", table="b.deliveries"))
    app.rows(replace(DISPATCH, name="sms", table="c.message", states=None, due="item.channel = 'sms'"))
    app.rows(replace(DISPATCH, name="mail", table="c.message", states=None, due="item.channel = 'mail'"))


async def test_on_dead_for_a_kind_with_a_mapping_is_refused(place: Place) -> None:
    app = build(place.url)

    @app.on_dead("push.send")
    def mourn(job: RunningJob[DeadJob[Push]]) -> None: ...

    async with app:
        with pytest.raises(InvalidInput, match=r"^on_dead: 'push.send' is the kind of the rows 'dispatch'"):
            app.worker()


async def test_a_mapped_kind_without_a_handler_is_refused_and_the_memory_store_ignores_rows(place: Place) -> None:
    app = Holdfast(place.url)
    app.rows(DISPATCH)
    app.handler("other")(lambda job: None)
    async with app:
        with pytest.raises(InvalidInput, match=r"no handler for the kind 'push.send'"):
            app.worker()
    async with build("memory:") as memory:
        assert memory.worker().runner_names == ["schedules", "queue", "maintenance"]


@pytest.fixture
async def application(database: Database) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    async with connected(database.url) as connection:
        await connection.execute(OUTBOX_TABLE)
        await connection.execute(DELIVERIES_TABLE)
        await connection.execute("CREATE TABLE effect (job uuid, fence bigint, note text)")
        await migrate(connection, OUTBOX, DISPATCH, RECEIPTS)
        yield connection


@pytest.fixture
def commands(database: Database, tmp_path: Path) -> Iterator[Commands]:
    started = Commands(NamedDatabase(database.name, database.url), tmp_path)
    try:
        yield started
    finally:
        started.end_all()


@pytest.mark.long
@pytest.mark.fault
async def test_killed_workers_lose_no_row_and_the_last_claim_of_each_row_has_its_effect(
    application: "asyncpg.Connection[asyncpg.Record]", commands: Commands, database: Database
) -> None:
    await add_deliveries(application, 150)
    async with Holdfast(database.url) as app:
        await app.row_store(OUTBOX).enqueue([new_job() for _ in range(150)])

    async def effects() -> int:
        found: int = await application.fetchval("SELECT count(*) FROM effect")
        return found

    async def is_over() -> bool:
        left: int = await application.fetchval(
            """
            SELECT (SELECT count(*) FROM notification_deliveries WHERE completed_at IS NULL)
                 + (SELECT count(*) FROM platform."OutboxEvent" WHERE status IN ('PENDING', 'PROCESSING'))
            """
        )
        return not left

    # Kill twice only: a third loss would end a row that has a count of losses.
    for goal in (60, 200):
        worker = commands.start("worker", "--app", "tests.rows.apps.pushing:app", "--lease", "1s")

        async def has_done_so_much(goal: int = goal) -> bool:
            return await effects() >= goal

        await until(has_done_so_much, f"{goal} effects")
        worker.send(signal.SIGKILL)
        worker.exit_code()
    last = commands.start("worker", "--app", "tests.rows.apps.pushing:app", "--lease", "1s")
    await until(is_over, "every row is over")
    last.send(signal.SIGTERM)
    assert last.exit_code() == 0, last.log
    assert await statuses(application) == {"ok": 135, "invalid": 15}
    assert await application.fetchval("""SELECT count(*) FROM platform."OutboxEvent" WHERE status = 'SENT'""") == 150
    assert await application.fetchval("SELECT count(DISTINCT (job, note)) FROM effect") == 150 * 3
    # The claim with the last effect finished the row, and no earlier claim overwrote anything.
    assert (
        await application.fetch(
            """
        SELECT FROM (SELECT id, fence, 'receipt' AS note FROM notification_deliveries
                     UNION ALL SELECT id, fence, 'work' FROM platform."OutboxEvent") AS over
        WHERE fence IS DISTINCT FROM (SELECT max(effect.fence) FROM effect
                                      WHERE effect.job = over.id AND effect.note = over.note)
        """
        )
        == []
    )
