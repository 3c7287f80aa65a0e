"""SIGTERM and SIGINT under load and at awkward moments: nothing is lost or wasted, and the process ends in time."""

import json
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import Holdfast
from holdfast.store.contract import ClaimRequest, KindClaim
from holdfast_lab.faults.proxy import Proxy
from tests.databases import connected
from tests.runtime.processes import Command, Commands
from tests.worker.harness import Database, drained, eventually, until

APP = "tests.runtime.apps.stopping"
CONCURRENCY = 6
LONG = 3
"""Long jobs hold half of the slots, so there are always some to interrupt, and free slots for the short jobs."""
ROUNDS = [*[signal.SIGTERM] * 3, signal.SIGINT]
AT_HAND = 3_000
"""Jobs at the start of a round: more than a fast machine finishes before the process is stopped."""
BOUND = 20.0
"""Seconds within which a process that waits 200 ms for its handlers must end on a busy machine."""
CUT_OFF_BOUND = 40.0
"""Without answers it takes longer, because each last write has a time limit, but far less than a statement may take."""


def start(commands: Commands, command: str = "worker", *options: str, **settings: str) -> Command:
    given = {"concurrency": str(CONCURRENCY), "poll": "50ms", "shutdown": "200ms", "idle_backoff_min": "10ms"}
    return commands.start(command, "--app", APP, "--log-level", "info", *options, **(given | settings))


def count(database: Database, what: str) -> int:
    ((number,),) = database.query(f"SELECT count(*) FROM {what}")
    assert isinstance(number, int)
    return number


async def enqueue(app: Holdfast, *, short: int = 0, long: int = 0) -> None:
    # An interrupted job is due again behind all the others, unless it has a higher priority.
    first = [app.job("long", {}, priority=0) for _ in range(long)]
    await app.enqueue_many([*first, *(app.job("short", {}) for _ in range(short))])


async def under_load(database: Database, command: Command) -> None:
    """Wait until the command runs long jobs, has gone through short ones, and its inline runner works."""
    async with connected(database.url) as connection:
        last: int = await connection.fetchval("SELECT coalesce(max(number), 0) FROM effect")

        async def is_busy() -> bool:
            rows = await connection.fetch("SELECT note, count(*) FROM effect WHERE number > $1 GROUP BY note", last)
            since = Counter({row["note"]: row["count"] for row in rows})
            return since["started"] >= LONG and since["done"] >= 60 and since["cycle started"] >= 1

        async def is_busy_or_gone() -> bool:
            return await is_busy() or not command.is_running

        await until(is_busy_or_gone, "it is under load")
    assert command.is_running, command.log


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_process_stopped_under_load_releases_the_jobs_it_has_not_started(
    database: Database, commands: Commands, tmp_path: Path
) -> None:
    waiting = enqueued = 0
    async with Holdfast(database.url) as app:
        await enqueue(app, long=LONG)
        for number in ROUNDS:
            missing = AT_HAND - count(database, "holdfast.ready")
            await enqueue(app, short=missing)
            enqueued += missing
            errors = count(database, "holdfast.attempt_error")
            command = start(commands)
            await under_load(database, command)
            command.send(number)
            assert command.exit_code(BOUND) == 0, command.log
            check_given_back(database)
            # Only running jobs can have been interrupted, and each of them only once.
            assert count(database, "holdfast.attempt_error") - errors <= CONCURRENCY, command.log
            await check_claimable(app)
            waiting += waiting_at_the_end(command)
        assert waiting > 0
        (tmp_path / "gate").touch()
        command = start(commands, concurrency="32")
        await drained(app)
        command.send(signal.SIGTERM)
        assert command.exit_code(BOUND) == 0
    assert count(database, "holdfast.finished WHERE state = 'succeeded'") == enqueued + LONG
    check_effects(database)


def check_given_back(database: Database) -> None:
    """No worker runs now: jobs that had not started are as if they had never been claimed."""
    assert count(database, "holdfast.lease") == 0
    assert count(database, "holdfast.dead_letter") == 0
    assert count(database, "holdfast.ready WHERE attempt > 0 OR losses > 0") == 0
    assert count(database, "holdfast.ready WHERE attempt = 0 AND run_at > holdfast.now()") == 0
    assert count(database, "holdfast.attempt_error WHERE error->>'code' <> 'INTERRUPTED'") == 0
    unended = "finished_at IS NULL OR error IS NOT NULL AND error->>'code' <> 'INTERRUPTED'"
    assert count(database, f"holdfast.run WHERE {unended}") == 0


async def check_claimable(app: Holdfast) -> None:
    store = app.opened.store
    kinds = {"short": KindClaim(timedelta(seconds=30), 20)}
    jobs = await store.claim(ClaimRequest(uuid4(), 20, ("default",), kinds))
    assert len(jobs) == 20
    assert {job.attempt - job.losses for job in jobs} == {1}
    await store.release([job.lease for job in jobs])


def waiting_at_the_end(command: Command) -> int:
    """How many jobs it had claimed ahead when it received the signal."""
    (line,) = [line for line in command.log.splitlines() if "worker is stopping" in line]
    return int(line.partition("waiting=")[2].split()[0])


def check_effects(database: Database) -> None:
    """A job that was never interrupted has run exactly once."""
    done = Counter(job for (job,) in database.query("SELECT job FROM effect WHERE note = 'done'"))
    interrupted = {job for (job,) in database.query("SELECT job_id FROM holdfast.attempt_error")}
    jobs = {job for (job,) in database.query("SELECT id FROM holdfast.job")}
    assert {done[job] for job in jobs - interrupted} == {1}
    assert all(done[job] for job in jobs)


async def test_a_stopped_tick_releases_the_jobs_it_has_not_started(database: Database, commands: Commands) -> None:
    async with Holdfast(database.url) as app:
        await enqueue(app, short=AT_HAND, long=LONG)
        command = start(commands, "tick", "--json", "--runners", "queue,cycle")
        await until(lambda: count(database, "effect WHERE note = 'done'") >= 60, "it is under load")
        command.send(signal.SIGTERM)
        assert command.exit_code(BOUND) == 0, command.log
        check_given_back(database)
        await check_claimable(app)
    queue, cycle = json.loads(command.out)["runners"]
    succeeded = count(database, "holdfast.finished")
    assert 60 <= succeeded < AT_HAND
    assert queue["counts"]["succeed"] == succeeded
    assert queue["counts"]["interrupt"] == count(database, "holdfast.attempt_error")
    # Interrupted jobs will run again, so they do not count as processed.
    assert queue["processed"] == succeeded
    assert cycle["skipped"] is not None


@pytest.mark.parametrize("command", ["worker", "tick"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_interrupts_handlers_without_losing_a_lease(
    database: Database, commands: Commands, command: str, number: signal.Signals
) -> None:
    async with Holdfast(database.url) as app:
        await enqueue(app, long=1)
        running = start(commands, command, shutdown="1h")
        await until(lambda: count(database, "effect WHERE note = 'started'") == 1, "the job runs")
        running.send(number)
        running.has_logged("worker is stopping")

        def is_hurried() -> bool:
            # Within a second of the last one, a signal does not count.
            running.send(number)
            return "running handlers are interrupted" in running.log

        eventually(is_hurried, "the second signal counts")
        running.exit_code()
    assert count(database, "holdfast.lease") == 0
    assert count(database, "holdfast.ready") == 1


@pytest.mark.fault
@pytest.mark.parametrize("fault", ["refuse", "swallow"])
async def test_a_process_cut_off_from_its_store_still_ends(
    database: Database, commands: Commands, proxy: Proxy, fault: str
) -> None:
    async with Holdfast(database.url) as app:
        await enqueue(app, short=AT_HAND, long=2 * LONG)
        worker, tick = (start(commands, command, store=proxy.url) for command in ("worker", "tick"))
        await until(lambda: count(database, "effect WHERE note = 'done'") >= 60, "they are under load")
        getattr(proxy, fault)()
        for each in (worker, tick):
            each.send(signal.SIGTERM)
        assert worker.exit_code(CUT_OFF_BOUND) == 0, worker.log
        # The tick has outcomes that it could not write, so it reports failure.
        assert tick.exit_code(CUT_OFF_BOUND) == 1, tick.log
        proxy.flow()
        assert count(database, "holdfast.job") == AT_HAND + 2 * LONG


def test_a_signal_while_the_app_opens_ends_it(commands: Commands, proxy: Proxy) -> None:
    proxy.swallow()
    running = start(commands, "worker", store=proxy.url)
    eventually(lambda: proxy.connections, "it connects to its store")
    running.send(signal.SIGTERM)
    assert running.exit_code() == 0, running.log
    assert "PostgreSQL is not available" not in running.log


def test_a_signal_while_the_app_is_imported_ends_it(commands: Commands, tmp_path: Path) -> None:
    running = commands.start("worker", "--app", "tests.runtime.apps.slow_to_import")
    eventually((tmp_path / "importing").exists, "the app is being imported")
    running.send(signal.SIGTERM)
    assert running.exit_code() == 0, running.log
