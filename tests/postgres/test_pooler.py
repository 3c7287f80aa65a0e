"""Behind PgBouncer in transaction mode: found out, and gone past where a session is needed."""

import asyncio
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from asyncpg import exceptions as pg

from holdfast import Holdfast
from holdfast.doctor.doctor import examine
from holdfast.doctor.findings import Finding, Level
from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.domain.job import Lease
from holdfast.store.contract import Fenced, Renewal
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import Address, open_session, through_pooler, translation
from holdfast.store.postgres.migrate import Applied
from holdfast.store.postgres.store import PostgresStore
from tests.databases import Database, connected, opened_store
from tests.postgres.bouncers import bounced, needs_pgbouncer

UNKNOWN = Lease(UUID(int=1), 1, UUID(int=2))

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """To tell its clients a number that is no process of the server's is all by which a pooler shows."""
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _: -1)


@pytest.mark.parametrize(("said", "pooled"), [("", None), ("pgbouncer=1", True), ("pgbouncer=0", False)])
def test_an_address_may_say_whether_there_is_a_pooler(said: str, pooled: bool | None, server: object) -> None:
    address = Address.parse(f"postgresql://a@h/d?{said}")
    assert address.pooled is pooled
    assert "pgbouncer" not in address.dsn
    assert address.statement_cache_size == (0 if pooled else 100)


async def test_a_server_of_its_own_is_no_pooler(database: Database) -> None:
    async with opened_store(database.url) as store:
        assert store.url == database.url


async def test_a_pooler_is_found_out(database: Database, pretended: None) -> None:
    async with opened_store(database.url) as store:
        assert store.url == through_pooler(database.url)


async def test_who_says_that_there_is_none_is_believed(database: Database, pretended: None) -> None:
    async with opened_store(f"{database.url}&pgbouncer=0") as store:
        assert store.url == f"{database.url}&pgbouncer=0"


async def test_nobody_listens_where_it_would_be_lost(database: Database, pretended: None) -> None:
    with pytest.raises(StoreUnavailable, match="loses LISTEN"):
        await open_session(database.url)
    (await open_session(f"{database.url}&pgbouncer=0")).terminate()


async def test_a_way_past_it_is_taken_by_those_who_need_a_session(database: Database, pretended: None) -> None:
    store = PostgresStore(database.url, direct_url=f"{database.url}&application_name=direct&pgbouncer=0")
    await store.open()
    try:
        async with store.connection_of_its_own() as connection:
            assert await connection.fetchval("SHOW application_name") == "direct"
        async with store.acquired() as connection:
            assert await connection.fetchval("SHOW application_name") == ""
    finally:
        await store.close()


async def test_without_a_pooler_nobody_goes_past_it(database: Database) -> None:
    store = PostgresStore(database.url, direct_url=f"{database.url}&application_name=direct")
    async with store.connection_of_its_own() as connection:
        assert await connection.fetchval("SHOW application_name") == ""


async def test_a_way_past_it_that_leads_nowhere_is_not_taken(database: Database, pretended: None) -> None:
    store = PostgresStore(through_pooler(database.url), direct_url="postgresql://postgres@127.0.0.1:1/nowhere")
    async with store.connection_of_its_own() as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def pooler_found(url: str, direct_url: str | None) -> list[Finding]:
    return [each for each in await examine(url, direct_url=direct_url) if each.check == "pooler"]


async def test_doctor_has_a_line_about_it(database: Database, pretended: None) -> None:
    (unset,) = await pooler_found(database.url, None)
    assert unset.level is Level.WARNING
    assert "HOLDFAST_LISTEN_URL" in str(unset.next_step)
    (wrong,) = await pooler_found(database.url, database.url)
    assert wrong.level is Level.WARNING
    assert "loses LISTEN" in wrong.line
    (right,) = await pooler_found(database.url, f"{database.url}&pgbouncer=0")
    assert right.level is Level.OK


async def test_doctor_is_content_where_there_is_none(database: Database) -> None:
    (finding,) = await pooler_found(database.url, None)
    assert finding.level is Level.OK


@needs_pgbouncer
async def test_a_real_one_is_found_out_and_many_clients_share_its_connections(
    database: Database, tmp_path: Path
) -> None:
    with bounced(database.url, tmp_path) as bouncer:
        await asyncio.gather(*(enqueue_some(bouncer.url) for _ in range(4)))
        async with opened_store(bouncer.url) as store:
            assert store.url == through_pooler(bouncer.url)
        (finding,) = await pooler_found(bouncer.url, database.url)
        assert finding.level is Level.OK
    async with connected(database.url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM holdfast.ready") == 4 * 20


async def enqueue_some(url: str) -> None:
    async with Holdfast(url) as app:
        for _ in range(20):
            await app.enqueue("work", {}, delay=timedelta(hours=1))


@pytest.mark.parametrize("error", [pg.InvalidSQLStatementNameError, pg.DuplicatePreparedStatementError])
def test_who_wrongly_says_that_there_is_none_is_told(error: type[Exception], server: object) -> None:
    found = translation(error('prepared statement "a" is not as it should be'))
    assert isinstance(found, InvalidInput)
    assert "leave `pgbouncer=0` out" in str(found)


@needs_pgbouncer
async def test_what_it_does_not_know_in_an_address_is_a_mistake(database: Database, tmp_path: Path) -> None:
    with bounced(database.url, tmp_path) as bouncer, pytest.raises(InvalidInput, match="lock_timeout; leave that out"):
        await migrate(f"{bouncer.url}?lock_timeout=100", "holdfast")


@needs_pgbouncer
async def test_a_session_through_it_is_read_committed_without_a_setting(database: Database, tmp_path: Path) -> None:
    """Who says `pgbouncer=0` pools sessions, and is refused the setting all the same."""
    with bounced(database.url, tmp_path) as bouncer:
        for _ in range(2):
            connection = await open_session(f"{bouncer.url}?pgbouncer=0")
            assert await connection.execute("SELECT") == "SELECT 1"
            await connection.close()


@needs_pgbouncer
async def test_migrations_go_through_it(empty_database: Database, tmp_path: Path) -> None:
    with bounced(empty_database.url, tmp_path) as bouncer:
        await migrate(bouncer.url, "holdfast")
        assert await migrate(bouncer.url, "holdfast") == Applied()


@needs_pgbouncer
async def test_leases_are_renewed_while_all_its_connections_are_in_use(database: Database, tmp_path: Path) -> None:
    with bounced(database.url, tmp_path, pool=1) as bouncer:
        store = PostgresStore(bouncer.url, direct_url=database.url)
        await store.open()
        try:
            async with store.acquired() as connection, connection.transaction():
                await connection.execute("SELECT")
                async with store.renewer() as renewer, asyncio.timeout(5):
                    (answer,) = await renewer.renew([Renewal(UNKNOWN, timedelta(seconds=1), None)])
                    assert answer.fenced is Fenced.STALE
        finally:
            await store.close()
