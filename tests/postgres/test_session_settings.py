"""Settings of a role, a database or a session do not change what Holdfast does."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.resources import files
from importlib.resources.abc import Traversable
from uuid import UUID

import asyncpg
import pytest

from holdfast.doctor.doctor import examine
from holdfast.doctor.findings import Level
from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.domain.event import EVENT_HEADER
from holdfast.domain.job import Job, JobState
from holdfast.domain.json_text import Json, decode, encode
from holdfast.domain.lifecycle import Move, Transition
from holdfast.maintenance.chores import Retention, all_chores, run_chore
from holdfast.scheduling.schedules import Occurrence
from holdfast.store.contract import Canceling, Fenced, Finish, Renewal, Retrying
from holdfast.store.events import NewSubscription
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import open_session
from holdfast.store.postgres.events import PostgresEvents
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.migrate import Applied, Migrator
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.runs import PostgresRuns
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, OneConnectionStore, connected, opened_store
from tests.doctor.examined import only
from tests.postgres.past import NOON, RETENTION, add_days, day_of, days_with_partitions, id_of, is_sound
from tests.scheduling.schedule_steps import MINUTE, Replica, declared, once
from tests.store_contract.steps import BROKEN, ENDINGS, LEASE, job, wants
from tests.worker.harness import until

ONLY_18 = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

SETTINGS = {
    "text": {"standard_conforming_strings": "off", "backslash_quote": "off"},
    "values": {"array_nulls": "off", "row_security": "off", "transform_null_equals": "on", "xmloption": "document"},
    "shapes": {
        "bytea_output": "escape",
        "DateStyle": "German, DMY",
        "extra_float_digits": "-15",
        "IntervalStyle": "sql_standard",
        "TimeZone": "Asia/Kathmandu",
    },
    "names": {"quote_all_identifiers": "on", "search_path": "holdfast"},
    "no path": {"search_path": "nowhere"},
    "transactions": {
        "default_transaction_deferrable": "on",
        "default_transaction_isolation": "serializable",
        "synchronous_commit": "off",
    },
    "times": {
        "idle_in_transaction_session_timeout": "5s",
        "lock_timeout": "5s",
        "statement_timeout": "20s",
    },
    "plans": {
        "enable_indexscan": "off",
        "enable_nestloop": "off",
        "enable_partition_pruning": "off",
        "from_collapse_limit": "1",
        "jit_above_cost": "0",
        "join_collapse_limit": "1",
        "plan_cache_mode": "force_custom_plan",
    },
    "functions": {
        "plpgsql.extra_errors": "all",
        "plpgsql.variable_conflict": "use_column",
        "session_replication_role": "replica",
    },
}
READ_ONLY = {"default_transaction_read_only": "on"}
all_settings = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)

DAYS = 4
LONG = timedelta(days=200, microseconds=1)
TEXT = "a \"quoted\" \\ back\\slash, an 'apostrophe', ü and €"


@asynccontextmanager
async def set_for_the_role(database: Database, settings: Mapping[str, str]) -> AsyncIterator[None]:
    """Set defaults for the role's connections that begin in the block."""
    async with connected(database.url) as owner:
        role = f'ALTER ROLE postgres IN DATABASE "{database.name}"'
        for name, value in settings.items():
            await owner.execute(f"{role} SET {name} = '{value}'")
        try:
            yield
        finally:
            await owner.execute(f"{role} RESET ALL")


async def shown(store: PostgresStore, id: UUID) -> Job:
    found = await PostgresReader(store).get(id)
    assert found is not None
    return found


def in_errors(moment: timedelta) -> str:
    return f"{NOON + moment:%Y-%m-%dT%H:%M:%S.%fZ}"


async def a_job_of_each_fate(store: PostgresStore) -> None:
    payload = encode({"text": TEXT, "number": 0.1, "nothing": None})
    new = job(id=id_of(0), payload=payload, key=TEXT, tenant=TEXT, headers=encode({"trace": TEXT}))
    later = job(id=id_of(0), delay=LONG)
    await store.enqueue([new])
    await store.enqueue([later, job(key=TEXT, tenant=TEXT)])
    await store.enqueue([job(id=id_of(0), kind="many", payload=payload, priority=1) for _ in range(300)])
    assert (await shown(store, later.id)).run_at == NOON + LONG
    (leased,) = await store.claim(wants())
    assert (leased.id, leased.payload) == (new.id, payload)
    (renewed,) = await store.renew([Renewal(leased.lease, LEASE, Json('"half"'))])
    assert renewed.fenced is Fenced.DONE
    running = await shown(store, new.id)
    assert (running.key, running.tenant, running.progress) == (TEXT, TEXT, "half")
    assert running.lease_until == NOON + LEASE
    assert await store.finish([Finish(leased.lease, ENDINGS["retry"])]) == [Fenced.DONE]
    await PostgresClock(store).advance(timedelta(seconds=5))
    (leased,) = await store.claim(wants())
    assert await store.finish([Finish(leased.lease, Transition(Move.SUCCEED, result=payload))]) == [Fenced.DONE]
    ended = await shown(store, new.id)
    assert (ended.state, ended.result, ended.attempt) == (JobState.SUCCEEDED, decode(payload), 2)
    assert [error["at"] for error in ended.errors] == [in_errors(timedelta(0))]

    many = await store.claim(wants("many", limit=300))
    assert len(many) == 300
    await store.finish([Finish(each.lease, Transition(Move.SUCCEED)) for each in many[:200]])
    await store.finish([Finish(many[200].lease, Transition(Move.FAIL, error=BROKEN))])
    assert await store.retry([many[200].id]) == [Retrying.READY]
    assert await store.cancel([many[200].id, many[201].id]) == [Canceling.CANCELED, Canceling.REQUESTED]
    await PostgresClock(store).advance(LEASE)
    assert len(await store.rescue(1000)) == 99
    lost = await shown(store, many[299].id)
    assert lost.errors[-1]["at"] == in_errors(timedelta(seconds=35))


async def jobs_of_other_languages(connection: "asyncpg.Connection[asyncpg.Record]", store: PostgresStore) -> None:
    await PostgresEvents(store).declare([NewSubscription("listening", "invoice.*")])
    enqueue = "SELECT id::text, is_new FROM holdfast.enqueue('sql', $1, key => $2, delay => '1 hour 1 microsecond')"
    first, again = [await connection.fetchrow(enqueue, "[]", TEXT) for _ in range(2)]
    assert first is not None
    assert again is not None
    assert (first["is_new"], again["is_new"], again["id"]) == (True, False, first["id"])
    publish = "SELECT id::text FROM holdfast.publish('invoice.paid', '{}', headers => $1)"
    found = await shown(store, UUID(await connection.fetchval(publish, '{"a": "b\\\\"}\n\t ')))
    headers = found.headers
    assert headers["a"] == "b\\"
    assert headers[EVENT_HEADER]["published_at"] == in_errors(found.created_at - NOON)
    for wrong in ("invoice.*", "invoice..paid", "*"):
        with pytest.raises(asyncpg.PostgresError, match="give words with dots"):
            await connection.fetch("SELECT holdfast.publish($1, '{}')", wrong)


async def schedules_go_on(store: PostgresStore) -> None:
    called: list[object] = []

    async def noting(occurrence: Occurrence) -> dict[str, str]:
        called.append(occurrence.at)
        return {"text": TEXT}

    replica = Replica("me", PostgresSchedules(store), PostgresRuns(store))
    inline, jobs = replica.inline(noting), replica.job_schedules(declared("report", "* * * * *"))
    for processed in (0, 1, 1):
        assert (await once(inline)).processed == processed
        assert (await once(jobs)).processed == processed
        await PostgresClock(store).advance(MINUTE)
    assert called == [NOON + MINUTE, NOON + 2 * MINUTE]
    (newest, _) = await replica.runs.list("cycle", 10)
    assert (newest.occurrence, newest.error) == (NOON + 2 * MINUTE, None)


async def old_days_go_and_what_is_live_stays(store: PostgresStore) -> None:
    await store.enqueue([job(id=id_of(days), kind="old", key=f"{days}") for days in range(1, DAYS + 1)])
    ended = await store.claim(wants("old"))
    assert len(ended) == DAYS
    await store.finish([Finish(each.lease, Transition(Move.SUCCEED)) for each in ended])
    live = [job(id=id_of(days), kind="live", payload=encode(TEXT)) for days in range(1, DAYS + 1) for _ in range(5)]
    await store.enqueue(live)
    leased = await store.claim(wants("live", limit=5, lease=LONG))
    await PostgresClock(store).advance(RETENTION + timedelta(hours=1))
    maintenance = PostgresMaintenance(store)
    for chore in all_chores(maintenance, Retention(RETENTION, RETENTION, RETENTION)):
        report = await run_chore(maintenance, chore, lambda: False)
        assert (report.error, report.skipped) == (None, [])
    assert await store.finish([Finish(each.lease, Transition(Move.SUCCEED)) for each in leased]) == [Fenced.DONE] * 5
    claimed = await store.claim(wants("live"))
    assert {each.id for each in claimed} | {each.id for each in leased} == {each.id for each in live}
    assert {each.payload for each in claimed} == {encode(TEXT)}


@ONLY_18
@all_settings
@pytest.mark.parametrize("is_pinned", [True, False], ids=["engine", "plain"])
async def test_settings_change_no_verb(database: Database, settings: Mapping[str, str], is_pinned: bool) -> None:
    """Tests the engine's connections, and one with all settings of the role."""
    async with connected(database.url) as owner, set_for_the_role(database, settings):
        await add_days(owner, DAYS)
        async with opened_store(database.url) as engine, connected(database.url) as plain:
            for name, value in settings.items():
                assert await plain.fetchval("SELECT current_setting($1)", name) == value
            async with engine.acquired() as connection:
                assert await connection.fetchval("SHOW standard_conforming_strings") == "on"
            store = engine if is_pinned else OneConnectionStore(plain)
            await PostgresClock(engine).freeze(NOON)
            await schedules_go_on(engine)
            await PostgresClock(engine).freeze(NOON)
            await a_job_of_each_fate(store)
            await jobs_of_other_languages(plain, store)
            await old_days_go_and_what_is_live_stays(store)
        await is_sound(owner)
        assert min(await days_with_partitions(owner)) >= day_of(1)
        findings = {finding.check: finding for finding in await examine(database.url)}
        assert [finding.line for finding in findings.values() if finding.level is Level.UNKNOWN] == []
        assert {findings[check].level for check in ("partitions", "places", "schema", "versions")} == {Level.OK}


@ONLY_18
@all_settings
async def test_settings_do_not_change_what_is_installed(empty_database: Database, settings: Mapping[str, str]) -> None:
    async with connected(empty_database.url) as owner:
        async with set_for_the_role(empty_database, settings):
            await migrate(empty_database.url, "holdfast")
        assert await migrate(empty_database.url, "holdfast") == Applied()
        async with set_for_the_role(empty_database, settings):
            assert await migrate(empty_database.url, "holdfast") == Applied()
            assert (await only(empty_database, "schema")).level is Level.OK
        refused = "INSERT INTO holdfast.subscription VALUES ('name', 'a..b', 'default', 5, NULL, now(), now())"
        with pytest.raises(asyncpg.CheckViolationError):
            await owner.execute(refused)


@ONLY_18
async def test_a_read_only_role_changes_nothing_and_gets_a_clear_error(database: Database) -> None:
    async with set_for_the_role(database, READ_ONLY), opened_store(database.url) as store:
        for change in (lambda: store.enqueue([job()]), lambda: PostgresMaintenance(store).mark_done("prune jobs")):
            with pytest.raises(StoreUnavailable, match="read-only transaction"):
                await change()


def sql_files(folder: Traversable) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in folder.iterdir():
        if each.is_dir():
            found |= sql_files(each)
        elif each.name.endswith(".sql"):
            found[each.name] = each.read_text(encoding="utf-8")
    return found


def test_no_sql_contains_a_backslash_that_depends_on_a_setting() -> None:
    texts = sql_files(files("holdfast"))
    assert len(texts) > 100
    assert [name for name, text in texts.items() if "\\" in re.sub(r"\bE'[^']*'", "", text)] == []


def test_all_sql_is_ascii_and_fits_into_databases_of_any_encoding() -> None:
    assert [name for name, text in sql_files(files("holdfast")).items() if not text.isascii()] == []


@asynccontextmanager
async def of_encoding(database: Database, encoding: str) -> AsyncIterator[str]:
    """Another database of this server, with this encoding."""
    name = f"{database.name}_{encoding.lower()}"
    options = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    async with connected(database.url) as owner:
        await owner.execute(f'CREATE DATABASE "{name}" {options}')
        try:
            yield database.url.replace(database.name, name)
        finally:
            await owner.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@ONLY_18
@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP"])
async def test_a_schema_can_be_installed_in_any_encoding_that_clients_can_read(
    empty_database: Database, encoding: str
) -> None:
    async with of_encoding(empty_database, encoding) as url:
        await migrate(url, "holdfast")
        async with opened_store(url) as store:
            await store.enqueue([job()])
            assert len(await store.claim(wants())) == 1


@ONLY_18
async def test_a_database_that_stores_unreadable_bytes_is_refused(empty_database: Database) -> None:
    async with of_encoding(empty_database, "SQL_ASCII") as url:
        with pytest.raises(InvalidInput, match=r"^the encoding of this database is SQL_ASCII, .* ENCODING 'UTF8' "):
            await migrate(url, "holdfast")
        async with connected(url) as connection:
            assert await Migrator(connection, "holdfast").version() == 0


@ONLY_18
async def test_a_role_that_ends_idle_sessions_ends_no_listener_and_no_lease_keeper(database: Database) -> None:
    async with set_for_the_role(database, {"idle_session_timeout": "200ms"}), opened_store(database.url) as store:
        session = await open_session(database.url)
        async with store.connection_of_its_own() as keeper, connected(database.url) as other:
            await until(other.is_closed, "the end of another session that has been idle for less time")
            for each in (session, keeper):
                assert await each.fetchval("SELECT 1") == 1
        await session.close()
