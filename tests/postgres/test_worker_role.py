"""Workers may connect as a role that owns nothing: `holdfast migrate --grant` gives it what it needs and no more."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from holdfast.doctor.findings import Level
from holdfast.domain.budget import Budget
from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import IfExists, JobState
from holdfast.domain.lifecycle import Move, Transition
from holdfast.maintenance.chores import Retention
from holdfast.maintenance.runner import Maintenance
from holdfast.store.contract import Canceling, Fenced, Finish, Renewal, Retrying
from holdfast.store.opening import migrate, opened
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.migrate import Applied
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock
from holdfast.store.schedules import NewRun
from tests.databases import Database, DatabaseMaker, connected, opened_store
from tests.doctor.examined import only
from tests.postgres.past import RETENTION, add_days, day_of, days_with_partitions, id_of, is_sound, pruned
from tests.store_contract.steps import BROKEN, ENDINGS, LEASE, job, wants

DAYS = 6
LONG = timedelta(days=1000)
DEFINERS = ("add_partitions", "guard_default", "check_guard", "lift_guard", "look_at_day", "drop_day", "prune_part")


class Role:
    """A role that owns nothing and whose name must be quoted."""

    def __init__(self, name: str, database: Database) -> None:
        self.name = name
        parts = urlsplit(database.url)
        place = parts.netloc.rpartition("@")[2]
        self.database = Database(
            urlunsplit(parts._replace(netloc=f"{name.replace(' ', '%20')}@{place}")), database.name
        )

    @property
    def url(self) -> str:
        return self.database.url


@pytest.fixture
def own_database(threads_end: None, server: DatabaseMaker) -> Iterator[Database]:
    with server.fresh_database() as database:
        yield database


@pytest.fixture
def role(own_database: Database) -> Iterator[Role]:
    name = f"worker {uuid4().hex}"
    with psycopg.connect(own_database.url, autocommit=True) as admin:
        admin.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(name)))
        try:
            yield Role(name, own_database)
        finally:
            admin.execute(SQL("DROP OWNED BY {} CASCADE").format(Identifier(name)))
            admin.execute(SQL("DROP ROLE {}").format(Identifier(name)))


async def test_it_enqueues_works_and_maintains_the_store(own_database: Database, role: Role) -> None:
    await migrate(own_database.url, "holdfast", grant=role.name)
    async with connected(own_database.url) as owner:
        await add_days(owner, DAYS)
        async with (
            opened(role.url) as open_store,
            opened_store(role.url) as store,
            opened_store(own_database.url, pool_size=1) as owners,
        ):
            old = [job(id=id_of(1 + number % DAYS), key=f"{number}") for number in range(12)]
            await store.enqueue([*old, job(id=id_of(DAYS), kind="later", delay=LONG)])
            await store.enqueue([job(key="report", if_exists=IfExists.REPLACE) for _ in range(2)])
            await store.enqueue([job(kind="many") for _ in range(400)])
            leased = await store.claim(wants(lease=LONG))
            assert len(leased) == 13
            assert {each.fenced for each in await store.renew([Renewal(leased[0].lease, LONG)])} == {Fenced.DONE}
            endings = [Transition(Move.SUCCEED), Transition(Move.FAIL, error=BROKEN), ENDINGS["retry"]]
            finishes = [Finish(each.lease, endings[number % 3]) for number, each in enumerate(leased)]
            assert set(await store.finish(finishes)) == {Fenced.DONE}
            assert await store.cancel([leased[2].id]) == [Canceling.CANCELED]
            assert await store.retry([leased[1].id]) == [Retrying.READY]
            await open_store.runs.record(NewRun("report", "replica"), timedelta(0), None, None)
            await open_store.events.declare([])
            await open_store.schedules.declare([])
            await store.claim(wants("many", limit=10, lease=LEASE))
            await PostgresClock(owners).advance(timedelta(days=30))
            assert len(await store.rescue(100)) == 10
            retention = Retention(RETENTION, timedelta(days=10), timedelta(days=10))
            maintenance = Maintenance(PostgresMaintenance(store), retention)
            report = await maintenance.run(Budget(), to_end=True)
            assert (report.error, report.skipped) == (None, None)
            did = Counter({name: int(str(number)) for name, number in (report.counts or {}).items()})
            assert (did["partitions_added"], did["partitions_dropped"]) == (2 * 8, 2 * (DAYS + 8))
            assert min(did[name] for name in ("jobs_pruned", "dead_letters_pruned", "runs_pruned")) > 0
            assert min(await days_with_partitions(owner)) > day_of(0)
            assert (await PostgresReader(store).count())[JobState.READY] > 400
        await is_sound(owner)
        assert (await only(role.database, "privileges")).level is Level.OK
        assert (await only(role.database, "places")).level is Level.OK


async def test_it_adds_partitions_next_to_a_large_default_partition(own_database: Database, role: Role) -> None:
    await migrate(own_database.url, "holdfast", grant=role.name)
    async with connected(own_database.url) as owner, opened_store(role.url) as store:
        for day in await days_with_partitions(owner):
            await owner.execute(f"DROP TABLE holdfast.job_{day:%Y%m%d}, holdfast.finished_{day:%Y%m%d}")
        await owner.execute(
            "CREATE OR REPLACE FUNCTION holdfast.default_is_large() RETURNS boolean LANGUAGE sql AS 'SELECT true'"
        )
        batches = [batch.counts async for batch in PostgresMaintenance(store).add_partitions(RETENTION)]
        assert batches == [{"partitions_added": 0}, {"partitions_added": 2 * 6}]


async def test_a_day_that_cannot_be_dropped_is_pruned_one_by_one(own_database: Database, role: Role) -> None:
    await migrate(own_database.url, "holdfast", grant=role.name)
    async with connected(own_database.url) as owner, opened_store(role.url) as store:
        await add_days(owner, DAYS)
        await store.enqueue([job(id=id_of(DAYS), key="a")])
        (leased,) = await store.claim(wants(lease=LONG))
        await store.finish([Finish(leased.lease, Transition(Move.SUCCEED))])
        async with opened_store(own_database.url, pool_size=1) as owners:
            await PostgresClock(owners).advance(timedelta(days=10))
        async with owner.transaction():
            await owner.execute("SELECT FROM holdfast.job LIMIT 1")
            assert (await pruned(store))["jobs_pruned"] == 1
            assert day_of(DAYS) in await days_with_partitions(owner)


async def test_it_may_not_move_the_clock_or_change_the_installed_schema(own_database: Database, role: Role) -> None:
    await migrate(own_database.url, "holdfast", grant=role.name)
    async with connected(role.url) as connection:
        for statement in (
            "UPDATE holdfast.clock SET moved = '1 day'",
            "DELETE FROM holdfast.migration",
            "UPDATE holdfast.installed_function SET digest = ''",
            "DROP TABLE holdfast.lease",
            "CREATE TABLE holdfast.mine ()",
            f"DROP TABLE holdfast.job_{day_of(0):%Y%m%d}",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)


async def test_security_definer_functions_are_only_for_granted_roles(own_database: Database, role: Role) -> None:
    """By default PostgreSQL lets every role call a function."""
    async with connected(own_database.url) as owner, connected(role.url) as stranger:
        rows = await owner.fetch(
            "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace AND prosecdef"
        )
        assert {row["proname"] for row in rows} == set(DEFINERS)
        assert all("search_path=pg_catalog, pg_temp" in row["proconfig"] for row in rows)
        await owner.execute(f'GRANT USAGE ON SCHEMA holdfast TO "{role.name}"')
        for function in DEFINERS:
            allowed = "SELECT has_function_privilege(oid, 'EXECUTE') FROM pg_proc WHERE proname = $1 AND prosecdef"
            assert await stranger.fetchval(allowed, function) is False
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await stranger.execute("SELECT holdfast.add_partitions(current_date + 30, 1)")


async def test_security_definer_functions_never_call_functions_of_the_caller(
    own_database: Database, role: Role
) -> None:
    """A role that puts its own functions first in its search path must not make the owner run them."""
    await migrate(own_database.url, "holdfast", grant=role.name)
    async with connected(own_database.url) as owner, connected(role.url) as connection:
        await owner.execute(f'CREATE SCHEMA trap AUTHORIZATION "{role.name}"; CREATE TABLE public.caught (who text)')
        await owner.execute(f'GRANT INSERT, SELECT ON public.caught TO "{role.name}"')
        traps = {
            "to_char(date, text)": "text",
            "format(text, text)": "text",
            "hashtextextended(text, bigint)": "bigint",
            "pg_try_advisory_xact_lock(bigint)": "boolean",
            "to_regclass(text)": "regclass",
            "day_of(uuid)": "date",
        }
        for signature, result in traps.items():
            await connection.execute(
                f"CREATE FUNCTION trap.{signature} RETURNS {result} LANGUAGE plpgsql AS "
                "$$ BEGIN INSERT INTO public.caught VALUES (current_user); RETURN NULL; END $$"
            )
        await connection.execute("CREATE TEMP TABLE pg_class (oid oid, relname name, relpartbound text)")
        await connection.execute("SET search_path = trap, pg_temp, pg_catalog")
        # Use execute, because with fetch the driver also queries the catalog.
        await connection.execute("SELECT holdfast.add_partitions((now() + interval '30 days')::date, 1)")
        await connection.execute("SELECT holdfast.prune_part('other', '1 day', gen_random_uuid(), 10)")
        await connection.execute("SELECT holdfast.look_at_day(current_date, '1 day', 10, 10)")
        await connection.execute("SELECT holdfast.guard_default(20, 1), holdfast.check_guard(), holdfast.lift_guard()")
        assert day_of(-30) in await days_with_partitions(owner)
        assert await owner.fetchval("SELECT count(*) FROM public.caught") == 0


@pytest.mark.parametrize("part", ["other; DROP TABLE holdfast.lease", "missing", 'other" CASCADE; --', "x"])
async def test_a_name_given_by_the_caller_never_becomes_a_statement(own_database: Database, part: str) -> None:
    async with connected(own_database.url) as owner:
        await owner.execute(
            "CREATE TABLE holdfast.finished_x (id uuid, finished_at timestamptz, state holdfast.job_state)"
        )
        await owner.execute("INSERT INTO holdfast.finished_x VALUES (gen_random_uuid(), '2000-01-01', 'succeeded')")
        row = await owner.fetchrow("SELECT * FROM holdfast.prune_part($1, '1 day', $2, 10)", part, id_of(9000))
        assert row is not None
        assert (row["outcome"], row["pruned"]) == ("changed", 0)
        assert await owner.fetchval("SELECT count(*) FROM holdfast.finished_x") == 1


async def test_doctor_shows_the_missing_privileges_and_the_command_that_grants_them(
    own_database: Database, role: Role
) -> None:
    await migrate(own_database.url, "holdfast", grant=role.name)
    await _execute(own_database, f'REVOKE DELETE ON holdfast.ready FROM "{role.name}"')
    lacking = await only(role.database, "privileges")
    assert lacking.level is Level.WARNING
    assert lacking.line == f"{role.name} lacks DELETE on ready: no worker can use this role"
    assert lacking.next_step == f'as the owner of the schema, run `holdfast migrate --grant "{role.name}"`'
    await migrate(own_database.url, "holdfast", grant=role.name)
    assert (await only(role.database, "privileges")).level is Level.OK
    await _execute(own_database, f'REVOKE EXECUTE ON FUNCTION holdfast.drop_day FROM "{role.name}"')
    assert (await only(role.database, "privileges")).line.startswith(f"{role.name} lacks EXECUTE on drop_day")


async def test_doctor_reports_that_the_owner_of_the_functions_may_not_change_the_tables(
    own_database: Database, role: Role
) -> None:
    """This is the state after restoring a dump as a role with another name."""
    await migrate(own_database.url, "holdfast", grant=role.name)
    await _execute(own_database, f'ALTER FUNCTION holdfast.add_partitions OWNER TO "{role.name}"')
    finding = await only(own_database, "privileges")
    assert finding.level is Level.PROBLEM
    assert finding.line.startswith(f"{role.name}, the owner of the functions, may not change the tables")


async def test_granting_to_a_missing_role_is_refused_but_the_schema_is_installed(own_database: Database) -> None:
    with pytest.raises(InvalidInput, match='grant: there is no role "stranger"'):
        await migrate(own_database.url, "holdfast", grant="stranger")
    async with opened_store(own_database.url) as store:
        assert await store.claim(wants()) == []


async def test_a_grant_to_the_owner_revokes_nothing(own_database: Database, role: Role) -> None:
    await _execute(own_database, f'GRANT CREATE ON DATABASE "{own_database.name}" TO "{role.name}"')
    await migrate(role.url, "mine", grant=role.name)
    async with opened_store(role.url, schema="mine") as store:
        await PostgresClock(store).advance(timedelta(days=3))
    assert await migrate(role.url, "mine", grant=role.name) == Applied()
    await _execute(role.database, "INSERT INTO mine.migration (version, name) VALUES (9999, 'later')")


async def _execute(database: Database, statement: str) -> None:
    async with connected(database.url) as connection:
        await connection.execute(statement)
