"""The program that each side of a comparison runs works with the current sources."""

import sys
from pathlib import Path

import asyncpg
import pytest

from bench.targets.against.checkouts import ROOT, Side
from bench.targets.against.programs import done, started, started_worker
from bench.targets.workers import Stuck
from tests.databases import Database

pytestmark = [pytest.mark.postgres, pytest.mark.long, pytest.mark.parametrize("server", ["embedded-18"], indirect=True)]

_SIDE = Side("new", ROOT, Path(sys.executable))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


async def value(database: Database, sql: str) -> object:
    connection = await asyncpg.connect(database.url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def test_two_workers_drain_the_enqueued_jobs(empty_database: Database, log: Path, tmp_path: Path) -> None:
    url, shared = empty_database.url, tmp_path / "shared"
    shared.write_bytes(bytes(32))
    await done(_SIDE, log, "migrate", url)
    await done(_SIDE, log, "fill", url, "500", "1", "1", "1")
    words = ("drain", url, "yielding", "500", str(shared))
    async with (
        started_worker(_SIDE, log, *words, "0", "2") as one,
        started_worker(_SIDE, log, *words, "1", "2") as other,
    ):
        assert await value(empty_database, "SELECT count(*) FROM holdfast.finished") == 0
        await other.tell("go")
        (seconds,) = await one.step("go")
    assert await value(empty_database, "SELECT count(*) FROM holdfast.finished") == 500
    assert 0 < seconds < 60


async def test_a_producer_times_what_it_enqueues_and_how_long_each_job_waits(database: Database, log: Path) -> None:
    async with started(_SIDE, log, "produce", database.url) as producer:
        (single,) = await producer.step("single 3")
        (bulk,) = await producer.step("bulk 1200")
        assert single > 0
        assert bulk > 0
        assert await value(database, "SELECT count(*) FROM holdfast.ready") == 1203
        async with started_worker(_SIDE, log, "stamp", database.url) as worker:
            await worker.tell("go")
            waits = await producer.step("spaced 4")
    assert len(waits) == 4


@pytest.mark.parametrize("queues", ["1", "12"])
async def test_a_fresh_worker_times_its_first_claim(database: Database, log: Path, queues: str) -> None:
    await done(_SIDE, log, "fill", database.url, "40", "12", queues, "4")
    kinds = await value(database, "SELECT string_agg(DISTINCT queue || ' ' || kind, ',') FROM holdfast.ready")
    last = "queue-00000" if queues == "1" else "queue-00009"
    assert str(kinds).split(",")[-1] == f"{last} kind-00009"
    async with started(_SIDE, log, "first-claim", database.url, "12", queues) as worker:
        claim, to_handler, cold = await worker.step("go")
    assert 0 < claim <= to_handler
    assert cold > 0


async def test_a_failing_program_is_reported_with_its_last_log_line(database: Database, log: Path) -> None:
    with pytest.raises(Stuck, match=r"new: fill ended with 1; the last line of its log: ValueError"):
        await done(_SIDE, log, "fill", database.url, "many", "1", "1", "1")
    with pytest.raises(Stuck, match="new ended by itself; the last line of its log: unknown command"):
        async with started(_SIDE, log, "dance"):
            pass
