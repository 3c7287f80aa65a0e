"""What becomes of asyncpg's exceptions, and what a connection is told."""

from datetime import UTC, datetime, timedelta

import pytest
from asyncpg import exceptions as pg

from holdfast.errors import StoreUnavailable
from holdfast.store.postgres.driver import translated
from holdfast.store.postgres.reader import PostgresReader
from holdfast.store.postgres.store import PostgresClock
from tests.databases import Database, connected, opened_store
from tests.store_contract.steps import job


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset by peer"),
        pg.InterfaceError("connection is closed"),
        pg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        pg.AdminShutdownError("terminating connection due to administrator command"),
        pg.CannotConnectNowError("the database system is starting up"),
        pg.DeadlockDetectedError("deadlock detected"),
    ],
)
def test_what_a_lost_connection_can_throw_is_a_passing_outage(error: Exception) -> None:
    with pytest.raises(StoreUnavailable), translated():
        raise error


def test_a_statement_at_the_wrong_moment_is_not_taken_for_an_outage() -> None:
    with pytest.raises(pg.ObjectNotInPrerequisiteStateError), translated():
        raise pg.ObjectNotInPrerequisiteStateError("currval of sequence is not yet defined in this session")


def test_a_mistake_in_the_program_is_not_taken_for_an_outage() -> None:
    with pytest.raises(pg.InterfaceError), translated():
        raise pg.InterfaceError("the server expects 2 arguments for this query, 1 was passed")


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_a_day_has_24_hours_wherever_the_server_is(database: Database) -> None:
    """In Berlin the one after this moment has 23."""
    moment = datetime(2030, 3, 30, 12, tzinfo=UTC)
    async with connected(database.url) as connection:
        await connection.execute(f"ALTER DATABASE \"{database.name}\" SET timezone = 'Europe/Berlin'")
    try:
        async with opened_store(database.url) as store, store.connection_of_its_own() as other:
            await PostgresClock(store).freeze(moment)
            (enqueued,) = await store.enqueue([job(delay=timedelta(days=1))])
            found = await PostgresReader(store).get(enqueued.id)
            assert found is not None
            assert found.run_at == moment + timedelta(days=1)
            assert await other.fetchval("SHOW timezone") == "UTC"
    finally:
        async with connected(database.url) as connection:
            await connection.execute(f'ALTER DATABASE "{database.name}" RESET timezone')
