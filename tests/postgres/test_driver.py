"""What becomes of asyncpg's exceptions."""

import pytest
from asyncpg import exceptions as pg

from holdfast.errors import StoreUnavailable
from holdfast.store.postgres.driver import translated


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
