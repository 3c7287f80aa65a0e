"""How an inline run ends early, and which replica runs its occurrence then: budgets, stops, lost locks, kills."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.domain.budget import Budget
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.runner import RunnerReport
from holdfast.domain.signals import Signals
from holdfast.scheduling import inline_call
from holdfast.scheduling.inline import InlineRunner
from holdfast.scheduling.schedules import Occurrence
from holdfast.store.opening import opened
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.schedules import NewRun
from tests.databases import StoreCase, connected
from tests.scheduling.inline_steps import Gated, at_its_first_occurrence, closing, quick
from tests.scheduling.schedule_steps import (
    MINUTE,
    START,
    Replica,
    error_code,
    once,
    replica,
    replicas,
    runs_of,
    shown,
)
from tests.worker.harness import Database, until

_ROOT = Path(__file__).parents[2]
_HOLDERS = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_WAITS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
async def case(store_case: StoreCase) -> StoreCase:
    await store_case.clock.freeze(START)
    return store_case


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_call, "GRACE_SECONDS", 0.1)


async def spent_at_work(runner: InlineRunner, gated: Gated) -> RunnerReport:
    """Run a pass whose time is over once the function has begun, however long that took."""
    await runner.run(Budget(), to_end=False)
    await until(lambda: gated.occurrences, "the function has begun")
    return await once(runner, Budget(0))


async def test_a_process_in_a_hurry_does_not_wait_for_an_inline_runner(case: StoreCase) -> None:
    gated, signals = Gated(), Signals()
    runner = replica(case).inline(gated.run, signals=signals)
    await at_its_first_occurrence(case, runner)
    await runner.run(Budget(), to_end=False)
    await until(lambda: gated.occurrences, "the function has begun")
    ending = asyncio.create_task(runner.close(3600.0))
    signals.hurry.set()
    report = await ending
    assert report is not None
    assert (report.error or "").startswith("INTERRUPTED")
    assert gated.canceled == 1


async def test_a_run_whose_budget_is_spent_is_interrupted_and_its_occurrence_not_marked(case: StoreCase) -> None:
    gated = Gated()
    runner = replica(case).inline(gated.run)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        report = await spent_at_work(runner, gated)
        assert gated.canceled == 1
        assert (report.processed, report.failed) == (1, 1)
        assert report.error is not None
        assert report.error.startswith("INTERRUPTED")
        assert [error_code(run) for run in await runs_of(case)] == ["INTERRUPTED"]
        assert (await shown(case, "cycle")).next_occurrence == START + MINUTE
        gated.gate.set()
        assert (await once(runner)).processed == 1
    assert [occurrence.at for occurrence in gated.occurrences] == [START + MINUTE] * 2


async def test_a_thread_that_outlives_its_budget_keeps_the_lock(case: StoreCase, short_grace: None) -> None:
    gated = Gated()
    async with replicas(case, 2) as (one, two):
        first, second = one.inline(gated.run_blocking), two.inline(quick)
        async with closing(first, second):
            await at_its_first_occurrence(case, first)
            report = await spent_at_work(first, gated)
            assert report.error is not None
            assert report.error.startswith("INTERRUPTED")
            assert (await once(second)).skipped == "another replica is running it"
            assert (await once(first)).skipped == "still running from its last occurrence"
            gated.thread_gate.set()

            async def runs() -> bool:
                return bool((await once(second)).processed)

            await until(runs, "the other replica runs the occurrence")
    assert [error_code(run) for run in await runs_of(case)] == ["INTERRUPTED", None]


async def test_close_waits_for_the_current_run(case: StoreCase) -> None:
    gated = Gated()
    runner = replica(case).inline(gated.run)
    await at_its_first_occurrence(case, runner)
    await runner.run(Budget(), to_end=False)
    await gated.started.wait()
    runner.stop()
    assert (await runner.run(Budget(), to_end=False)).processed == 0
    closed = asyncio.create_task(runner.close(60))
    await asyncio.sleep(0)
    gated.gate.set()
    report = await closed
    assert report is not None
    assert (report.processed, report.error) == (1, None)
    assert (await shown(case, "cycle")).next_occurrence == START + 2 * MINUTE
    assert (await once(runner)).processed == 0


async def test_close_interrupts_a_run_that_does_not_end_in_time(case: StoreCase, short_grace: None) -> None:
    """A coroutine can be stopped; a thread cannot."""
    gated = Gated()
    runners = [replica(case).inline(gated.run), replica(case).inline(gated.run_blocking, name="thread")]
    await at_its_first_occurrence(case, *runners)
    for runner in runners:
        await runner.run(Budget(), to_end=False)
    await until(lambda: len(gated.occurrences) == 2, "both have started")
    for runner in runners:
        report = await runner.close(0.05)
        assert report is not None
        assert (report.failed, report.error and report.error.partition(":")[0]) == (1, "INTERRUPTED")
        assert [error_code(run) for run in await runs_of(case, runner.name)] == ["INTERRUPTED"]
        assert (await shown(case, runner.name)).next_occurrence == START + MINUTE
        async with case.schedules.singleton(f"lock of {runner.name}") as held:
            assert held is not None
    gated.thread_gate.set()


async def test_a_stop_ends_the_waiting_of_a_tick_but_not_the_run(case: StoreCase) -> None:
    gated = Gated()
    runner = replica(case).inline(gated.run)
    await at_its_first_occurrence(case, runner)
    tick = asyncio.create_task(once(runner))
    await gated.started.wait()
    runner.stop()
    assert (await tick).processed == 0
    gated.gate.set()
    report = await runner.close(60)
    assert report is not None
    assert report.processed == 1


async def test_an_unfinished_run_is_abandoned_by_the_next_one(case: StoreCase) -> None:
    runner = replica(case).inline(quick)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        await case.runs.start(NewRun("cycle", "gone", START + MINUTE))
        await case.runs.start(NewRun("other", "alive"))
        await once(runner)
    first, second = await runs_of(case)
    assert (first.replica, error_code(first)) == ("gone", "REPLICA_LOST")
    assert (second.replica, error_code(second)) == ("replica-1", None)
    (other,) = await runs_of(case, "other")
    assert other.finished_at is None


async def test_a_lost_lock_stops_the_run_and_another_replica_gets_the_occurrence(case: StoreCase) -> None:
    if not isinstance(case.store, PostgresStore):
        pytest.skip("a lock in memory cannot be lost")
    gated = Gated()
    async with replicas(case, 2) as (one, two), connected(case.store.url) as admin:
        first, second = one.inline(gated.run), two.inline(quick)
        async with closing(first, second):
            await at_its_first_occurrence(case, first)
            tick = asyncio.create_task(once(first))
            await gated.started.wait()
            await admin.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM ({_HOLDERS}) AS holder")
            report = await tick
            assert gated.canceled == 1
            assert report.error is not None
            assert report.error.startswith("LOCK_LOST")
            assert (await shown(case, "cycle")).next_occurrence == START + MINUTE
            assert (await once(second)).counts == {"occurrence": str(START + MINUTE)}
    assert [error_code(run) for run in await runs_of(case)] == ["LOCK_LOST", None]


async def test_a_lock_found_lost_at_the_end_does_not_mark_the_occurrence(case: StoreCase) -> None:
    if not isinstance(case.store, PostgresStore):
        pytest.skip("a lock in memory cannot be lost")
    dsn = Address.parse(case.store.url).dsn

    async def loses_its_lock(occurrence: Occurrence) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM ({_HOLDERS}) AS holder".encode())

    runner = replica(case).inline(loses_its_lock)
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        report = await once(runner)
        assert report.error is not None
        assert report.error.startswith("LOCK_LOST")
    assert [error_code(run) for run in await runs_of(case)] == ["LOCK_LOST"]
    assert (await shown(case, "cycle")).next_occurrence == START + MINUTE


async def test_an_outage_of_the_store_is_the_runners_error(case: StoreCase) -> None:
    class Broken:
        def __getattr__(self, name: str) -> object:
            return getattr(case.runs, name)

        async def start(self, run: object) -> int:
            raise StoreUnavailable("gone")

    runner = Replica("replica-1", case.schedules, Broken()).inline(quick)  # type: ignore[arg-type]
    async with closing(runner):
        await at_its_first_occurrence(case, runner)
        with pytest.raises(StoreUnavailable):
            await once(runner)
        await runner.run(Budget(), to_end=False)
        await until(lambda: runner.due_in() == 0, "the failure is to be told")
        with pytest.raises(StoreUnavailable):
            await runner.run(Budget(), to_end=False)
    async with case.schedules.singleton("lock of cycle") as held:
        assert held is not None


async def test_a_canceled_query_causes_no_error_in_the_event_loop(database: Database) -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what["message"]))
    async with (
        opened(database.url) as store,
        connected(database.url) as looking,
        connected(database.url) as other,
        other.transaction(),
        store.schedules.singleton("lock of cycle") as held,
    ):
        assert held is not None
        await other.execute("LOCK TABLE holdfast.schedule")
        asking = asyncio.ensure_future(held.due("cycle"))

        async def waits() -> bool:
            return await looking.fetchval(_WAITS) is not None

        await until(waits, "the question waits for the table")
        asking.cancel()
        await asyncio.wait([asking])
    del asking
    gc.collect()
    assert complaints == []


@pytest.fixture
def replica_processes(tmp_path: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


async def test_a_killed_replica_leaves_its_occurrence_to_another(
    database: Database, tmp_path: Path, replica_processes: list["subprocess.Popen[bytes]"]
) -> None:
    def start(name: str) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "tests.scheduling.inline_replica", database.url, name, str(tmp_path)]
        process = subprocess.Popen(command, cwd=_ROOT, env=os.environ | {"PYTHONPATH": path})
        replica_processes.append(process)
        return process

    def journal() -> list[str]:
        path = tmp_path / "journal"
        return path.read_text().splitlines() if path.exists() else []

    async with opened(database.url) as store:
        await store.clock.freeze(START)
        await once(Replica("first look", store.schedules, store.runs).inline(quick))
        await store.clock.advance(MINUTE)
        first = start("first")
        await until(journal, "the first replica runs the occurrence")
        waiting = start("waiting")
        assert await asyncio.to_thread(waiting.wait, 60) == 0
        assert len(journal()) == 1
        first.send_signal(signal.SIGKILL)
        await asyncio.to_thread(first.wait, 60)

        # The kernel closes the connection of a killed client, and the server needs a moment to notice.
        async def is_free() -> bool:
            async with store.schedules.singleton("lock of cycle") as held:
                return held is not None

        await until(is_free, "the lock is free")
        second = start("second")
        await until(lambda: len(journal()) == 2, "the second replica runs the occurrence")
        (tmp_path / "gate").touch()
        assert await asyncio.to_thread(second.wait, 60) == 0
        newest, killed = await store.runs.list("cycle", 10)
        schedule = (await store.schedules.list())[0]
    occurrences = [line.split(" ", 1)[1].rpartition(" ")[0] for line in journal()]
    assert occurrences == [str(START + MINUTE)] * 2
    assert (killed.replica, killed.occurrence, error_code(killed)) == ("first", START + MINUTE, "REPLICA_LOST")
    assert (newest.replica, newest.occurrence, newest.error) == ("second", START + MINUTE, None)
    assert newest.result == '{"by":"second"}'
    assert (schedule.last_occurrence, schedule.next_occurrence) == (START + MINUTE, START + 2 * MINUTE)
