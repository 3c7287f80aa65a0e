"""Migrations: forward, once, by whoever comes first; and a store that refuses what it does not know."""

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import asyncpg
import pytest

from holdfast.domain.errors import InvalidInput, SchemaMismatch
from holdfast.domain.job import IfExists, JobState, LeasedJob
from holdfast.domain.lifecycle import LEASE_LOST, Event, Transition
from holdfast.domain.limits import check_schema
from holdfast.producer.enqueue import enqueue_statement
from holdfast.store.contract import Fenced, Finish, JobFilter, Renewal
from holdfast.store.opening import migrate
from holdfast.store.postgres.migrate import Migrator
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.sql_files import Migration, migrations, newest_version
from holdfast.store.postgres.store import PostgresClock, PostgresStore
from tests.databases import Database, connected, opened_store
from tests.postgres.past import pruned
from tests.store_contract.steps import ENDINGS, LEASE, job, wants

# As the release before migration 8 sent it.
_ENQUEUE_OF_7 = """
SELECT enqueued.id, enqueued.is_new FROM unnest($1::text[]) AS given (key)
CROSS JOIN LATERAL holdfast.enqueue(
    kind => 'work', payload => '{}', queue => 'default', priority => 5, delay => NULL, run_at => NULL, tenant => '',
    key => given.key, correlation_id => '', max_attempts => NULL, headers => NULL, job_id => gen_random_uuid()
) AS enqueued
"""
_POSITIONS_OF_7 = """
SELECT id, is_new
FROM holdfast.enqueue('work', '{}', 'default', 5, NULL, NULL, '', $1, NULL, NULL, NULL, gen_random_uuid())
"""

NAMES = [migration.name for migration in migrations("holdfast")]


async def _version(url: str, schema: str = "holdfast") -> int:
    async with connected(url) as connection:
        return await Migrator(connection, schema).version()


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.version for migration in migrations("holdfast")] == list(range(1, newest_version() + 1))


async def test_an_empty_database_gets_every_migration_once(empty_database: Database) -> None:
    assert await _version(empty_database.url) == 0
    assert [migration.name for migration in await migrate(empty_database.url, "holdfast")] == NAMES
    assert await _version(empty_database.url) == newest_version()
    assert await migrate(empty_database.url, "holdfast") == []
    async with opened_store(empty_database.url) as store:
        await store.enqueue([job()])
        assert len(await store.claim(wants())) == 1


async def test_migrators_at_the_same_time_share_the_work(empty_database: Database) -> None:
    applied = await asyncio.gather(*(migrate(empty_database.url, "holdfast") for _ in range(3)))
    assert sorted(migration.name for each in applied for migration in each) == sorted(NAMES)
    async with connected(empty_database.url) as connection:
        rows = await connection.fetch("SELECT version, name FROM holdfast.migration ORDER BY version")
    assert [row["name"] for row in rows] == NAMES


async def test_a_migrator_stops_at_the_version_it_is_told_and_another_goes_on_from_there(
    empty_database: Database,
) -> None:
    async with connected(empty_database.url) as connection:
        first = await Migrator(connection, "holdfast").migrate(up_to=2)
    assert [migration.version for migration in first] == [1, 2]
    assert await _version(empty_database.url) == 2
    assert [migration.name for migration in await migrate(empty_database.url, "holdfast")] == NAMES[2:]


def _before_8(schema: str) -> Iterator[Migration]:
    return (each for each in migrations(schema) if each.version < 8)


async def test_a_producer_of_an_earlier_release_goes_on_through_the_migration_of_keys(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.store.postgres.migrate.migrations", _before_8)
        await migrate(empty_database.url, "holdfast")
    async with connected(empty_database.url) as old:
        by_name, by_position = await old.prepare(_ENQUEUE_OF_7), await old.prepare(_POSITIONS_OF_7)
        (first,) = await by_name.fetch(["a"])
        for _ in range(10):
            assert tuple(await by_position.fetchrow("a") or ()) == (first["id"], False)
        await migrate(empty_database.url, "holdfast")
        for _ in range(10):
            (again, new) = await by_name.fetch(["a", str(uuid4())])
            assert (again["id"], again["is_new"], new["is_new"]) == (first["id"], False, True)
            assert tuple(await by_position.fetchrow("a") or ()) == (first["id"], False)


@pytest.mark.parametrize(
    "grants",
    [
        ["REVOKE ALL ON FUNCTION {} FROM PUBLIC", "GRANT EXECUTE ON FUNCTION {} TO pg_monitor WITH GRANT OPTION"],
        ["GRANT EXECUTE ON FUNCTION {} TO pg_monitor, pg_signal_backend"],
    ],
    ids=["somebody", "everybody and somebody"],
)
@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_who_may_enqueue_by_sql_is_the_same_after_the_migration_of_keys(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch, grants: list[str]
) -> None:
    schema = "Jobs of-today"
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.store.postgres.migrate.migrations", _before_8)
        await migrate(empty_database.url, schema)
    async with connected(empty_database.url) as connection:
        query = (
            "SELECT allowed.* FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) AS allowed "
            "WHERE proname = 'enqueue' ORDER BY grantee"
        )
        for grant in grants:
            await connection.execute(grant.format(f'"{schema}".enqueue'))
        before = await connection.fetch(query)
        await migrate(empty_database.url, schema)
        assert await connection.fetch(query) == before


async def test_a_migration_that_fails_leaves_nothing_of_itself(empty_database: Database) -> None:
    async with connected(empty_database.url) as connection:
        await connection.execute("CREATE SCHEMA holdfast; CREATE TABLE holdfast.ready (mine text)")
    with pytest.raises(asyncpg.DuplicateTableError):
        await migrate(empty_database.url, "holdfast")
    assert await _version(empty_database.url) == 0
    async with connected(empty_database.url) as connection:
        await connection.execute("DROP TABLE holdfast.ready")
    assert [migration.name for migration in await migrate(empty_database.url, "holdfast")] == NAMES


async def test_a_database_without_the_schema_is_refused_with_the_way_out(empty_database: Database) -> None:
    store = PostgresStore(empty_database.url)
    with pytest.raises(SchemaMismatch, match=r'^the schema "holdfast" is missing; run `holdfast migrate`$'):
        await store.open()


async def test_an_older_schema_is_refused_with_the_way_out(database: Database) -> None:
    newest = newest_version()
    async with connected(database.url) as connection:
        await connection.execute("DELETE FROM holdfast.migration WHERE version = $1", newest)
    store = PostgresStore(database.url)
    with pytest.raises(SchemaMismatch) as refused:
        await store.open()
    assert str(refused.value) == (
        f'the schema "holdfast" is version {newest - 1}, this release needs {newest}; run `holdfast migrate`'
    )


async def test_a_newer_schema_is_refused_by_stores_and_migrators(database: Database) -> None:
    newest = newest_version()
    async with connected(database.url) as connection:
        await connection.execute("INSERT INTO holdfast.migration VALUES ($1, 'from the future')", newest + 1)
    line = f'the schema "holdfast" is version {newest + 1}, newer than this release knows ({newest}); upgrade holdfast'
    with pytest.raises(SchemaMismatch) as refused:
        await PostgresStore(database.url).open()
    assert str(refused.value) == line
    with pytest.raises(SchemaMismatch) as refused:
        await migrate(database.url, "holdfast")
    assert str(refused.value) == line


async def test_a_schema_that_disappears_is_named_as_the_trouble(database: Database) -> None:
    async with opened_store(database.url) as store:
        async with connected(database.url) as connection:
            await connection.execute("DROP SCHEMA holdfast CASCADE")
        with pytest.raises(SchemaMismatch, match="run `holdfast migrate`"):
            await store.claim(wants())


@pytest.mark.parametrize("schema", ["Jobs of-today", "holdfast-2", "select", "_", "a" * 63, "My holdfast"])
async def test_every_verb_works_in_a_schema_of_another_name(empty_database: Database, schema: str) -> None:
    await migrate(empty_database.url, schema)
    assert await _version(empty_database.url, schema) == newest_version()
    async with opened_store(empty_database.url, schema=schema) as store, connected(empty_database.url) as connection:
        reader, clock = PostgresReader(store), PostgresClock(store)
        await clock.freeze(await clock.now())
        first, keyed = job(), job(key="a")
        await store.enqueue([first])
        await store.enqueue([keyed, job(key="a")])
        await store.enqueue([job(key="a", if_exists=IfExists.REPLACE)])
        third = job()
        async with connection.transaction():
            await enqueue_statement(schema, third).execute_on(connection)
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
        assert await store.next_due(["default"], ["work"]) is not None
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
    return await store.finish([Finish(again.lease, Transition(Event.SUCCEED))])


async def test_two_schemas_of_one_database_know_nothing_of_each_other(database: Database) -> None:
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
def test_a_schema_name_that_could_do_harm_is_refused(name: object) -> None:
    with pytest.raises(InvalidInput, match=r"^schema: .* is not usable; .*$"):
        check_schema(name)


async def test_partitions_are_made_ahead_and_only_once(database: Database) -> None:
    query = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'holdfast.job'::regclass"
    async with opened_store(database.url) as store, connected(database.url) as connection:
        clock = PostgresClock(store)
        await clock.freeze(await clock.now())
        before = await connection.fetchval(query)
        assert before >= 9
        # The template may be of yesterday, when the tests run at midnight.
        (row,) = await store.fetch("add_partitions", 8)
        assert row[0] in (0, 2)
        before = await connection.fetchval(query)
        (row,) = await store.fetch("add_partitions", 8)
        assert row[0] == 0
        (row,) = await store.fetch("add_partitions", 10)
        assert row[0] == 4
        assert await connection.fetchval(query) == before + 2
