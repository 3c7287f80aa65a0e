"""`job.finish_in(connection, Permanent(…))`: how the worker treats a job that its handler has already ended."""

import logging
from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast, JobState
from tests.worker.endings import register
from tests.worker.harness import Database, codes, fast, until, working

pytestmark = pytest.mark.postgres

AFTER = {"fail": JobState.FAILED, "cancel": JobState.CANCELED, "snooze": JobState.READY}
SAID = {"fail": ["NO_STOCK"], "cancel": ["CANCELED"], "snooze": []}


@pytest.fixture
async def app(database: Database) -> AsyncIterator[Holdfast]:
    app = Holdfast(database.url)
    register(app)
    async with app:
        yield app


def effects(database: Database) -> int:
    return len(database.query("SELECT note FROM effect"))


@pytest.mark.parametrize("kind", ["async", "process"])
@pytest.mark.parametrize("how", list(AFTER))
async def test_the_outcome_stands_and_is_counted(
    app: Holdfast, database: Database, how: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = await app.enqueue(kind, {"url": database.url, "how": how})
    async with working(app, fast(processes=1)) as worker:
        await until(lambda: worker.tally, "it has ended")
        assert worker.tally == {how: 1}
    found = await app.jobs.get(job.id)
    assert found is not None
    assert (found.state, codes(found), found.attempt) == (AFTER[how], SAID[how], 0 if how == "snooze" else 1)
    assert effects(database) == 1
    troubles = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage().partition("  ")[0] for record in troubles] == (
        ["job is now a dead letter"] if how == "fail" else []
    )


@pytest.mark.parametrize("how", list(AFTER))
async def test_a_transaction_that_rolls_back_is_a_failed_attempt(app: Holdfast, database: Database, how: str) -> None:
    job = await app.enqueue("async", {"url": database.url, "how": how, "then": "roll back"})
    async with working(app) as worker:
        await until(lambda: worker.tally, "it has ended")
        assert worker.tally == {"retry": 1}
    found = await app.jobs.get(job.id)
    assert found is not None
    assert (found.state, codes(found)) == (JobState.READY, ["NOT_COMMITTED"])
    assert effects(database) == 0


async def test_finish_in_refuses_a_retryable_because_it_does_not_end_the_job(app: Holdfast, database: Database) -> None:
    job = await app.enqueue("async", {"url": database.url, "how": "retry"})
    async with working(app) as worker:
        await until(lambda: worker.tally, "it has ended")
    found = await app.jobs.get(job.id)
    assert found is not None
    assert found.last_error is not None
    assert found.last_error.message == "finish_in: Retryable does not end the job; raise it instead"
