"""How workers on PostgreSQL keep, lose and give up leases while handlers and connections misbehave."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast_lab.faults.proxy import Proxy
from tests.worker import children
from tests.worker.harness import (
    Database,
    codes,
    drained,
    fast,
    final_job,
    is_alive,
    job_in_state,
    renewing,
    until,
    working,
)

pytestmark = [pytest.mark.postgres, pytest.mark.fault]


@pytest.mark.parametrize("isolation", ["async", "thread"])
async def test_a_cancel_request_reaches_the_handler_with_the_next_renewal(
    isolation: str, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    app = Holdfast(database.url)
    started, stopped, let_go = threading.Event(), threading.Event(), threading.Event()

    async def waits(job: RunningJob[Any]) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    def waits_in_thread(job: RunningJob[Any]) -> str:
        started.set()
        let_go.wait()
        return "done"

    app.handler("waits")(waits if isolation == "async" else waits_in_thread)
    async with app, working(app, renewing()):
        id = (await app.enqueue("waits")).id
        await until(started.is_set, "the handler started")
        await app.cancel([id])
        if isolation == "thread":
            await until(lambda: "told to stop but is still running" in caplog.text, "the thread cannot be stopped")
            let_go.set()
        job = await final_job(app, id)
    assert stopped.is_set() == (isolation == "async")
    assert (job.attempt, job.losses) == (1, 0)
    if isolation == "async":
        assert (job.state, codes(job)) == (JobState.CANCELED, ["CANCELED"])
    else:
        # The request could not stop the thread, so the result of the thread stands.
        assert (job.state, job.result) == (JobState.SUCCEEDED, "done")


async def test_a_lost_lease_cancels_the_handler_and_its_outcome_is_not_written(database: Database) -> None:
    app = Holdfast(database.url)
    stopped = asyncio.Event()

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with app, working(app, renewing()) as worker:
        id = (await app.enqueue("waits")).id
        await job_in_state(app, id, JobState.RUNNING)
        await until(lambda: worker.worker._slots.running, "the handler started")
        database.query("DELETE FROM holdfast.lease WHERE id = %s", id)
        await until(stopped.is_set, "the handler was canceled")
        await until(lambda: worker.tally["lost"] == 1, "the worker counts it as lost")
    assert worker.tally == {"lost": 1}
    for table in ("ready", "lease", "finished", "dead_letter"):
        assert database.query(f"SELECT id FROM holdfast.{table}") == []
    assert database.query("SELECT 1 FROM holdfast.attempt_error") == []


async def test_a_job_that_lost_its_lease_while_waiting_is_not_started_with_that_lease(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.held._LookAhead.size", lambda self: 20)
    # Otherwise they are released before the keeper has tried to renew them.
    monkeypatch.setattr("holdfast.worker.worker._LONGEST_WAIT_SECONDS", 600.0)
    app = Holdfast(database.url)
    let_go = asyncio.Event()
    fences: dict[UUID, list[int]] = {}

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        fences.setdefault(job.id, []).append(job.fence)
        await let_go.wait()

    async with app:
        first, *others = [each.id for each in await app.enqueue_many([app.job("waits") for _ in range(10)])]
        async with working(app, renewing(concurrency=1)) as worker:
            await until(lambda: first in fences, "the first one runs and the others wait")
            await until(lambda: len(worker.worker._slots.waiting) == 9, "the others are claimed")
            lost = {held.id: held.job.lease.fence for held in worker.worker._slots.waiting}
            database.query("UPDATE holdfast.lease SET until = holdfast.now() - interval '1s' WHERE id <> %s", first)
            await app.opened.store.rescue(100)
            waiting = worker.worker._slots.waiting
            await until(
                lambda: all(held.interruption for held in waiting if held.job.lease.fence == lost[held.id]),
                "the keeper told the worker",
            )
            let_go.set()
            assert await drained(app) == {JobState.SUCCEEDED: 10}
    assert all(lost[id] not in fences[id] for id in others)
    assert all(len(started) == 1 for started in fences.values())


@pytest.mark.parametrize("isolation", ["async", "process"])
async def test_handlers_are_stopped_before_a_lease_that_cannot_be_renewed_ends(
    isolation: str, database: Database, proxy: Proxy, tmp_path: Path
) -> None:
    app = Holdfast(proxy.url)
    stopped: list[datetime] = []
    attempts: list[int] = []

    async def waits(job: RunningJob[Any]) -> None:
        attempts.append(job.attempt)
        if len(attempts) == 1:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append(datetime.now(UTC))

    pid = tmp_path / "pid"
    if isolation == "async":
        app.handler("waits")(waits)
    else:
        app.handler("waits", isolation="process")(children.sleeps)
    async with Holdfast(database.url) as direct, app:
        id = (await app.enqueue("waits", {"pid": str(pid)})).id
        async with working(app, fast(lease=timedelta(seconds=6))):
            if isolation == "async":
                await until(lambda: attempts, "the handler started")
            else:
                await until(lambda: pid.exists() and pid.read_text(), "the handler started")
            # A silent server is a case of the laboratory (R14).
            proxy.refuse()
            if isolation == "process":
                child = int(pid.read_text())
                await until(lambda: not is_alive(child), "the child is dead")
                stopped.append(datetime.now(UTC))
            await until(lambda: stopped, "the handler was stopped")
            held = await job_in_state(direct, id, JobState.RUNNING)
            assert held.lease_until is not None
            assert stopped[0] < held.lease_until
            proxy.flow()
            if isolation == "async":
                # Either can come first: the interrupted outcome, kept until the store was back, or the rescue.
                job = await final_job(direct, id)
                assert (job.state, job.attempt - job.losses) == (JobState.SUCCEEDED, 1)
                assert job.errors[0]["code"] == ("LEASE_LOST" if job.losses else "INTERRUPTED")
            else:
                await direct.cancel([id])
                assert (await final_job(direct, id)).state is JobState.CANCELED


async def test_killing_the_keepers_connection_alone_costs_nothing(database: Database) -> None:
    app = Holdfast(database.url)
    let_go = asyncio.Event()

    @app.handler("waits")
    async def waits(job: RunningJob[Any]) -> None:
        await let_go.wait()

    renewals = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE '%%.renew(%%' AND pid <> pg_backend_pid()"
    )
    async with app, working(app, renewing()) as worker:
        id = (await app.enqueue("waits")).id
        killed: list[object] = []

        def kill_keeper() -> bool:
            for (pid,) in database.query(renewals):
                if pid not in killed:
                    database.query("SELECT pg_terminate_backend(%s)", pid)
                    killed.append(pid)
                    return True
            return False

        for _ in range(4):
            await until(kill_keeper, "the keeper renews on a new connection")
        let_go.set()
        job = await final_job(app, id)
    assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 1, 0)
    assert worker.tally == {"succeed": 1}
