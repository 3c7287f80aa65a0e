"""A process dies from SIGKILL at each crash point; its successor must lose nothing and do nothing twice.

The store's clock is moved past the dead process's leases, so no test has to wait for them.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import aio_pika
import pytest

from holdfast import Holdfast, InvalidInput, Job, JobState
from holdfast.domain.crash_points import POINTS, crashes_of
from holdfast.store.contract import ClaimRequest, JobFilter, KindClaim
from tests.databases import connected
from tests.faults import crashing
from tests.postgres.past import add_days, days_with_partitions, id_of, is_sound
from tests.rabbitmq.conftest import channel_to
from tests.runtime.processes import Command, Commands
from tests.worker.harness import Database, drained, until, working

pytestmark = pytest.mark.fault

LEASE = timedelta(seconds=6)
_ROOT = Path(__file__).parents[2]
_SETTINGS = {"lease": "6s", "renew": "100ms", "poll": "50ms", "idle_backoff_min": "10ms", "concurrency": "8"}

WORKING = (
    "declare.before", "declare.after", "rescue.before",
    "claim.answered", "claim.held",
    "handler.before", "handler.after",
    "finish_in.before", "finish_in.after",
    "finish.before", "finish.between", "finish.after", "finish.reported",
)  # fmt: skip
RENEWING = ("renew.before", "renew.after")
RESCUING = ("rescue.after",)
STOPPING = ("shutdown.release", "shutdown.outcomes")
ENQUEUING = {"enqueue.before": 0, "enqueue.after": 1}
COPYING = {"enqueue.before": 0, "copy.before_commit": 0, "enqueue.after": crashing.COPIED}
PUBLISHING = {"publish.before": 0, "publish.after": 1}
OCCURRENCES = ("occurrence.before", "occurrence.after")
INLINE = {"inline.before": 1, "inline.after": 2, "inline.before_commit": 2, "inline.marked": 1}
RELAYING = {"relay.before": 1, "relay.after": 2}
DROPPING = ("drop.before", "drop.before_commit", "drop.after")
ESSENTIAL = {
    "claim.held", "finish.before", "finish.after", "renew.after", "shutdown.outcomes",
    "enqueue.after", "copy.before_commit", "publish.after",
    "occurrence.after", "inline.before_commit", "relay.after", "drop.before_commit",
}  # fmt: skip
"""The points at which a death leaves the most work to others. The other points are tested in the long tests."""


def tiered(points: Sequence[str] | Mapping[str, int]) -> list[object]:
    """The points with their expected outcomes; the less important ones are marked as long tests."""
    values = points.items() if isinstance(points, Mapping) else [(point,) for point in points]
    return [pytest.param(*value, marks=[] if value[0] in ESSENTIAL else pytest.mark.long) for value in values]


@pytest.fixture(autouse=True)
def here(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give code in the test itself the same folder and database as its processes."""
    monkeypatch.setenv("HOLDFAST_TEST_FOLDER", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_TEST_URL", database.url)


def started_to_die(commands: Commands, command: str, point: str, app: str = "app", **settings: str) -> Command:
    return commands.start(command, "--app", f"tests.faults.crashing:{app}", **(_SETTINGS | settings), crash_at=point)


def killed(commands: Commands, command: str, point: str, app: str = "app", **settings: str) -> None:
    """Run the command until it dies at the point."""
    started = started_to_die(commands, command, point, app, **settings)
    assert started.exit_code() == -signal.SIGKILL, started.log


def killed_producer(database: Database, what: str, point: str) -> None:
    environment = os.environ | {"HOLDFAST_STORE": database.url, "HOLDFAST_CRASH_AT": point}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.crashing", what], cwd=_ROOT, env=environment, timeout=30
    )
    assert ended.returncode == -signal.SIGKILL


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[Holdfast]:
    async with crashing.build(database.url) as app:
        yield app


async def all_jobs(app: Holdfast) -> list[Job]:
    return await app.jobs.list(JobFilter(), 1000)


async def finished_by_another(app: Holdfast) -> list[Job]:
    """All jobs, after every lease has expired and a fresh worker has finished them."""
    await app.clock.advance(2 * LEASE)
    async with working(app):
        await drained(app)
    return await all_jobs(app)


def nothing_is_lost_or_stale(database: Database, enqueued: set[UUID], jobs: list[Job]) -> None:
    starts = crashing.starts()
    assert {job.id for job in jobs} == enqueued
    assert {start.job for start in starts} <= enqueued
    for job in jobs:
        fences = [start.fence for start in starts if start.job == job.id]
        assert job.state is JobState.SUCCEEDED
        assert job.fence == max(fences), "the newest attempt is the one that finished it"
        assert len(fences) == len(set(fences)) <= job.attempt <= 2
        # Only a shutdown that reached its last write could record why an attempt was interrupted.
        assert job.losses == job.attempt - 1
        if job.kind == "transactional":
            assert database.query("SELECT fence FROM effect WHERE job = %s", job.id) == [(job.fence,)]


def test_every_point_is_tested() -> None:
    tested = {*WORKING, *RENEWING, *RESCUING, *STOPPING, *ENQUEUING, *COPYING, *PUBLISHING, *OCCURRENCES, *INLINE}
    assert tested | {*RELAYING, *DROPPING} == set(POINTS)


@pytest.mark.parametrize("point", tiered(WORKING))
async def test_a_worker_that_dies_leaves_its_jobs_to_another(
    database: Database, commands: Commands, point: str
) -> None:
    async with opened(database) as app:
        new = [app.job(kind, {}) for kind in ("plain", "answering", "transactional") for _ in range(2)]
        await app.enqueue_many(new)
        killed(commands, "worker", point)
        jobs = await finished_by_another(app)
    nothing_is_lost_or_stale(database, {job.id for job in new}, jobs)


async def test_the_nth_time_is_counted(database: Database, commands: Commands) -> None:
    async with opened(database) as app:
        new = [app.job("plain", {}) for _ in range(5)]
        await app.enqueue_many(new)
        killed(commands, "worker", "handler.before:4", concurrency="1")
        assert len(crashing.starts()) == 3
        jobs = await finished_by_another(app)
    nothing_is_lost_or_stale(database, {job.id for job in new}, jobs)


@pytest.mark.parametrize("point", tiered(RENEWING))
async def test_a_worker_that_dies_while_renewing_leaves_its_job_to_another(
    database: Database, commands: Commands, point: str
) -> None:
    async with opened(database) as app:
        enqueued = await app.enqueue("slow", {})
        killed(commands, "worker", point)
        crashing.open_gate()
        jobs = await finished_by_another(app)
    nothing_is_lost_or_stale(database, {enqueued.id}, jobs)
    assert len(crashing.starts()) == 2


async def test_a_worker_that_dies_after_it_rescued_jobs_leaves_them_to_another(
    database: Database, commands: Commands
) -> None:
    async with opened(database) as app:
        enqueued = await app.enqueue("plain", {})
        vanished = ClaimRequest(uuid4(), 1, ("default",), {"plain": KindClaim(LEASE, 1)})
        (leased,) = await app.opened.store.claim(vanished)
        await app.clock.advance(2 * LEASE)
        killed(commands, "worker", "rescue.after")
        jobs = await finished_by_another(app)
    nothing_is_lost_or_stale(database, {enqueued.id}, jobs)
    assert jobs[0].fence is not None
    assert jobs[0].fence > leased.lease.fence


@pytest.mark.parametrize("point", tiered(STOPPING))
async def test_a_worker_that_dies_while_it_stops_leaves_its_jobs_to_another(
    database: Database, commands: Commands, point: str
) -> None:
    async with opened(database) as app:
        new = [app.job("slow", {}) for _ in range(3)]
        await app.enqueue_many(new)
        worker = started_to_die(commands, "worker", point, concurrency="2", shutdown="100ms")
        await until(lambda: len(crashing.starts()) == 2, "two of the jobs run")
        worker.send(signal.SIGTERM)
        assert worker.exit_code() == -signal.SIGKILL, worker.log
        crashing.open_gate()
        jobs = await finished_by_another(app)
    nothing_is_lost_or_stale(database, {job.id for job in new}, jobs)


@pytest.mark.parametrize(("point", "count"), tiered(ENQUEUING))
async def test_a_producer_that_dies_and_enqueues_again_makes_one_job(
    database: Database, point: str, count: int
) -> None:
    killed_producer(database, "enqueue", point)
    async with opened(database) as app:
        before = await all_jobs(app)
        assert len(before) == count
        again = await app.enqueue("plain", {}, key="once")
        assert again.is_new is not bool(count)
        jobs = await finished_by_another(app)
    nothing_is_lost_or_stale(database, {again.id}, jobs)


@pytest.mark.parametrize(("point", "count"), tiered(COPYING))
async def test_a_producer_that_dies_during_a_copy_leaves_all_jobs_or_none(
    database: Database, point: str, count: int
) -> None:
    killed_producer(database, "copy", point)
    async with opened(database) as app:
        assert (await app.jobs.count())[JobState.READY] == count
        jobs = await finished_by_another(app)
    assert len(jobs) == count
    nothing_is_lost_or_stale(database, {job.id for job in jobs}, jobs)


@pytest.mark.parametrize(("point", "count"), tiered(PUBLISHING))
async def test_a_publisher_that_dies_and_publishes_again_makes_one_event(
    database: Database, point: str, count: int
) -> None:
    async with opened(database) as app:
        await app.declare()
        killed_producer(database, "publish", point)
        assert len(await all_jobs(app)) == count
        (again,) = (await app.publish("order.made", {}, key="once")).jobs
        jobs = await finished_by_another(app)
    nothing_is_lost_or_stale(database, {again.id}, jobs)


@pytest.mark.parametrize("point", tiered(OCCURRENCES))
async def test_an_occurrence_makes_one_job_even_if_a_tick_dies(
    database: Database, commands: Commands, point: str
) -> None:
    async with crashing.build_scheduled(database.url) as app:
        await app.declare()
        await app.clock.advance(timedelta(minutes=61))
        killed(commands, "tick", point, "scheduled")
        assert (await app.tick()).is_fine
        jobs = await all_jobs(app)
    assert len(jobs) == 1
    nothing_is_lost_or_stale(database, {jobs[0].id}, jobs)


@pytest.mark.parametrize(("point", "calls"), tiered(INLINE))
async def test_an_inline_occurrence_is_done_once_even_if_a_tick_dies(
    database: Database, commands: Commands, point: str, calls: int
) -> None:
    async with crashing.build_scheduled(database.url) as app:
        await app.declare()
        await app.clock.advance(timedelta(minutes=61))
        killed(commands, "tick", point, "scheduled")

        async def is_done() -> bool:
            await app.tick()
            return any(run.error is None and run.finished_at for run in await app.runs.list("inline", 10))

        await until(is_done, "the occurrence is done")
        await app.tick()
        runs = await app.runs.list("inline", 10)
    called = crashing.lines("inline")
    assert (len(called), len(set(called))) == (calls, 1)
    assert Counter(run.error is None for run in runs)[True] == 1


@pytest.mark.parametrize(("point", "messages"), tiered(RELAYING))
async def test_a_relay_that_dies_leaves_its_event_to_another(
    database: Database,
    commands: Commands,
    url: str,
    exchange: str,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    messages: int,
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_EXCHANGE", exchange)
    monkeypatch.setenv("HOLDFAST_TEST_BROKER", url)
    async with crashing.build_relaying(database.url) as app, channel_to(url) as channel:
        where = await channel.declare_exchange(exchange, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(where, "#")
        await app.declare()
        await app.publish("order.made", {})
        killed(commands, "worker", point, "relaying", test_exchange=exchange, test_broker=url)
        (job,) = await finished_by_another(app)
        got = [await queue.get(no_ack=True, timeout=10) for _ in range(messages)]
        assert await queue.get(no_ack=True, fail=False) is None
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 2)
    assert len({message.message_id for message in got if message is not None}) == 1


@pytest.mark.parametrize("point", tiered(DROPPING))
async def test_maintenance_that_dies_at_a_drop_removes_nothing_else(
    database: Database, commands: Commands, point: str
) -> None:
    async with opened(database) as app, connected(database.url) as connection:
        await add_days(connection, 3)
        past = [app.job("plain", {}, id=id_of(days)) for days in (1, 2, 2, 3)]
        waiting = app.job("plain", {}, id=id_of(2), delay="300d")
        await app.enqueue_many([*past, waiting])
        assert (await app.tick(runners=["queue"])).is_fine
        await app.clock.advance(timedelta(days=30))
        killed(commands, "tick", point, runners="maintenance")
        await is_sound(connection)
        assert (await app.tick(runners=["maintenance"])).is_fine
        await is_sound(connection)
        jobs = await all_jobs(app)
        now = (await app.clock.now()).date()
        assert all(day >= now - timedelta(days=8) for day in await days_with_partitions(connection))
    assert [(job.id, job.state) for job in jobs] == [(waiting.id, JobState.READY)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("finish.snet", "'finish.snet' is not a crash point"),
        ("finish.after:0", "'0' is not a number of times"),
        ("finish.after:x", "'x' is not a number of times"),
        ("finish.after:", "'' is not a number of times"),
    ],
)
def test_a_misspelled_point_is_refused(given: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        crashes_of(given)


def test_a_misspelled_point_is_refused_at_start_in_one_line(commands: Commands) -> None:
    started = commands.start("worker", "--app", "tests.faults.crashing:app", crash_at="finish.snet")
    assert started.exit_code() == 2
    assert "HOLDFAST_CRASH_AT: 'finish.snet' is not a crash point" in started.log
    assert len(started.log.splitlines()) == 1


def test_several_points_are_separated_by_commas() -> None:
    assert crashes_of("finish.after, claim.held:3,") == {"finish.after": 1, "claim.held": 3}
