"""Each check of `holdfast doctor` that reads tables, triggered on a real PostgreSQL. test_server_checks.py has the
checks of the server.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.doctor import doctor
from holdfast.doctor.doctor import examine
from holdfast.doctor.findings import Finding, Level, Limits
from holdfast.domain.errors import StoreUnavailable
from holdfast.domain.job import JobState
from holdfast.domain.json_text import encode
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import translated
from holdfast.store.postgres.examine import Examiner
from holdfast.store.postgres.kinds import PostgresKinds
from holdfast.store.postgres.runs import PostgresRuns
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.schedules import NewRun
from holdfast_lab.faults.later_release import later_schema_files
from tests.databases import Database, connected, opened_store
from tests.doctor.examined import NOW, execute, found, only, opened_case
from tests.postgres.past import add_days, day_of, days_with_partitions
from tests.store_contract.schedule_steps import new_schedule
from tests.store_contract.steps import HOLDER, OTHER_HOLDER, in_state, job, wants
from tests.worker.harness import until

TWICE = """
INSERT INTO holdfast.finished (id, finished_at, attempt, losses, state)
SELECT id, run_at, 1, 0, 'succeeded' FROM holdfast.ready
"""


async def test_a_healthy_store_passes_every_check(durable_database: Database) -> None:
    async with opened_case(durable_database) as case:
        for state in (JobState.READY, JobState.RUNNING, JobState.SUCCEEDED, JobState.CANCELED):
            await in_state(case, state, kind=state.value)
    findings = await examine(durable_database.url, deep=True)
    assert [finding for finding in findings if finding.level is not Level.OK] == []
    assert {finding.check for finding in findings} >= {*doctor._OF_THE_SERVER, "schema", "clock", "leases", "places"}


async def test_an_unreachable_store_is_an_error_and_not_a_finding() -> None:
    with pytest.raises(StoreUnavailable):
        await examine("postgresql://127.0.0.1:1/nowhere")


async def test_a_missing_schema_names_the_remedy_and_skips_the_other_checks(empty_database: Database) -> None:
    findings = await examine(empty_database.url)
    assert findings[-1].check == "schema"
    assert findings[-1].level is Level.PROBLEM
    assert findings[-1].line == '"holdfast" is missing'
    assert "holdfast migrate" in (findings[-1].next_step or "")


@pytest.mark.parametrize(
    ("change", "words", "step"),
    [
        ("ALTER FUNCTION holdfast.renew SET work_mem = '1GB'", "differ from this release: renew", "holdfast migrate"),
        ("INSERT INTO holdfast.migration VALUES (9999, 'later')", "newer than this release knows", "upgrade Holdfast"),
    ],
)
async def test_a_schema_of_another_release_is_a_problem(database: Database, change: str, words: str, step: str) -> None:
    await execute(database, change)
    finding = await only(database, "schema")
    assert finding.level is Level.PROBLEM
    assert words in finding.line
    assert step in (finding.next_step or "")


async def test_an_older_schema_is_a_problem(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "schema_files", later_schema_files)
    finding = await only(database, "schema")
    assert finding.level is Level.PROBLEM
    assert f"this release needs {later_schema_files().version}" in finding.line
    assert "holdfast migrate" in (finding.next_step or "")


async def test_a_schema_with_another_name_can_be_examined(empty_database: Database) -> None:
    await migrate(empty_database.url, "Own jobs")
    store = PostgresStore(empty_database.url, "Own jobs")
    await store.open()
    await store.enqueue([job()])
    await store.close()
    findings = await examine(empty_database.url, "Own jobs", deep=True)
    looked_at = [finding for finding in findings if finding.check in {*doctor._OF_THE_SCHEMA, "schema", "places"}]
    assert {finding.level for finding in looked_at} == {Level.OK}
    assert looked_at[-1].line == "every job is in exactly one state (1 checked)"


async def test_a_clock_that_a_test_did_not_reset_is_a_problem(database: Database) -> None:
    async with opened_case(database) as case:
        await case.clock.advance(timedelta(hours=-3))
        moved = await only(database, "clock")
        assert moved.level is Level.PROBLEM
        assert "moved 3h back" in moved.line
        await case.clock.freeze(datetime(2030, 1, 1, tzinfo=UTC))
        assert "frozen at 2030-01-01 00:00:00" in (await only(database, "clock")).line
    await execute(database, "DELETE FROM holdfast.clock")
    assert "the store has no time" in (await only(database, "clock")).line


async def test_job_versions_newer_than_the_latest_worker_are_named(database: Database) -> None:
    async with opened_store(database.url) as store:
        await PostgresKinds(store).declare({"letter.send": 1, "report.build": 3})
        headers = encode({"holdfast.version": 2})
        await store.enqueue([job(kind=kind, headers=headers) for kind in ("letter.send", "report.build", "unknown")])
        strange: list[object] = [{}, [1], "holdfast.version", {"holdfast.version": "x"}]
        await store.enqueue([job(kind="letter.send", headers=encode(value)) for value in strange])
        finding = await only(database, "versions")
        assert (finding.level, finding.line) == (
            Level.WARNING,
            "jobs need a newer worker than the last one that started: 1 letter.send of version 2, not 1",
        )
        await PostgresKinds(store).declare({"letter.send": 2})
        assert (await only(database, "versions")).level is Level.OK


async def test_leases_that_are_not_rescued_are_a_problem(database: Database) -> None:
    async with opened_case(database) as case:
        await in_state(case, JobState.RUNNING)
        await execute(database, "UPDATE holdfast.lease SET until = holdfast.now() - interval '5 seconds'")
        assert (await only(database, "leases")).level is Level.OK
        await execute(database, "UPDATE holdfast.lease SET until = holdfast.now() - interval '5 minutes'")
        finding = await only(database, "leases")
        assert finding.level is Level.PROBLEM
        assert finding.line.startswith("1 lease ran out, the oldest 5m")


async def test_jobs_that_no_worker_takes_are_a_warning_with_their_kinds(database: Database) -> None:
    async with opened_case(database) as case:
        await case.store.enqueue([job(kind=kind, queue=queue) for kind in ("a", "b") for queue in ("default", "slow")])
        await case.store.enqueue([job(kind="later", delay=timedelta(hours=1))])
        assert (await only(database, "due jobs")).level is Level.OK
        await execute(database, "UPDATE holdfast.ready SET run_at = run_at - interval '10 minutes' WHERE kind <> 'b'")
        finding = await only(database, "due jobs")
        assert finding.level is Level.WARNING
        assert finding.line.startswith("no worker runs these jobs: ")
        assert "a (due for 10m" in finding.line
        assert "a in slow (due for 10m" in finding.line
        assert "later" not in finding.line
        assert "b" not in finding.line.partition(":")[2]


async def test_a_backlog_differs_from_jobs_that_no_worker_takes(database: Database) -> None:
    async with opened_case(database) as case:
        await case.store.enqueue([job(), job()])
        await case.store.claim(wants(limit=1))
        await execute(database, "UPDATE holdfast.ready SET run_at = run_at - interval '10 minutes'")
        assert (await only(database, "due jobs")).line.startswith(
            "these jobs wait while others of their kind run: work (due for 10m"
        )


async def test_an_expired_lease_does_not_count_as_a_worker(database: Database) -> None:
    async with opened_case(database) as case:
        await case.store.enqueue([job(), job()])
        await case.store.claim(wants(limit=1))
        await execute(
            database,
            "UPDATE holdfast.ready SET run_at = run_at - interval '10 minutes'",
            "UPDATE holdfast.lease SET until = holdfast.now() - interval '1 second'",
        )
        assert (await only(database, "due jobs")).line.startswith("no worker runs these jobs: work (due for 10m")


async def test_a_long_list_of_kinds_is_shortened(database: Database) -> None:
    async with opened_case(database) as case:
        await case.store.enqueue([job(kind=f"kind{number}") for number in range(10)])
    assert (await only(database, "due jobs", Limits(due=NOW))).line.endswith(" and 7 more")


async def test_dead_letters_are_a_warning_by_kind(database: Database) -> None:
    async with opened_case(database) as case:
        for kind, state in (("a", JobState.DEAD), ("b", JobState.FAILED), ("b", JobState.DEAD)):
            await in_state(case, state, kind=kind)
        finding = await only(database, "dead letters")
        assert finding.level is Level.WARNING
        assert finding.line.startswith("3, the newest ")
        assert finding.line.endswith(": 2 b, 1 a")
        assert finding.next_step is not None
        assert "`holdfast jobs retry --all --state failed,dead`" in finding.next_step
        assert "`holdfast jobs delete --all --state failed,dead`" in finding.next_step
        assert (await only(database, "dead letters", Limits(counted=2))).line.startswith("2 or more, ")
        assert (await only(database, "dead letters", Limits(shown=1))).line.endswith(": 2 b and 1 more")


async def test_schedules_that_are_late_or_paused_are_warnings(database: Database) -> None:
    async with opened_store(database.url) as store:
        schedules = PostgresSchedules(store)
        await schedules.declare([new_schedule(name=name) for name in ("late", "paused", "fine", "running")])
        await schedules.pause("paused")
        await PostgresRuns(store).start(NewRun("running", "here"))
    await execute(database, "UPDATE holdfast.schedule SET next_occurrence = holdfast.now() + interval '1 minute'")
    assert (await only(database, "schedules")).line == "paused: paused"
    await execute(
        database,
        "UPDATE holdfast.schedule SET next_occurrence = holdfast.now() - interval '10 minutes' WHERE name <> 'fine'",
    )
    late, paused = await found(database, "schedules")
    assert (late.level, paused.level) == (Level.WARNING, Level.WARNING)
    assert late.line.startswith("late: late by 10m")
    assert "running" not in late.line
    assert paused.line == "paused: paused"
    assert len(await found(database, "schedules", Limits(run=NOW))) == 2
    assert "running" in (await found(database, "schedules", Limits(run=NOW)))[0].line


async def test_times_written_by_a_clock_that_was_ahead_are_a_warning(database: Database) -> None:
    async with opened_case(database) as case:
        now = await case.schedules.now()
        await case.schedules.declare([new_schedule(name=name, first_occurrence=now) for name in ("one", "two")])
        assert (await only(database, "schedules")).level is Level.OK
        assert (await only(database, "due jobs")).level is Level.OK
        await case.clock.advance(timedelta(days=1))
        await case.store.enqueue([job(), job()])
        await execute(
            database,
            "UPDATE holdfast.schedule SET next_occurrence = holdfast.now() + interval '9 seconds' WHERE name = 'one'",
        )
        await case.clock.advance(-timedelta(days=1))
        await case.store.enqueue([job(), job(delay=timedelta(days=2))])
    schedules, jobs = await only(database, "schedules"), await only(database, "due jobs")
    assert schedules.level is jobs.level is Level.WARNING
    assert schedules.line.startswith("ahead of their timetables: one by ")
    assert jobs.line.startswith("of the newest 1,000 jobs, 2 were enqueued while the clock was up to 23h ahead")


async def test_unfinished_runs_are_a_warning(database: Database) -> None:
    async with opened_store(database.url) as store:
        await PostgresRuns(store).start(NewRun("reminders", "replica-3"))
        assert (await only(database, "runs")).level is Level.OK
        await execute(database, "UPDATE holdfast.run SET started_at = started_at - interval '2 hours'")
        finding = await only(database, "runs")
        assert finding.level is Level.WARNING
        assert finding.line.startswith("not finished: reminders on replica-3 for 2h")
        await PostgresRuns(store).abandon("reminders", encode({"code": "LOST"}))
        assert (await only(database, "runs")).level is Level.OK


async def test_silent_listeners_are_a_warning(database: Database) -> None:
    await execute(
        database,
        "INSERT INTO holdfast.sleeper (holder, until, team, queue) "
        f"VALUES ('{HOLDER}', clock_timestamp(), '{HOLDER}', 'q')",
        "INSERT INTO holdfast.sleeper (holder, until, team, queue) "
        f"VALUES ('{OTHER_HOLDER}', clock_timestamp(), '{HOLDER}', 'q')",
    )
    assert (await only(database, "listeners")).level is Level.OK
    await execute(database, "UPDATE holdfast.sleeper SET until = until - interval '10 minutes'")
    finding = await only(database, "listeners")
    assert finding.level is Level.WARNING
    assert finding.line.startswith("2 processes stopped listening for wake-ups, the first 10m")
    assert finding.line.endswith(" ago; no other process listens")
    assert (finding.next_step or "").startswith("make sure a worker is running")
    await execute(
        database,
        "INSERT INTO holdfast.sleeper (holder, until, team, queue) "
        f"VALUES (gen_random_uuid(), clock_timestamp() + interval '1 hour', '{HOLDER}', 'q')",
    )
    finding = await only(database, "listeners")
    assert finding.level is Level.WARNING
    assert finding.line.endswith(" ago; 1 other process still listens")
    assert "make sure a worker is running" not in (finding.next_step or "")


async def test_missing_partitions_and_rows_in_default_partitions_are_warnings(database: Database) -> None:
    assert (await only(database, "partitions")).level is Level.OK
    assert len(await found(database, "partitions", Limits(partition_days=40))) == 1
    async with connected(database.url) as connection:
        today = await connection.fetchval("SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date")
        await connection.execute(f"DROP TABLE holdfast.job_{today:%Y%m%d}")
    async with opened_case(database) as case:
        await in_state(case, JobState.SUCCEEDED)
    (missing,) = await found(database, "partitions")
    assert missing.level is Level.WARNING
    assert missing.line.startswith(f"none for {today}: ")
    _, rows = await found(database, "partitions", Limits(default_rows=0))
    assert rows.level is Level.WARNING
    assert rows.line.startswith("the default one holds 1 jobs")


async def test_partitions_that_should_have_been_dropped_are_a_warning(database: Database) -> None:
    async with connected(database.url) as connection:
        await add_days(connection, 6)
        assert (await only(database, "partitions")).level is Level.OK
        overdue = await only(database, "partitions", Limits(retention=timedelta(days=2)))
        assert overdue.level is Level.WARNING
        assert overdue.line.startswith(f"3 should have been dropped by now, the oldest from {day_of(6)}")
        assert "--runners maintenance" in (overdue.next_step or "")


async def test_a_leftover_guard_is_a_warning(database: Database) -> None:
    async with connected(database.url) as connection:
        for day in await days_with_partitions(connection):
            await connection.execute(f"DROP TABLE holdfast.job_{day:%Y%m%d}, holdfast.finished_{day:%Y%m%d}")
        await connection.execute("SELECT holdfast.guard_default(8, 1)")
    assert any("has a guard" in each.line for each in await found(database, "partitions"))


async def test_many_dead_rows_are_a_warning(database: Database) -> None:
    async with opened_case(database) as case:
        await case.store.enqueue([job() for _ in range(50)])
    await execute(database, "DELETE FROM holdfast.ready")
    limits = Limits(dead_rows=20)
    await until(lambda: found(database, "dead rows", limits), "the statistics know it")
    findings = await found(database, "dead rows", limits)
    # Databases are reused, and a server may report dead rows in `lease` late, from the previous test.
    (finding,) = [each for each in findings if each.line.startswith("ready has")]
    assert finding.level is Level.WARNING
    assert finding.line.startswith("ready has 50 dead rows for 0 live ones")
    assert await found(database, "dead rows") == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DELETE FROM holdfast.ready", "jobs: 1 in no state"),
        ("DELETE FROM holdfast.job", "jobs: 1 without their payload"),
        (TWICE, "jobs: 1 in two states at once"),
    ],
)
async def test_a_job_that_is_not_in_exactly_one_place_is_a_problem(database: Database, change: str, words: str) -> None:
    new = job()
    async with opened_case(database) as case:
        await case.store.enqueue([new])
    assert (await only(database, "places")).level is Level.OK
    await execute(database, change)
    for deep in (False, True):
        finding = await only(database, "places", deep=deep)
        assert finding.level is Level.PROBLEM
        assert words in finding.line
        assert str(new.id) in finding.line


async def test_a_dead_letter_needs_no_other_row(database: Database) -> None:
    async with opened_case(database) as case:
        await in_state(case, JobState.DEAD)
    await execute(database, "DELETE FROM holdfast.job")
    assert (await only(database, "places", deep=True)).level is Level.OK


async def test_only_a_deep_look_sees_every_job(database: Database) -> None:
    oldest, newest = job(), job()
    async with opened_case(database) as case:
        await case.store.enqueue([oldest, newest])
    await execute(database, f"DELETE FROM holdfast.ready WHERE id = '{oldest.id}'")
    sample = await only(database, "places", Limits(sample=1))
    assert sample.level is Level.OK
    assert "the newest 1 checked; --deep checks all" in sample.line
    assert (await only(database, "places", Limits(sample=1), deep=True)).level is Level.PROBLEM


async def test_a_failing_check_does_not_stop_the_others(database: Database) -> None:
    await execute(database, "ALTER TABLE holdfast.dead_letter RENAME TO elsewhere")
    findings = {finding.check: finding for finding in await examine(database.url)}
    assert findings["dead letters"].level is Level.UNKNOWN
    assert findings["dead letters"].line.startswith("could not check: ")
    assert findings["partitions"].level is Level.OK


async def test_doctor_does_not_wait_for_a_locked_table(database: Database) -> None:
    async with connected(database.url) as other, other.transaction():
        await other.execute("LOCK TABLE holdfast.dead_letter")
        findings = {finding.check: finding for finding in await asyncio.wait_for(examine(database.url), 60)}
    assert findings["dead letters"].level is Level.UNKNOWN
    assert findings["partitions"].level is Level.OK


async def test_a_lost_connection_costs_only_one_check(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
        connection = await examiner._connected()
        with translated():
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        yield Finding("clock", Level.OK, "nothing happened")

    monkeypatch.setitem(doctor._OF_THE_SCHEMA, "clock", cut)
    findings = {finding.check: finding for finding in await examine(database.url)}
    assert findings["clock"].level is Level.UNKNOWN
    assert findings["leases"].level is Level.OK
