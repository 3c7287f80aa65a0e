"""Behind PgBouncer in transaction mode: Holdfast detects it, and bypasses it where it needs a session."""

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
from holdfast_lab.faults.proxy import Proxy
from tests.bouncers import bounced, needs_pgbouncer
from tests.databases import Database, connected, opened_store
from tests.worker.harness import until

UNKNOWN = Lease(UUID(int=1), 1, UUID(int=2))

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend to be behind a pooler, which is recognized only by a process ID that the server does not have."""
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _: -1)


@pytest.mark.parametrize(("said", "pooled"), [("", None), ("pgbouncer=1", True), ("pgbouncer=0", False)])
def test_an_address_can_declare_a_pooler(said: str, pooled: bool | None, server: object) -> None:
    address = Address.parse(f"postgresql://a@h/d?{said}")
    assert address.pooled is pooled
    assert "pgbouncer" not in address.dsn
    assert address.statement_cache_size == (0 if pooled else 100)


async def test_a_direct_connection_is_not_a_pooler(database: Database) -> None:
    async with opened_store(database.url) as store:
        assert store.url == database.url


async def test_a_pooler_is_detected(database: Database, pretended: None) -> None:
    async with opened_store(database.url) as store:
        assert store.url == through_pooler(database.url)


async def test_an_address_that_denies_a_pooler_is_believed(database: Database, pretended: None) -> None:
    async with opened_store(f"{database.url}&pgbouncer=0") as store:
        assert store.url == f"{database.url}&pgbouncer=0"


async def test_listening_through_a_pooler_is_refused(database: Database, pretended: None) -> None:
    with pytest.raises(StoreUnavailable, match="loses LISTEN"):
        await open_session(database.url)
    (await open_session(f"{database.url}&pgbouncer=0")).terminate()


async def test_sessions_use_the_direct_url(database: Database, pretended: None) -> None:
    store = PostgresStore(database.url, direct_url=f"{database.url}&application_name=direct&pgbouncer=0")
    await store.open()
    try:
        async with store.connection_of_its_own() as connection:
            assert await connection.fetchval("SHOW application_name") == "direct"
        async with store.acquired() as connection:
            assert await connection.fetchval("SHOW application_name") == "holdfast"
    finally:
        await store.close()


async def test_without_a_pooler_the_direct_url_is_not_used(database: Database) -> None:
    store = PostgresStore(database.url, direct_url=f"{database.url}&application_name=direct")
    async with store.connection_of_its_own() as connection:
        assert await connection.fetchval("SHOW application_name") == "holdfast"


async def test_an_unreachable_direct_url_is_not_used(database: Database, pretended: None) -> None:
    store = PostgresStore(through_pooler(database.url), direct_url="postgresql://postgres@127.0.0.1:1/nowhere")
    async with store.connection_of_its_own() as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def test_a_direct_url_that_returns_with_the_server_is_used(database: Database) -> None:
    """After a failover, the pooler held its client until a server was available again."""
    with Proxy.before(database.url) as past, Proxy.before(database.url) as pooler:
        past.refuse()
        pooler.delay(0.1)
        store = PostgresStore(through_pooler(pooler.url), direct_url=f"{past.url}?application_name=direct&pgbouncer=0")
        opening = asyncio.ensure_future(store.open_connection())
        await until(lambda: pooler.connections, "it is asked")
        past.flow()
        connection = await opening
        try:
            assert await connection.fetchval("SHOW application_name") == "direct"
            await until(lambda: not pooler.connections, "it is left")
        finally:
            connection.terminate()


async def pooler_found(url: str, direct_url: str | None) -> list[Finding]:
    return [each for each in await examine(url, direct_url=direct_url) if each.check == "pooler"]


async def test_doctor_reports_a_pooler(database: Database, pretended: None) -> None:
    (unset,) = await pooler_found(database.url, None)
    assert unset.level is Level.WARNING
    assert "HOLDFAST_LISTEN_URL" in str(unset.next_step)
    (wrong,) = await pooler_found(database.url, database.url)
    assert wrong.level is Level.WARNING
    assert "loses LISTEN" in wrong.line
    (right,) = await pooler_found(database.url, f"{database.url}&pgbouncer=0")
    assert right.level is Level.OK


async def test_doctor_reports_no_problem_without_a_pooler(database: Database) -> None:
    (finding,) = await pooler_found(database.url, None)
    assert finding.level is Level.OK


@needs_pgbouncer
async def test_pgbouncer_is_detected_and_many_clients_share_its_connections(database: Database, tmp_path: Path) -> None:
    with bounced(database.url, tmp_path) as bouncer:
        await asyncio.gather(*(enqueue_some(bouncer.url) for _ in range(4)))
        async with opened_store(bouncer.url) as store:
            assert store.url == through_pooler(bouncer.url)
            async with store.acquired() as connection:
                assert await connection.fetchval("SHOW application_name") == "holdfast"
        (finding,) = await pooler_found(bouncer.url, database.url)
        assert finding.level is Level.OK
    async with connected(database.url) as connection:
        assert await connection.fetchval("SELECT count(*) FROM holdfast.ready") == 4 * 20


async def enqueue_some(url: str) -> None:
    async with Holdfast(url) as app:
        for _ in range(20):
            await app.enqueue("work", {}, delay=timedelta(hours=1))


@pytest.mark.parametrize("error", [pg.InvalidSQLStatementNameError, pg.DuplicatePreparedStatementError])
def test_wrongly_denying_a_pooler_is_explained_in_the_error(error: type[Exception], server: object) -> None:
    found = translation(error('prepared statement "a" is not as it should be'))
    assert isinstance(found, InvalidInput)
    assert "remove `pgbouncer=0`" in str(found)


@needs_pgbouncer
async def test_parameters_that_pgbouncer_does_not_know_are_a_mistake(database: Database, tmp_path: Path) -> None:
    with bounced(database.url, tmp_path) as bouncer, pytest.raises(InvalidInput, match="lock_timeout; remove that"):
        await migrate(f"{bouncer.url}?lock_timeout=100", "holdfast")


@needs_pgbouncer
async def test_sessions_through_pgbouncer_are_read_committed_without_a_setting(
    database: Database, tmp_path: Path
) -> None:
    """`pgbouncer=0` stands for session pooling, but PgBouncer rejects the setting anyway."""
    with bounced(database.url, tmp_path) as bouncer:
        for _ in range(2):
            connection = await open_session(f"{bouncer.url}?pgbouncer=0")
            assert await connection.execute("SELECT") == "SELECT 1"
            await connection.close()


@needs_pgbouncer
async def test_migrations_work_through_pgbouncer(empty_database: Database, tmp_path: Path) -> None:
    with bounced(empty_database.url, tmp_path) as bouncer:
        await migrate(bouncer.url, "holdfast")
        assert await migrate(bouncer.url, "holdfast") == Applied()


@needs_pgbouncer
async def test_leases_are_renewed_while_all_connections_of_pgbouncer_are_in_use(
    database: Database, tmp_path: Path
) -> None:
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
