"""`job.finish_in`: a handler's writes, the jobs it enqueues and its outcome commit together or not at all."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from holdfast import Holdfast, JobState, RunningJob
from holdfast.domain.job import LeasedJob
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Canceling, ClaimRequest, Fenced, Finish, JobFilter, KindClaim, Renewal, Renewed
from holdfast.worker.held import HeldJob
from holdfast.worker.lease_keeper import KeeperRules, Stop
from tests.worker import transactional
from tests.worker.harness import Database, codes, errors, fast, final_job, job_in_state, renewing, until, working
from tests.worker.transactional import KINDS, LEVELS, register

pytestmark = pytest.mark.postgres

# Child processes cost a second each, so they do not run with every isolation level.
EVERY_DRIVER = [
    *((kind, level) for kind in ("asyncpg", "psycopg", "psycopg_async") for level in LEVELS),
    ("asyncpg_pool", "read committed"),
    ("in_child", "read committed"),
    ("in_child_async", "repeatable read"),
]
ONE_SLOT = fast(concurrency=1, most_ahead=0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_TEST_FOLDER", str(tmp_path))
    return tmp_path


class Hold:
    """Halts handlers at a point until it is let go."""

    def __init__(self, folder: Path, point: str) -> None:
        self._reached, self._hold = folder / f"{point}.reached", folder / f"{point}.hold"
        self._hold.touch()

    async def reached(self) -> None:
        await until(self._reached.exists, f"handler at {self._reached.name}")

    def let_go(self) -> None:
        self._hold.unlink()


async def rescued_and_claimed_by_another(app: Holdfast, database: Database, id: UUID, kind: str) -> LeasedJob:
    database.query("UPDATE holdfast.lease SET until = holdfast.now() - interval '1 second' WHERE id = %s", id)
    await app.opened.store.rescue(10)
    kinds = {kind: KindClaim(timedelta(seconds=30), 1)}
    (leased,) = await app.opened.store.claim(ClaimRequest(uuid4(), 1, ("default",), kinds))
    return leased


def renewals_answered(monkeypatch: pytest.MonkeyPatch) -> Counter[Fenced]:
    """How often the lease keeper got each answer."""
    counted: Counter[Fenced] = Counter()
    learn = KeeperRules.learn

    def learning(
        self: KeeperRules, sent_at: float, renewals: Mapping[HeldJob, Renewal], answers: Iterable[Renewed]
    ) -> list[Stop]:
        answers = list(answers)
        counted.update(answer.fenced for answer in answers)
        return learn(self, sent_at, renewals, answers)

    monkeypatch.setattr(KeeperRules, "learn", learning)
    return counted


async def children(app: Holdfast) -> int:
    return len(await app.jobs.list(JobFilter(kind="child"), 100))


@pytest.mark.parametrize(("kind", "level"), EVERY_DRIVER)
async def test_writes_child_jobs_and_outcome_commit_together(
    kind: str, level: str, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with register(Holdfast(database.url)) as app, working(app) as worker:
        id = (await app.enqueue(kind, {"url": database.url, "level": level}, tenant="acme", correlation_id="trace")).id
        job = await final_job(app, id)
        (child,) = await app.jobs.list(JobFilter(kind="child"), 100)
        await until(lambda: worker.tally["succeed"] == 1, "the worker knows that the job is done")
    assert (job.state, job.attempt, job.errors) == (JobState.SUCCEEDED, 1, ())
    assert job.result == {"attempt": 1}
    assert database.effects(id) == ["written"]
    assert (child.tenant, child.correlation_id) == ("acme", "trace")
    assert worker.tally == {"succeed": 1}
    assert "did not succeed" not in caplog.text


@pytest.mark.parametrize("finish_last", [False, True], ids=["finishes first", "finishes last"])
@pytest.mark.parametrize(("kind", "level"), EVERY_DRIVER)
async def test_a_lease_lost_before_the_finish_leaves_nothing_behind(
    kind: str, level: str, finish_last: bool, database: Database, folder: Path
) -> None:
    hold = Hold(folder, "written" if finish_last else "open")
    async with register(Holdfast(database.url)) as app, working(app, ONE_SLOT) as worker:
        payload = {"url": database.url, "level": level, "finish_last": finish_last}
        id = (await app.enqueue(kind, payload)).id
        await hold.reached()
        other = await rescued_and_claimed_by_another(app, database, id, kind)
        hold.let_go()
        await until(lambda: worker.tally["stale"] + worker.tally["lost"] == 1, "the worker learned that it is stale")
        running = await app.jobs.get(id)
        assert running is not None
        assert (running.state, running.fence) == (JobState.RUNNING, other.lease.fence)
        assert codes(running) == ["LEASE_LOST"]
        assert database.effects(id) == []
        assert await children(app) == 0
        assert await app.opened.store.finish([Finish(other.lease, Transition(Move.SUCCEED))]) == [Fenced.DONE]


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("asyncpg", "read committed"),
        ("asyncpg", "repeatable read"),
        ("psycopg", "repeatable read"),
        ("psycopg_async", "read committed"),
        ("in_child", "read committed"),
    ],
)
async def test_a_transaction_open_for_three_leases_is_not_disturbed(
    kind: str, level: str, database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a long lease and frequent renewals, a delay of a second on a busy machine loses nothing."""
    hold = Hold(folder, "finished")
    counted = renewals_answered(monkeypatch)
    settings = renewing(concurrency=1, most_ahead=0)
    async with register(Holdfast(database.url)) as app, working(app, settings) as worker:
        id = (await app.enqueue(kind, {"url": database.url, "level": level})).id
        bystander = app.job("asyncpg", {"url": database.url}, priority=9)
        await hold.reached()
        await app.clock.advance(3 * settings.lease)
        await until(lambda: counted[Fenced.LOCKED] >= 3, "the keeper has tried a few renewals")
        assert database.query("SELECT until < holdfast.now() FROM holdfast.lease") == [(True,)]
        assert await app.opened.store.rescue(10) == []
        assert await app.cancel([id]) == [Canceling.LOCKED]
        await app.enqueue_many([bystander])
        hold.let_go()
        job = await final_job(app, id)
        assert (await final_job(app, bystander.id)).state is JobState.SUCCEEDED
        await until(lambda: worker.tally["succeed"] == 2, "the worker knows that both are done")
    assert (job.state, job.attempt, job.losses, job.errors) == (JobState.SUCCEEDED, 1, 0, ())
    assert database.effects(id) == ["written"]
    assert worker.tally == {"succeed": 2}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_handler_that_rolls_back_and_returns_is_retried(kind: str, database: Database) -> None:
    async with register(Holdfast(database.url)) as app, working(app):
        id = (await app.enqueue(kind, {"url": database.url, "rolls_back_attempt": 1})).id
        job = await final_job(app, id)
        assert await children(app) == 1
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2)
    assert codes(job) == ["NOT_COMMITTED"]
    assert "did not commit, or finish_in was not awaited" in str(errors(job)[0]["message"])
    assert database.effects(id) == ["written"]


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "in_child"])
async def test_an_error_inside_the_transaction_fails_the_attempt_as_usual(kind: str, database: Database) -> None:
    async with register(Holdfast(database.url)) as app, working(app):
        id = (await app.enqueue(kind, {"url": database.url, "raises_attempt": 1})).id
        job = await final_job(app, id)
        assert await children(app) == 1
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2)
    assert [(error["code"], error["message"]) for error in errors(job)] == [("ERROR", "inside the transaction")]
    assert database.effects(id) == ["written"]


@pytest.mark.parametrize("signal", sorted(transactional.THEN_RAISE))
@pytest.mark.parametrize("kind", ["asyncpg", "psycopg"])
async def test_an_exception_after_the_commit_changes_nothing(kind: str, signal: str, database: Database) -> None:
    async with register(Holdfast(database.url)) as app, working(app) as worker:
        id = (await app.enqueue(kind, {"url": database.url, "then_raises": signal})).id
        await until(lambda: worker.tally["succeed"] == 1, "the worker knows that the job is done")
        job = await final_job(app, id)
    assert (job.state, job.attempt, job.errors) == (JobState.SUCCEEDED, 1, ())
    assert database.effects(id) == ["written"]


async def test_a_renewal_between_the_snapshot_and_a_late_finish_only_fails_the_attempt(
    database: Database, folder: Path
) -> None:
    """Under repeatable read, call `finish_in` first. Called last, it can raise a serialization error (harmless)."""
    hold = Hold(folder, "written")
    # The second attempt ends long before its first renewal.
    settings = renewing(concurrency=1, renew=timedelta(seconds=1))
    async with register(Holdfast(database.url)) as app, working(app, settings):
        payload = {"url": database.url, "level": "repeatable read", "finish_last": True}
        id = (await app.enqueue("asyncpg", payload)).id
        await hold.reached()
        first = (await job_in_state(app, id, JobState.RUNNING)).lease_until

        async def is_renewed() -> bool:
            return (await job_in_state(app, id, JobState.RUNNING)).lease_until != first

        await until(is_renewed, "the lease was renewed")
        hold.let_go()
        job = await final_job(app, id)
        assert await children(app) == 1
    assert (job.state, job.losses) == (JobState.SUCCEEDED, 0)
    (error,) = errors(job)
    assert error["type"] == "SerializationError"
    assert "call finish_in before anything else" in str(error["message"])
    assert database.effects(id) == ["written"]


async def test_a_handler_that_times_out_in_its_transaction_leaves_nothing_behind(
    database: Database, folder: Path
) -> None:
    hold = Hold(folder, "finished")
    app = Holdfast(database.url)
    app.handler("asyncpg", timeout="300ms", attempts=1)(transactional.with_asyncpg)
    async with app, working(app):
        id = (await app.enqueue("asyncpg", {"url": database.url})).id
        await hold.reached()
        job = await final_job(app, id)
        hold.let_go()
        assert await children(app) == 0
    assert job.state is JobState.DEAD
    assert codes(job) == ["TIMEOUT"]
    assert database.effects(id) == []


async def test_finish_in_requires_a_store_with_transactions() -> None:
    app = Holdfast("memory:")

    @app.handler("finishes", attempts=1)
    async def finishes(job: RunningJob[dict[str, object]]) -> None:
        await job.finish_in(object())

    async with app, working(app):
        job = await final_job(app, (await app.enqueue("finishes")).id)
    assert job.state is JobState.DEAD
    (error,) = errors(job)
    assert error["type"] == "InvalidInput"
    assert "needs a PostgreSQL store" in str(error["message"])
    assert "in a test, use holdfast.testing.on_postgres" in str(error["message"])


async def test_finish_in_refuses_anything_but_a_connection(database: Database) -> None:
    app = Holdfast(database.url)

    @app.handler("finishes", attempts=1)
    async def finishes(job: RunningJob[dict[str, object]]) -> None:
        await job.finish_in(object())

    async with app, working(app):
        job = await final_job(app, (await app.enqueue("finishes")).id)
    (error,) = errors(job)
    assert "pass one from asyncpg, psycopg, SQLAlchemy or Django" in str(error["message"])
