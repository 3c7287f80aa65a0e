"""The checks of the server, triggered on a real PostgreSQL."""

from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast.doctor.doctor import examine
from holdfast.doctor.findings import Level, Limits
from holdfast.store.postgres.examine import Examiner, RoundTrip, Server
from tests.databases import Database, DatabaseMaker, connected
from tests.doctor.examined import NOW, execute, found, only, with_option
from tests.doctor.standby import feedback_given
from tests.worker.harness import until

PINNED = Limits(pin=NOW)
NEVER = timedelta(days=1000)


async def test_a_slow_answer_is_a_warning(database: Database) -> None:
    assert (await only(database, "store")).level is Level.OK
    assert (await only(database, "store", Limits(slow_answer=NOW))).level is Level.WARNING


@pytest.mark.parametrize(("ahead", "words"), [(5, "5.0s ahead of"), (-5, "5.0s behind")])
async def test_clocks_that_differ_are_a_warning(
    database: Database, monkeypatch: pytest.MonkeyPatch, ahead: int, words: str
) -> None:
    round_trip = Examiner.round_trip

    async def shifted(examiner: Examiner) -> RoundTrip:
        trip = await round_trip(examiner)
        assert abs(trip.ahead) < timedelta(seconds=1), "the server is on this machine"
        return replace(trip, ahead=timedelta(seconds=ahead))

    monkeypatch.setattr(Examiner, "round_trip", shifted)
    finding = await only(database, "time")
    assert finding.level is Level.WARNING
    assert words in finding.line


@pytest.mark.parametrize(
    ("change", "check", "level", "words"),
    [
        ({"version": "13.4", "version_number": 130004}, "server", Level.PROBLEM, "13.4 is too old"),
        ({"is_standby": True}, "server", Level.PROBLEM, "is a standby"),
        ({"autovacuum": False}, "autovacuum", Level.PROBLEM, "autovacuum is off"),
        ({"encoding": "SQL_ASCII"}, "encoding", Level.PROBLEM, "bytes that are not UTF-8"),
        ({"unsafe": []}, "durability", Level.OK, "committed jobs survive a crash"),
        ({"unsafe": ["fsync"]}, "durability", Level.PROBLEM, "fsync is off"),
        ({"unsafe": ["a", "b", "c"]}, "durability", Level.PROBLEM, "a, b and c are off"),
        ({"notify_share": 0.2}, "notify queue", Level.WARNING, "20% full"),
        ({"notify_share": 0.6}, "notify queue", Level.PROBLEM, "60% full"),
    ],
)
async def test_findings_that_a_test_cannot_cause_on_a_server(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, object],
    check: str,
    level: Level,
    words: str,
) -> None:
    server = Examiner.server

    async def changed(examiner: Examiner) -> Server:
        return replace(await server(examiner), **change)  # type: ignore[arg-type]

    monkeypatch.setattr(Examiner, "server", changed)
    finding = await only(database, check)
    assert finding.level is level
    assert words in finding.line


async def test_settings_that_can_lose_jobs_are_a_problem_unless_allowed(durable_database: Database) -> None:
    unsafe = replace(durable_database, url=with_option(durable_database.url, "synchronous_commit=off"))
    assert (await only(durable_database, "durability")).level is Level.OK
    finding = await only(unsafe, "durability")
    assert finding.level is Level.PROBLEM
    assert finding.line == "synchronous_commit is off: committed jobs can be lost in a crash"
    assert (await only(unsafe, "durability", Limits(allows_unsafe=True))).level is Level.WARNING


async def test_few_free_connections_are_a_warning(database: Database) -> None:
    assert (await only(database, "connections")).level is Level.OK
    finding = await only(database, "connections", Limits(connections_share=0.0))
    assert finding.level is Level.WARNING


async def test_a_full_notification_queue_is_reported(database: Database) -> None:
    """The listener's transaction keeps the notifications of others in the queue."""
    async with connected(database.url) as listener, connected(database.url) as other:
        await listener.execute("LISTEN anything")
        await listener.execute("BEGIN")
        for number in range(20):
            await other.execute("SELECT pg_notify('anything', $1)", str(number) * 1000)
        assert (await only(database, "notify queue", Limits(notify_share=0.0))).level is Level.WARNING


async def test_a_transaction_that_pins_the_xmin_horizon_is_named_without_its_query(database: Database) -> None:
    async with connected(with_option(database.url, "application_name=reports")) as other:
        pid = other.get_server_pid()
        async with other.transaction(isolation="repeatable_read"):
            await other.execute("SELECT 'opensesame'")
            finding = await only(database, "vacuum horizon", PINNED)
            assert finding.level is Level.WARNING
            for part in (f"pid {pid}", "postgres", "reports", "idle in transaction"):
                assert part in finding.line
            assert "opensesame" not in finding.line
            assert f"pg_terminate_backend({pid})" in (finding.next_step or "")
            long = await only(database, "vacuum horizon", replace(PINNED, long_pin=NOW))
            assert long.level is Level.PROBLEM
            assert (await only(database, "vacuum horizon")).level is Level.OK


async def test_a_transaction_that_only_holds_a_lock_pins_nothing(database: Database) -> None:
    async with connected(database.url) as other, other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock(17)")
        assert (await only(database, "vacuum horizon", PINNED)).level is Level.OK


async def test_a_transaction_of_another_database_pins_nothing(database: Database, server: DatabaseMaker) -> None:
    with server.fresh_database(migrated=False) as elsewhere:
        async with connected(elsewhere.url) as other, other.transaction(isolation="repeatable_read"):
            await other.execute("SELECT 1")
            assert (await only(database, "vacuum horizon", PINNED)).level is Level.OK


async def test_a_prepared_transaction_is_named(durable_database: Database) -> None:
    await execute(durable_database, "CREATE TABLE note (text text)")
    await execute(durable_database, "BEGIN; INSERT INTO note VALUES ('x'); PREPARE TRANSACTION 'left behind'")
    try:
        finding = await only(durable_database, "vacuum horizon", PINNED)
        assert "a prepared transaction of" in finding.line
        assert finding.next_step == "end it: COMMIT PREPARED or ROLLBACK PREPARED 'left behind'"
    finally:
        await execute(durable_database, "ROLLBACK PREPARED 'left behind'")


async def test_a_replication_slot_and_feedback_from_a_standby_are_named(durable_database: Database) -> None:
    await execute(durable_database, "SELECT pg_create_physical_replication_slot('forgotten')")
    try:
        limits = Limits(pin=NEVER, pin_transactions=0)
        assert (await only(durable_database, "vacuum horizon", limits)).level is Level.OK
        async with connected(durable_database.url) as connection:
            xmin = await connection.fetchval("SELECT pg_current_xact_id()::text::bigint")
            with feedback_given(durable_database.url, "forgotten", xmin):
                await until(lambda: _slot_has_xmin(durable_database), "the feedback arrived")
                for _ in range(3):
                    await connection.execute("SELECT pg_current_xact_id()")
                finding = await only(durable_database, "vacuum horizon", limits)
                assert "a replication slot" in finding.line
                assert "forgotten" in finding.line
            with feedback_given(durable_database.url, None, xmin):
                await execute(durable_database, "SELECT pg_drop_replication_slot('forgotten')")
                await until(lambda: _has_finding(durable_database, limits, "a standby"), "the feedback arrived")
    finally:
        await execute(
            durable_database, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        )


async def _slot_has_xmin(database: Database) -> bool:
    async with connected(database.url) as connection:
        return bool(await connection.fetchval("SELECT xmin IS NOT NULL FROM pg_replication_slots"))


async def _has_finding(database: Database, limits: Limits, words: str) -> bool:
    return any(words in finding.line for finding in await found(database, "vacuum horizon", limits))


async def test_a_role_without_access_to_sessions_gets_a_finding(database: Database) -> None:
    role = f"reader_{database.name}"
    await execute(
        database,
        f"CREATE ROLE {role} LOGIN",
        f"GRANT USAGE ON SCHEMA holdfast TO {role}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {role}",
    )
    try:
        async with connected(database.url):
            url = database.url.replace("postgres@", f"{role}@")
            findings = {finding.check: finding for finding in await examine(url)}
        assert findings["vacuum horizon"].level is Level.UNKNOWN
        assert findings["vacuum horizon"].next_step == f'GRANT pg_read_all_stats TO "{role}"'
        assert findings["leases"].level is Level.OK
        assert findings["places"].level is Level.OK
    finally:
        await execute(database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
