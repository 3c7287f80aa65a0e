"""How asyncpg's exceptions are translated: into Holdfast's errors, with a message that blames the right cause."""

import re

import pytest
from asyncpg import exceptions as pg
from asyncpg.exceptions import _base as of_driver

from holdfast.domain.errors import (
    AccessRefused,
    ConnectionLost,
    DuplicateJob,
    HoldfastError,
    InternalError,
    InvalidInput,
    SchemaMismatch,
    StoreUnavailable,
    Unstorable,
)
from holdfast.store.postgres.driver import LeaseLocked, translated, translation

_ENDED: dict[str, object] = {"severity_en": "FATAL"}


def of_server(sqlstate: str, message: str, **fields: object) -> pg.PostgresError:
    """Build the exception as the driver does from a response of the server."""
    return pg.PostgresError.new({"C": sqlstate, "M": message, "V": str(fields.get("severity_en", "ERROR"))})


CASES: list[tuple[Exception, type[HoldfastError]]] = [
    # Caused by the value alone.
    (of_server("22P02", "invalid input syntax for type json"), Unstorable),
    (of_server("22P05", "unsupported Unicode escape sequence"), Unstorable),
    (of_server("22ZZZ", "a data exception of a later release"), Unstorable),
    (of_server("23514", "new row violates check constraint"), Unstorable),
    (of_server("23505", "duplicate key value"), DuplicateJob),
    (of_driver.DataError("invalid input for query argument $3: 'connection' (a str is required)"), Unstorable),
    (pg.DataError("invalid input for query argument $3: 'connection' (a str is required)"), Unstorable),
    # Caused by a lost connection.
    (ConnectionResetError("reset by peer"), ConnectionLost),
    (pg.ConnectionDoesNotExistError("connection was closed in the middle of operation"), ConnectionLost),
    (of_server("57P01", "terminating connection due to administrator command", **_ENDED), ConnectionLost),
    (pg.InterfaceError("connection is closed"), ConnectionLost),
    (pg.InterfaceError("cannot perform operation: another operation is in progress"), ConnectionLost),
    (pg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"), ConnectionLost),
    # Caused by a server that is down, busy, full or not writable.
    (ConnectionRefusedError("refused"), StoreUnavailable),
    (TimeoutError(), StoreUnavailable),
    (of_server("57P03", "the database system is starting up", **_ENDED), StoreUnavailable),
    (of_server("40P01", "deadlock detected"), StoreUnavailable),
    (of_server("40001", "could not serialize access"), StoreUnavailable),
    (of_server("25006", "cannot execute INSERT in a read-only transaction"), StoreUnavailable),
    (of_server("53100", "could not extend file: no space left on device"), StoreUnavailable),
    (of_server("53200", "out of memory"), StoreUnavailable),
    (of_server("54000", "too many notifications in the NOTIFY queue"), StoreUnavailable),
    (of_server("55P03", "canceling statement due to lock timeout"), LeaseLocked),
    (of_server("55000", "the database is not accepting connections", **_ENDED), StoreUnavailable),
    (of_server("58030", "could not read block"), StoreUnavailable),
    (of_server("XX001", "invalid page in block"), StoreUnavailable),
    (of_server("0A000", "cached plan must not change result type"), InternalError),
    (pg.InvalidCachedStatementError("cached statement plan is invalid"), StoreUnavailable),
    (pg.OutdatedSchemaCacheError("the number of columns has changed"), StoreUnavailable),
    (pg.TargetServerAttributeNotMatched("None of the hosts match"), StoreUnavailable),
    (pg.InterfaceError("pool is closing"), StoreUnavailable),
    # Caused by the role.
    (of_server("28000", 'role "worker" is not permitted to log in', **_ENDED), AccessRefused),
    (of_server("28P01", "password authentication failed", **_ENDED), AccessRefused),
    (of_server("42501", "permission denied for table job"), AccessRefused),
    (of_server("42501", "permission denied for database", **_ENDED), AccessRefused),
    # Caused by the address, the schema or the caller's arguments.
    (of_server("3D000", 'database "nowhere" does not exist', **_ENDED), InvalidInput),
    (pg.ClientConfigurationError("invalid DSN"), InvalidInput),
    (of_server("42P01", 'relation "job" does not exist'), SchemaMismatch),
    (of_server("HF002", "kind: give 1 to 200 characters"), InvalidInput),
    # Caused by Holdfast itself.
    (of_server("42601", "syntax error"), InternalError),
    (of_server("55000", "currval of sequence is not yet defined in this session"), InternalError),
    (pg.InterfaceError("the server expects 2 arguments for this query, 1 was passed"), InternalError),
    (pg.ProtocolError("array length overflow"), InternalError),
]


@pytest.mark.parametrize(("error", "expected"), CASES, ids=lambda each: re.sub(r"\W+", " ", str(each))[:40])
def test_an_error_of_the_driver_blames_the_right_cause(error: Exception, expected: type[HoldfastError]) -> None:
    with pytest.raises(HoldfastError) as raised, translated():
        raise error
    assert type(raised.value) is expected
    assert raised.value.__cause__ is error
    assert "\n" not in str(raised.value)


def test_only_errors_about_a_value_blame_the_value() -> None:
    blamed = [error for error, _ in CASES if isinstance(translation(error), Unstorable)]
    assert {str(getattr(error, "sqlstate", ""))[:2] for error in blamed} == {"22", "23", ""}


@pytest.mark.parametrize(
    "error",
    [
        pg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        pg.InternalClientError('cannot switch to "idle" state; protocol is in the "failed" state'),
        pg.InterfaceError("cannot call Connection.fetch(): connection has been released back to the pool"),
        ConnectionError("unexpected connection_lost() call"),
    ],
)
def test_internal_errors_of_the_driver_get_a_plain_message(error: Exception) -> None:
    said = str(translation(error))
    assert said.startswith("PostgreSQL is not available: the connection ")
    assert str(error) not in said


def test_a_read_only_server_is_reported_with_the_setting_that_may_be_the_reason() -> None:
    said = str(translation(of_server("25006", "cannot execute SELECT in a read-only transaction")))
    assert "a standby" in said
    assert "default_transaction_read_only" in said


def test_a_reason_in_the_log_does_not_quote_the_value() -> None:
    sent = pg.DataError("invalid input for query argument $10: 'a secret' (a str is required)")
    stored = of_server("22P05", "unsupported Unicode escape sequence")
    stored.detail = "a secret cannot be converted to text."
    for error in (sent, stored):
        found = translation(error)
        assert isinstance(found, Unstorable)
        assert "secret" in str(found)
        assert "secret" not in found.reason


def test_an_unrelated_error_is_not_translated() -> None:
    assert translation(RuntimeError("a bug")) is None
    assert translation(StoreUnavailable("said already")) is None
