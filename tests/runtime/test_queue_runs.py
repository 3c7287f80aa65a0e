"""The runs of the queue: one row for each minute in which it worked, with the time that the work took."""

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, RunningJob
from holdfast.domain.json_text import decode
from tests.worker.harness import Database

pytestmark = pytest.mark.postgres


async def test_a_run_starts_with_the_work_of_the_tick(database: Database) -> None:
    app = Holdfast(database.url)

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> None:
        await asyncio.sleep(0.5)

    async with app:
        await app.enqueue_many([app.job("do") for _ in range(3)])
        await app.tick(runners=["queue"])
        (run,) = await app.runs.list("queue", 10)
    assert run.finished_at is not None
    assert (run.finished_at - run.started_at).total_seconds() >= 0.5
    assert decode(run.result or "") == {"succeed": 3}
    assert run.error is None


async def test_idling_records_nothing(database: Database) -> None:
    app = Holdfast(database.url)
    app.handler("do")(lambda job: None)
    async with app:
        await app.tick(runners=["queue"])
        assert await app.runs.list("queue", 10) == []
