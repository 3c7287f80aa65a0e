"""Installing, migrating and checking a schema: all or nothing, exactly once, no matter which migrator comes first."""

import asyncio
from dataclasses import replace

import pytest

from holdfast.domain.errors import InternalError, InvalidInput, SchemaMismatch, StoreUnavailable
from holdfast.domain.job import IfExists, JobState, LeasedJob
from holdfast.domain.lifecycle import LEASE_LOST, Move, Transition
from holdfast.domain.limits import check_schema
from holdfast.store.contract import Fenced, Finish, JobFilter, Renewal
from holdfast.store.opening import migrate
from holdfast.store.postgres.migrate import Applied, Migrator
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.schema_files import SchemaFiles, schema_files
from holdfast.store.postgres.statements import PostgresStatements
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from holdfast_lab.faults.later_release import later_schema_files
from tests.databases import Database, connected, opened_store
from tests.postgres.catalog import catalog
from tests.postgres.past import RETENTION, pruned
from tests.store_contract.steps import ENDINGS, LEASE, job, wants

THIS = schema_files()


async def _version(url: str, schema: str = "holdfast") -> int:
    async with connected(url) as connection:
        return await Migrator(connection, schema).version()


async def _migrated(url: str, files: SchemaFiles, schema: str = "holdfast") -> Applied:
    async with connected(url) as connection:
        return await Migrator(connection, schema, files).migrate()


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.version for migration in THIS.migrations] == list(range(2, THIS.version + 1))


async def test_an_empty_database_is_installed_once(empty_database: Database) -> None:
    assert await _version(empty_database.url) == 0
    applied = await migrate(empty_database.url, "holdfast")
    assert [(each.version, each.name) for each in applied.migrations] == [(THIS.version, "tables")]
    assert set(applied.functions) == set(THIS.functions)
    assert await _version(empty_database.url) == THIS.version
    assert await migrate(empty_database.url, "holdfast") == Applied()
    async with opened_store(empty_database.url) as store:
        await store.enqueue([job()])
        assert len(await store.claim(wants())) == 1


async def test_one_of_several_migrators_does_all_the_work(empty_database: Database) -> None:
    applied = await asyncio.gather(*(migrate(empty_database.url, "holdfast") for _ in range(3)))
    assert sorted(len(each.functions) for each in applied) == [0, 0, len(THIS.functions)]
    assert sorted(len(each.migrations) for each in applied) == [0, 0, 1]


@pytest.mark.parametrize("schema", ["holdfast", "Jobs of-today"])
async def test_a_migrated_schema_equals_a_fresh_one(empty_database: Database, schema: str) -> None:
    later = later_schema_files()
    await migrate(empty_database.url, schema)
    applied = await _migrated(empty_database.url, later, schema)
    assert [each.name for each in applied.migrations] == ["zones", "weights"]
    assert set(applied.functions) == {"later", "now"}
    async with connected(empty_database.url) as connection:
        migrated = await catalog(connection, schema)
        await connection.execute(f'DROP SCHEMA "{schema}" CASCADE')
        await Migrator(connection, schema, later).migrate()
        assert migrated == await catalog(connection, schema)


FORGOTTEN = {
    "an index": ("CREATE INDEX lease_zone ON holdfast.lease (zone) WHERE zone IS NOT NULL;", "", "index lease_zone"),
    "a column": ("ALTER TABLE holdfast.job ADD COLUMN weight smallint;", "", "column job.weight"),
    "a type": ("ADD COLUMN weight smallint", "ADD COLUMN weight integer", "column job.weight"),
    "a default": ("interval NOT NULL DEFAULT '0'", "interval NOT NULL", "column zone.moved"),
    "a constraint": ("name text PRIMARY KEY", "name text NOT NULL", "constraint holdfast.zone zone_pkey"),
    "a table": ("CREATE TABLE holdfast.zone (name", "CREATE TABLE holdfast.place (name", "table zone"),
}


@pytest.mark.parametrize(("wanted", "instead", "named"), FORGOTTEN.values(), ids=FORGOTTEN)
async def test_an_omission_in_a_migration_is_a_difference(
    database: Database, wanted: str, instead: str, named: str
) -> None:
    later = later_schema_files()
    assert sum(wanted in each.sql for each in later.migrations) == 1
    forgetful = tuple(replace(each, sql=each.sql.replace(wanted, instead)) for each in later.migrations)
    async with connected(database.url) as connection:
        await Migrator(connection, "holdfast", replace(later, migrations=forgetful)).migrate()
        migrated = await catalog(connection)
        await connection.execute("DROP SCHEMA holdfast CASCADE")
        await Migrator(connection, "holdfast", later).migrate()
        fresh = await catalog(connection)
    different = {name for name in migrated.keys() | fresh.keys() if migrated.get(name) != fresh.get(name)}
    assert named in different


async def test_a_function_edited_by_hand_is_restored(database: Database) -> None:
    async with connected(database.url) as connection:
        before = await catalog(connection)
        await connection.execute("ALTER FUNCTION holdfast.renew SET work_mem = '1GB'")
        await connection.execute("DROP FUNCTION holdfast.not_live")
        assert await catalog(connection) != before
        assert set((await Migrator(connection, "holdfast").migrate()).functions) == {"renew", "not_live"}
        assert await catalog(connection) == before


async def test_grants_on_a_function_survive_its_next_version(database: Database) -> None:
    query = "SELECT proacl::text FROM pg_proc WHERE oid = 'holdfast.now'::regproc"
    async with connected(database.url) as connection:
        await connection.execute("REVOKE ALL ON FUNCTION holdfast.now FROM PUBLIC")
        await connection.execute("GRANT EXECUTE ON FUNCTION holdfast.now TO pg_monitor WITH GRANT OPTION")
        before = await connection.fetchval(query)
        assert "now" in (await Migrator(connection, "holdfast", later_schema_files()).migrate()).functions
        assert await connection.fetchval(query) == before


OTHER_SIGNATURES = {
    "one parameter more": "is_past(day date, retention interval, more integer) RETURNS boolean",
    "a type of a parameter": "is_past(day timestamptz, retention interval) RETURNS boolean",
    "a name of a parameter": "is_past(days date, retention interval) RETURNS boolean",
    "the result": "is_past(day date, retention interval) RETURNS integer",
}


@pytest.mark.parametrize("signature", OTHER_SIGNATURES.values(), ids=OTHER_SIGNATURES)
async def test_a_changed_signature_needs_a_new_name(database: Database, signature: str) -> None:
    """Workers of the previous release still call the old function."""
    text = f"CREATE OR REPLACE FUNCTION holdfast.{signature} LANGUAGE sql AS 'SELECT NULL'"
    changed = replace(THIS, functions={**THIS.functions, "is_past": text})
    async with connected(database.url) as connection:
        before = await catalog(connection)
        with pytest.raises(SchemaMismatch, match='"holdfast" has a function "is_past" with another signature'):
            await Migrator(connection, "holdfast", changed).migrate()
        assert await catalog(connection) == before


async def test_the_last_migration_and_the_functions_are_applied_together(database: Database) -> None:
    later = later_schema_files()
    broken = replace(later, functions={**later.functions, "later": "CREATE FUNCTION holdfast.later() broken"})
    with pytest.raises(InternalError, match="syntax error"):
        await _migrated(database.url, broken)
    assert await _version(database.url) == later.version - 1
    applied = await _migrated(database.url, later)
    assert [each.version for each in applied.migrations] == [later.version]
    assert set(applied.functions) == {"later", "now"}


async def test_a_migration_gives_up_on_a_table_that_stays_in_use(database: Database) -> None:
    async with connected(database.url) as busy:
        async with busy.transaction():
            await busy.execute("LOCK TABLE holdfast.lease IN ROW EXCLUSIVE MODE")
            with pytest.raises(StoreUnavailable, match="locked by another transaction"):
                await _migrated(database.url, later_schema_files())
        assert await _version(database.url) == THIS.version
        await _migrated(database.url, later_schema_files())


async def test_every_function_is_in_the_file_with_its_name(database: Database) -> None:
    async with connected(database.url) as connection:
        rows = await connection.fetch("SELECT proname FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace")
    assert sorted(row["proname"] for row in rows) == sorted(THIS.functions)


async def test_every_function_has_a_valid_body(database: Database) -> None:
    """The install skips this check, because a function may call one that is created later."""
    async with connected(database.url) as connection:
        await connection.execute("SET check_function_bodies = on")
        for text in THIS.functions.values():
            await connection.execute(text)


async def test_a_failed_migration_leaves_nothing_behind(empty_database: Database) -> None:
    async with connected(empty_database.url) as connection:
        await connection.execute("CREATE SCHEMA holdfast; CREATE TABLE holdfast.ready (mine text)")
    with pytest.raises(InternalError, match="already exists"):
        await migrate(empty_database.url, "holdfast")
    assert await _version(empty_database.url) == 0
    async with connected(empty_database.url) as connection:
        await connection.execute("DROP TABLE holdfast.ready")
    assert (await migrate(empty_database.url, "holdfast")).migrations


async def test_a_schema_from_before_the_first_release_is_refused_with_instructions(empty_database: Database) -> None:
    async with connected(empty_database.url) as connection:
        await connection.execute("CREATE SCHEMA holdfast; CREATE TABLE holdfast.migration (version integer, name text)")
        await connection.execute("INSERT INTO holdfast.migration VALUES (13, 'firsts')")
    line = (
        'the schema "holdfast" was created before the first release; drop it with `DROP SCHEMA "holdfast" CASCADE` and '
        "run `holdfast migrate` with --store or --app"
    )
    with pytest.raises(SchemaMismatch) as refused:
        await PostgresStore(empty_database.url).open()
    assert str(refused.value) == line
    with pytest.raises(SchemaMismatch) as refused:
        await migrate(empty_database.url, "holdfast")
    assert str(refused.value) == line


async def test_a_database_without_the_schema_is_refused_with_instructions(empty_database: Database) -> None:
    """Taken literally, a command without an option would migrate another database: the one of the environment."""
    line = 'the schema "holdfast" is missing; run `holdfast migrate` with --store or --app'
    with pytest.raises(SchemaMismatch, match=f"^{line}$"):
        await PostgresStore(empty_database.url).open()
    line = "the schema \"of today\" is missing; run `holdfast migrate --schema 'of today'` with --store or --app"
    with pytest.raises(SchemaMismatch, match=f"^{line}$"):
        await PostgresStore(empty_database.url, "of today").open()


async def test_an_older_schema_is_refused_with_instructions(database: Database) -> None:
    older, newer = THIS.version, later_schema_files().version
    async with connected(database.url) as connection:
        with pytest.raises(SchemaMismatch) as refused:
            await Migrator(connection, "holdfast", later_schema_files()).check()
    assert str(refused.value) == (
        f'the schema "holdfast" is version {older}, this release needs {newer}; '
        "run `holdfast migrate` with --store or --app"
    )


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE holdfast.installed_function SET digest = 'another' WHERE name = 'claim'",
        "DELETE FROM holdfast.installed_function WHERE name = 'claim'",
    ],
    ids=["another text", "not installed"],
)
async def test_functions_of_another_release_are_refused_with_instructions(database: Database, change: str) -> None:
    async with connected(database.url) as connection:
        await connection.execute(change)
    with pytest.raises(SchemaMismatch) as refused:
        await PostgresStore(database.url).open()
    assert str(refused.value) == (
        'the function "claim" in the schema "holdfast" does not match this release; '
        "run `holdfast migrate` with --store or --app"
    )
    assert (await migrate(database.url, "holdfast")).functions == ("claim",)
    async with opened_store(database.url):
        pass


async def test_a_newer_schema_is_refused_by_stores_and_migrators(database: Database) -> None:
    await _migrated(database.url, later_schema_files())
    newer = later_schema_files().version
    line = f'the schema "holdfast" is version {newer}, newer than this release knows ({THIS.version}); upgrade holdfast'
    with pytest.raises(SchemaMismatch) as refused:
        await PostgresStore(database.url).open()
    assert str(refused.value) == line
    with pytest.raises(SchemaMismatch) as refused:
        await migrate(database.url, "holdfast")
    assert str(refused.value) == line


async def test_a_schema_that_disappears_is_named_in_the_error(database: Database) -> None:
    async with opened_store(database.url) as store:
        async with connected(database.url) as connection:
            await connection.execute("DROP SCHEMA holdfast CASCADE")
        with pytest.raises(SchemaMismatch, match="run `holdfast migrate`"):
            await store.claim(wants())


@pytest.mark.parametrize("schema", ["Jobs of-today", "holdfast-2", "select", "_", "a" * 63, "My holdfast"])
async def test_every_verb_works_in_a_schema_with_another_name(empty_database: Database, schema: str) -> None:
    await migrate(empty_database.url, schema)
    assert await _version(empty_database.url, schema) == THIS.version
    async with opened_store(empty_database.url, schema=schema) as store, connected(empty_database.url) as connection:
        reader, clock = PostgresReader(store), PostgresClock(store)
        await clock.freeze(await clock.now())
        first, keyed = job(), job(key="a")
        await store.enqueue([first])
        await store.enqueue([keyed, job(key="a")])
        await store.enqueue([job(key="a", if_exists=IfExists.REPLACE)])
        third = job()
        async with connection.transaction():
            await PostgresStatements(schema).enqueue([third]).execute_awaited(connection, "enqueue")
        leased = await store.claim(wants())
        assert [each.id for each in leased] == [first.id, keyed.id, third.id]
        renewed = await store.renew([Renewal(each.lease, LEASE) for each in leased])
        assert {each.fenced for each in renewed} == {Fenced.DONE}
        async with connection.transaction():
            await store.finish_in.statement(leased[0].lease, None).execute_on(connection)
        fails = [Finish(leased[0].lease, ENDINGS["fail"]), Finish(leased[1].lease, ENDINGS["fail"])]
        assert await store.finish(fails) == [Fenced.ALREADY, Fenced.DONE]
        assert await _lost_and_finished(store, clock, leased[2]) == [Fenced.DONE]
        assert await store.cancel([keyed.id]) == ["canceled"]
        assert await store.retry([keyed.id]) == ["ready"]
        assert (await store.look(["default"], ["work"])).due_in is not None
        counts = await reader.count()
        assert (counts[JobState.READY], counts[JobState.SUCCEEDED]) == (1, 2)
        assert {found.id for found in await reader.list(JobFilter(), 10)} == {first.id, keyed.id, third.id}
        assert "keys_forgotten" in await pruned(store)
        spaces = await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = 'holdfast'")
        assert spaces == 0


async def _lost_and_finished(store: PostgresStore, clock: PostgresClock, leased: LeasedJob) -> list[Fenced]:
    await clock.advance(LEASE)
    assert [rescued.id for rescued in await store.rescue(10)] == [leased.id]
    (again,) = await store.claim(wants())
    assert LEASE_LOST.code in str(await PostgresReader(store).get(leased.id))
    return await store.finish([Finish(again.lease, Transition(Move.SUCCEED))])


async def test_two_schemas_in_one_database_are_independent(database: Database) -> None:
    await migrate(database.url, "other")
    async with opened_store(database.url) as one, opened_store(database.url, schema="other") as two:
        await one.enqueue([mine := job(key="a")])
        await two.enqueue([job(id=mine.id, key="a")])
        (leased,) = await one.claim(wants())
        assert (await two.finish([Finish(leased.lease, ENDINGS["succeed"])])) == [Fenced.STALE]
        await PostgresClock(one).freeze(await PostgresClock(one).now())
        assert await PostgresClock(two).now() != await PostgresClock(two).now()
        assert len(await two.claim(wants())) == 1


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "a" * 64, "1a", "-a", "a.b", 'a"b', "a'b", "a;b", "a\\b", "a$$b", "a%I", "a\nb", "a\n", "a\0", "ü",
        "a/b", "pg_catalog", "pg_mine", "information_schema", None, 7,
    ],
    ids=repr,
)  # fmt: skip
def test_a_dangerous_schema_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidInput, match=r"^schema: .* is not usable; .*$"):
        check_schema(name)


async def test_partitions_are_made_in_advance_and_only_once(database: Database) -> None:
    query = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'holdfast.job'::regclass"
    async with opened_store(database.url) as store, connected(database.url) as connection:
        clock = PostgresClock(store)
        await clock.freeze(await clock.now())
        before = await connection.fetchval(query)
        assert before >= 9
        # The template database may be from yesterday if the tests run at midnight.
        (row,) = await store.fetch("add_partitions", 8, RETENTION)
        assert row[0] in (0, 2)
        before = await connection.fetchval(query)
        (row,) = await store.fetch("add_partitions", 8, RETENTION)
        assert row[0] == 0
        (row,) = await store.fetch("add_partitions", 10, RETENTION)
        assert row[0] == 4
        assert await connection.fetchval(query) == before + 2
