"""The server refuses logins, privileges or commits for a while, and no outcome changes."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, JobState, Permanent, RunningJob
from holdfast.domain.retry import exponential
from holdfast.store.contract import Fenced, Finish
from holdfast.store.postgres.store import PostgresStore
from tests.postgres.roles import Role, role_of
from tests.worker.harness import Database, codes, fast, final_job, until, working

JOBS = 20
TRIES = 16
"""Of each outcome."""

REFUSE_COMMITS = """
CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON holdfast.lease DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION refuse()
"""


@pytest.fixture
def role(database: Database) -> Iterator[Role]:
    with role_of(database.url) as role:
        yield role


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Counter[UUID]:
    """How often each outcome was sent."""
    found = Counter[UUID]()
    finish = PostgresStore.finish

    async def counted(self: PostgresStore, finishes: Sequence[Finish]) -> list[Fenced]:
        found.update(each.lease.id for each in finishes)
        return await finish(self, finishes)

    monkeypatch.setattr(PostgresStore, "finish", counted)
    monkeypatch.setattr("holdfast.worker.loop._BACKOFF", exponential(base="20ms", max="20ms", jitter="0s"))
    return found


def logins(role: Role, database: Database) -> Callable[[bool], None]:
    return role.allow_logins


def privileges(role: Role, database: Database) -> Callable[[bool], None]:
    return role.allow_writes


def commits(role: Role, database: Database) -> Callable[[bool], None]:
    def allow(allowed: bool) -> None:
        database.query("DROP TRIGGER refuse ON holdfast.lease; DROP FUNCTION refuse" if allowed else REFUSE_COMMITS)

    return allow


@pytest.mark.parametrize("refused", [logins, privileges, commits])
async def test_every_outcome_is_finally_written_unchanged(
    refused: Callable[[Role, Database], Callable[[bool], None]], role: Role, database: Database, tries: Counter[UUID]
) -> None:
    allow = refused(role, database)
    app = Holdfast(role.url)
    ran: list[UUID] = []
    go = asyncio.Event()

    @app.handler("work")
    async def work(job: RunningJob[dict[str, int]]) -> dict[str, Any] | None:
        ran.append(job.id)
        await go.wait()
        match job.payload["number"] % 3:
            case 0:
                raise Permanent("BAD_ADDRESS", "no such address")
            case 1:
                return {"fence": job.fence}
            case _:
                return None

    async with app, working(app, fast(concurrency=JOBS)):
        ids = [each.id for each in await app.enqueue_many([app.job("work", {"number": n}) for n in range(JOBS)])]
        await until(lambda: len(ran) == JOBS, "every handler runs")
        allow(False)
        go.set()
        await until(lambda: min(tries[id] for id in ids) >= TRIES, "every outcome is refused repeatedly")
        allow(True)
        jobs = [await final_job(app, id) for id in ids]
    assert sorted(ran) == sorted(ids)
    assert {(job.attempt, job.losses) for job in jobs} == {(1, 0)}
    for number, job in enumerate(jobs):
        expected = JobState.FAILED if number % 3 == 0 else JobState.SUCCEEDED
        assert (job.state, codes(job)) == (expected, ["BAD_ADDRESS"] if number % 3 == 0 else [])
        assert job.result == ({"fence": job.fence} if number % 3 == 1 else None)
