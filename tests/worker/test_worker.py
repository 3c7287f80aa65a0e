"""How a worker shares its slots among jobs, isolates the jobs, and survives each of them."""

import asyncio
import logging
import threading
from collections import Counter
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, JobState, NewJob, Permanent, Retryable, RunningJob, Snooze
from holdfast.domain.json_text import Json
from holdfast.logs import JobLogFilter
from holdfast.logs.records import get_logger
from holdfast.store.contract import ClaimRequest, JobFilter, KindClaim
from holdfast.worker.held import Interruption
from tests.worker.harness import Database, codes, drained, fast, final_job, job_in_state, until, working

seen_by: ContextVar[str] = ContextVar("seen_by", default="nobody")


async def quick(job: RunningJob[Any]) -> None:
    """Does nothing."""


@pytest.mark.parametrize("isolation", ["async", "thread"])
async def test_context_variables_do_not_leak_from_job_to_job(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Make jobs wait, because the end of a job starts the next waiting job.
    monkeypatch.setattr("holdfast.worker.held._LookAhead.size", lambda self: 20)
    app = Holdfast("memory:")
    found = []

    async def sets(job: RunningJob[Any]) -> None:
        found.append(seen_by.get())
        seen_by.set(str(job.id))

    def sets_in_thread(job: RunningJob[Any]) -> None:
        found.append(seen_by.get())
        seen_by.set(str(job.id))

    app.handler("sets")(sets if isolation == "async" else sets_in_thread)
    async with app:
        await app.enqueue_many([app.job("sets") for _ in range(20)])
        async with working(app, fast(concurrency=2)):
            await drained(app)
    assert found == ["nobody"] * 20


@pytest.mark.parametrize("isolation", ["async", "thread"])
async def test_jobs_and_log_lines_inherit_the_correlation_id_and_tenant(
    isolation: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(JobLogFilter())
    app = Holdfast("memory:")
    log = get_logger("shop")
    children: list[NewJob] = []

    async def parent(job: RunningJob[Any]) -> None:
        log.info("working")
        logging.getLogger("shop").info("plainly")
        await app.enqueue("child")

    def parent_in_thread(job: RunningJob[Any]) -> None:
        log.info("working")
        logging.getLogger("shop").info("plainly")
        children.append(app.job("child"))

    app.handler("parent")(parent if isolation == "async" else parent_in_thread)
    app.handler("child")(quick)
    async with app, working(app):
        id = (await app.enqueue("parent", tenant="acme", correlation_id="trace-7")).id
        await final_job(app, id)
        if children:
            await app.enqueue_many(children)
        await drained(app)
        (child,) = await app.jobs.list(JobFilter(kind="child"), 10)
    assert (child.tenant, child.correlation_id) == ("acme", "trace-7")
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("working")]
    assert f"job_id={id}" in line
    assert "correlation_id=trace-7" in line
    (plain,) = [record for record in caplog.records if record.getMessage() == "plainly"]
    assert vars(plain)["correlation_id"] == "trace-7"
    started = next(record for record in caplog.records if "worker stopped" in record.getMessage())
    assert "trace-7" not in started.getMessage()


async def test_the_message_of_an_exception_is_stored_with_the_job_but_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Handlers put their data into messages, and other people can read the logs."""
    caplog.set_level(logging.DEBUG)
    app = Holdfast("memory:")

    @app.handler("charge", attempts=2, backoff="steps 10ms")
    async def charge(job: RunningJob[dict[str, str]]) -> None:
        raise LookupError(f"no account of card {job.payload['card']}")

    async with app, working(app):
        enqueued = await app.enqueue("charge", {"card": "4111-canary"})
        job = await final_job(app, enqueued.id)
    assert "no account of card 4111-canary" in job.errors[-1]["message"]
    lines = [record.getMessage() for record in caplog.records if f"job_id={job.id}" in record.getMessage()]
    assert [f"error={LookupError.__name__}" in line for line in lines] == [True, True]
    assert "4111-canary" not in caplog.text


async def test_jobs_start_in_the_order_they_were_enqueued() -> None:
    app = Holdfast("memory:")
    started: list[int] = []

    @app.handler("count")
    async def count(job: RunningJob[dict[str, int]]) -> None:
        started.append(job.payload["n"])

    async with app:
        for number in range(60):
            await app.enqueue("count", {"n": number})
        async with working(app, fast(concurrency=1)):
            await drained(app)
    assert started == list(range(60))


async def test_a_slow_job_delays_no_other() -> None:
    app = Holdfast("memory:")
    let_go = asyncio.Event()

    @app.handler("slow")
    async def slow(job: RunningJob[Any]) -> None:
        await let_go.wait()

    app.handler("quick")(quick)
    async with app:
        slow_id = (await app.enqueue("slow")).id
        await app.enqueue_many([app.job("quick") for _ in range(100)])
        async with working(app, fast(concurrency=2)) as worker:
            await until(lambda: worker.tally["succeed"] == 100, "all quick jobs done while the slow one runs")
            assert (await job_in_state(app, slow_id, JobState.RUNNING)).attempt == 1
            let_go.set()
            await drained(app)


async def test_a_free_slot_is_filled_without_waiting_for_a_poll() -> None:
    app = Holdfast("memory:")
    random = Random(7)

    @app.handler("mixed")
    async def mixed(job: RunningJob[dict[str, float]]) -> None:
        await asyncio.sleep(job.payload["seconds"])

    async with app:
        seconds = [0.0] * 150 + [random.choice([0, 0.001, 0.08]) for _ in range(100)] + [0.0] * 50
        await app.enqueue_many([app.job("mixed", {"seconds": each}) for each in seconds])
        async with working(app, fast(concurrency=3, poll=timedelta(minutes=10))):
            assert await drained(app, 30) == {JobState.SUCCEEDED: 300}


async def test_a_kind_at_its_limit_leaves_the_slots_to_others() -> None:
    app = Holdfast("memory:")
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    let_go = asyncio.Event()

    @app.handler("limited", limit=2)
    async def limited(job: RunningJob[Any]) -> None:
        running["limited"] += 1
        most["limited"] = max(most["limited"], running["limited"])
        await let_go.wait()
        running["limited"] -= 1

    app.handler("quick")(quick)
    async with app:
        await app.enqueue_many([app.job("limited") for _ in range(10)])
        await app.enqueue_many([app.job("quick") for _ in range(50)])
        async with working(app, fast(concurrency=4)) as worker:
            await until(lambda: worker.tally["succeed"] == 50, "the unlimited jobs are done")
            assert running["limited"] == 2
            let_go.set()
            await drained(app)
    assert most["limited"] == 2


async def test_one_bad_job_among_fifty_harms_no_other() -> None:
    app = Holdfast("memory:")

    @app.handler("do", attempts=1)
    async def do(job: RunningJob[dict[str, Any]]) -> object:
        if job.payload.get("bad"):
            raise SystemExit
        return job.payload

    async with app:
        await app.enqueue_many([app.job("do", {"bad": number == 25}) for number in range(50)])
        async with working(app, fast(concurrency=50)):
            assert await drained(app) == {JobState.SUCCEEDED: 49, JobState.DEAD: 1}


class RaisingBackoff:
    def delay(self, n: int, random: Random) -> timedelta:
        raise ZeroDivisionError


class NumberBackoff:
    def delay(self, n: int, random: Random) -> timedelta:
        return 5  # type: ignore[return-value]


class NegativeBackoff:
    def delay(self, n: int, random: Random) -> timedelta:
        return timedelta(days=-1)


@pytest.mark.parametrize("backoff", [RaisingBackoff(), NumberBackoff(), NegativeBackoff()])
async def test_the_default_replaces_a_broken_backoff_policy(backoff: Any) -> None:  # noqa: ANN401
    app = Holdfast("memory:")

    @app.handler("do", attempts=2, backoff=backoff)
    async def do(job: RunningJob[Any]) -> None:
        raise ValueError("no")

    async with app, working(app, fast(concurrency=1)):
        job = await final_job(app, (await app.enqueue("do")).id)
    assert (job.state, job.attempt) == (JobState.DEAD, 2)


async def test_a_suspect_runs_alone_and_the_worker_continues_afterward() -> None:
    app = Holdfast("memory:")
    alone = []

    @app.handler("suspect")
    async def suspect(job: RunningJob[Any]) -> None:
        alone.append(len(worker.worker._slots.held))

    app.handler("quick")(quick)
    async with app:
        store = app.opened.store
        id = (await app.enqueue("suspect")).id
        for _ in range(2):
            kinds = {"suspect": KindClaim(timedelta(seconds=1), 1)}
            assert len(await store.claim(ClaimRequest(uuid4(), 1, ("default",), kinds))) == 1
            await app.clock.advance(timedelta(seconds=2))
            assert len(await store.rescue(10)) == 1
        await app.enqueue_many([app.job("quick") for _ in range(10)])
        async with working(app, fast(lease=timedelta(seconds=12))) as worker:
            job = await final_job(app, id)
            await drained(app)
            later = (await app.enqueue("quick")).id
            assert (await final_job(app, later)).state is JobState.SUCCEEDED
    assert (job.state, job.attempt, job.losses) == (JobState.SUCCEEDED, 3, 2)
    assert alone == [1]


async def test_a_job_interrupted_before_its_handler_starts_does_not_run_and_frees_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.worker.held._LookAhead.size", lambda self: 20)
    app, let_go = Holdfast("memory:"), asyncio.Event()
    ran = []

    @app.handler("do")
    async def do(job: RunningJob[Any]) -> None:
        ran.append(job.id)
        await let_go.wait()

    async with app:
        first, second, third = [(await app.enqueue("do")).id for _ in range(3)]
        async with working(app, fast(concurrency=1)) as worker:
            waiting = worker.worker._slots.waiting
            await until(lambda: len(waiting) == 2, "one runs, two wait")
            waiting[0].interrupt(Interruption.CANCELED)
            let_go.set()
            assert (await final_job(app, second)).state is JobState.CANCELED
            assert (await final_job(app, third)).state is JobState.SUCCEEDED
    assert ran == [first, third]


@pytest.mark.postgres
async def test_postgresql_stores_every_outcome_however_strange(database: Database) -> None:
    deep: object = 1
    for _ in range(99):
        deep = [deep]
    outcomes: dict[str, object] = {
        "long number": 10**4000,
        "float": [1e308, -0.0, 5e-324],
        "deep": deep,
        "text": "é𝄞\u2028\\u0000\x7f",
        "nul": "\x00",
        "surrogate": {"\udfff": 1},
        "far": Retryable(at=datetime(9998, 12, 31, tzinfo=UTC)),
        "long ago": Retryable(at=datetime(1, 1, 1, tzinfo=UTC)),
        "a century": Snooze("36500d"),
        "code": Permanent("\x00\ud800" * 1000),
        "message": ValueError("\x00\ud800" * 1_000_000),
    }
    app = Holdfast(database.url)

    @app.handler("do", attempts=1)
    async def do(job: RunningJob[dict[str, str]]) -> object:
        outcome = outcomes[job.payload["name"]]
        if isinstance(outcome, ValueError):
            raise outcome
        return outcome

    async with app, working(app, fast(concurrency=50)) as worker:
        jobs = {name: app.job("do", {"name": name}) for name in outcomes}
        await app.enqueue_many(list(jobs.values()))
        await until(lambda: sum(worker.tally.values()) == len(outcomes), "all outcomes are written")
        states = {name: job.state for name, new in jobs.items() if (job := await app.jobs.get(new.id)) is not None}
    assert worker.tally["stale"] == 0
    assert states == {
        "long number": JobState.SUCCEEDED,
        "float": JobState.SUCCEEDED,
        "deep": JobState.SUCCEEDED,
        "text": JobState.SUCCEEDED,
        "nul": JobState.FAILED,
        "surrogate": JobState.FAILED,
        "far": JobState.DEAD,
        "long ago": JobState.DEAD,
        "a century": JobState.READY,
        "code": JobState.FAILED,
        "message": JobState.DEAD,
    }


async def test_a_payload_that_is_no_longer_json_fails_its_job() -> None:
    app = Holdfast("memory:")
    app.handler("do")(quick)
    new = NewJob(kind="do", payload=Json("{broken"))
    async with app, working(app):
        await app.enqueue_many([new])
        job = await final_job(app, new.id)
    assert job.state is JobState.FAILED
    assert codes(job) == ["VALIDATION_ERROR"]


async def test_a_thread_that_ends_late_gives_its_slot_to_a_waiting_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.worker.held._LookAhead.size", lambda self: 10)
    app = Holdfast("memory:")
    let_go, let_others_go = threading.Event(), asyncio.Event()

    @app.handler("stuck", attempts=1, timeout="50ms")
    def stuck(job: RunningJob[Any]) -> None:
        let_go.wait()

    @app.handler("busy")
    async def busy(job: RunningJob[Any]) -> None:
        await let_others_go.wait()

    app.handler("quick")(quick)
    async with app:
        stuck_id = (await app.enqueue("stuck")).id
        await app.enqueue_many([app.job("busy"), app.job("busy"), app.job("quick")])
        async with working(app, fast(concurrency=3)) as worker:
            await until(lambda: "told to stop but is still running" in caplog.text, "it is past its timeout")
            let_go.set()
            assert codes(await final_job(app, stuck_id)) == ["TIMEOUT"]
            await until(lambda: worker.tally["succeed"] == 1, "the waiting job got the slot")
            let_others_go.set()
            await drained(app)
