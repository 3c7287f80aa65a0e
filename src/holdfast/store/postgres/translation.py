"""Translates asyncpg's exceptions into Holdfast's, here and nowhere else.

For each error, the question is what caused it: a value, the caller, the role, the schema, an outage, or a bug.
Only errors in the SQLSTATE classes 22 and 23 can be caused by a value.
"""

import re
from contextlib import AbstractContextManager
from types import TracebackType

from asyncpg import exceptions as pg

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

PASSING = (
    OSError,
    TimeoutError,
    pg.PostgresConnectionError,
    pg.ConnectionDoesNotExistError,
    pg.OperatorInterventionError,
    pg.IdleInTransactionSessionTimeoutError,
    pg.InsufficientResourcesError,
    pg.ProgramLimitExceededError,
    pg.TransactionRollbackError,
    pg.ReadOnlySQLTransactionError,
    pg.InternalServerError,
    pg.PostgresSystemError,
    pg.ConfigFileError,
)
_CUT = (
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    pg.ConnectionDoesNotExistError,
    pg.ConnectionFailureError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
)
_MISSING_SCHEMA = (
    pg.UndefinedTableError,
    pg.InvalidSchemaNameError,
    pg.UndefinedFunctionError,
    pg.UndefinedObjectError,
)
AWAY = "PostgreSQL is not available"
_UNUSABLE = re.compile(r"clos|connect|operation|protocol|state|waiter")
"""What asyncpg says about an unusable connection. It uses the same class for that and for programming mistakes."""
_HUNG_UP = "unexpected connection_lost() call"
_CHANGED = "the schema was changed while a connection was open; the next attempt sees the new one"
_POLICY = "ExecWithCheckOptions"
"""The PostgreSQL function that rejects a row under row level security, with the error code of a missing grant."""
_ARGUMENT = re.compile(r"invalid input for query (argument \$\d+)")


class LeaseLocked(StoreUnavailable):
    """A statement gave up waiting for a row that another transaction holds."""


class _Translated:
    """A class, because a generator would double the time that a call takes to reach the driver."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = None if error is None else translation(error)
        if found is not None:
            raise found from error


_TRANSLATED = _Translated()


def translated() -> AbstractContextManager[None]:
    """Turn driver errors into Holdfast's own."""
    return _TRANSLATED


def translation(error: BaseException) -> HoldfastError | None:
    """Return Holdfast's error for a driver's error, or None if it is not one."""
    match error:
        case HoldfastError():
            return None
        case pg.PostgresError():
            return _of_server(error)
        case pg.InterfaceError() | pg.InternalClientError():
            return _of_driver(error)
        case _ if isinstance(error, PASSING):
            return _outage(error)
    return None


def _outage(error: BaseException) -> StoreUnavailable:
    if str(error) == _HUNG_UP:
        return StoreUnavailable(f"{AWAY}: the connection was closed while opening, as by a proxy without a primary")
    return (ConnectionLost if isinstance(error, _CUT) else StoreUnavailable)(f"{AWAY}: {_line(error)}")


def _of_server(error: pg.PostgresError) -> HoldfastError:
    sqlstate = getattr(error, "sqlstate", None) or ""
    match error:
        case pg.UniqueViolationError():
            taken = (error.detail or str(error)).rstrip(".")
            return DuplicateJob(f"{taken}; use a new id, or a key if it is the same work")
        case _ if isinstance(error, _MISSING_SCHEMA):
            return SchemaMismatch(
                f"the database has no matching Holdfast schema ({error}); run `holdfast migrate` with --store or --app"
            )
        case pg.InvalidSQLStatementNameError() | pg.DuplicatePreparedStatementError():
            return InvalidInput(
                f"{_line(error)}: a pooler in front of PostgreSQL does not support prepared statements; remove "
                "`pgbouncer=0` from its address"
            )
        case pg.ProtocolViolationError() if "startup parameter" in str(error):
            # How PgBouncer refuses an unknown parameter, with the error code of a lost connection.
            return InvalidInput(f"the pooler refused: {_line(error)}; remove that from the store's address")
        case pg.InvalidCatalogNameError():
            return InvalidInput(
                f"PostgreSQL refused: {error}; create it with createdb, or name another one in the store's address"
            )
        case pg.InvalidAuthorizationSpecificationError():
            return AccessRefused(
                f"PostgreSQL refused the login: {_line(error)}; check the role, its password and pg_hba.conf"
            )
        case pg.InsufficientPrivilegeError() if error.server_source_function == _POLICY:
            return InvalidInput(f"PostgreSQL refused: {_line(error)}")
        case pg.InsufficientPrivilegeError():
            return AccessRefused(f"PostgreSQL refused: {_line(error)}; grant it with `holdfast migrate --grant ROLE`")
        case pg.LockNotAvailableError():
            return LeaseLocked(f"a row or table is locked by another transaction: {_line(error)}")
        case pg.ReadOnlySQLTransactionError():
            return StoreUnavailable(
                f"{AWAY}: {_line(error)}; it is a standby, or default_transaction_read_only is on for the role, the "
                "database or the server"
            )
        case pg.InvalidCachedStatementError():
            return StoreUnavailable(_CHANGED)
        case _ if isinstance(error, PASSING) or error.severity_en in ("FATAL", "PANIC"):
            # A database that accepts no connections sends the code of a bad statement, but ends the connection.
            return _outage(error)
    if sqlstate[:2] in ("22", "23"):
        return _unstorable(error)
    if sqlstate == "HF002":
        return InvalidInput(str(error))
    return InternalError(
        f"PostgreSQL refused a statement from Holdfast: {_line(error)} (SQLSTATE {sqlstate}); nothing was done"
    )


def _unstorable(error: Exception) -> Unstorable:
    """Keep values out of the log: the driver quotes a value that it cannot send."""
    unsent = _ARGUMENT.search(str(error))
    return Unstorable(f"PostgreSQL refused: {error}", f"{unsent[1]} cannot be sent" if unsent else _line(error))


def _of_driver(error: pg.InterfaceError | pg.InternalClientError) -> HoldfastError:
    """Avoid asyncpg's words about its own internals, which do not help the users of a store."""
    match error:
        case pg.ClientConfigurationError():
            return InvalidInput(f"PostgreSQL refused: {error}")
        case ValueError():
            return _unstorable(error)
        case pg.TargetServerAttributeNotMatched():
            return StoreUnavailable(
                f"{AWAY}: it does not match target_session_attrs in the address; a standby may be promoted soon"
            )
        case pg.OutdatedSchemaCacheError():
            return StoreUnavailable(_CHANGED)
        case pg.InterfaceError() if "pool is" in str(error):
            return StoreUnavailable("the store is closed or closing; call open() to open it again")
        case pg.InterfaceError() if _UNUSABLE.search(str(error)):
            return ConnectionLost(f"{AWAY}: the connection is closed")
        case pg.InternalClientError() if _UNUSABLE.search(str(error)):
            return ConnectionLost(
                f"{AWAY}: the connection was lost in the middle of a request, which may or may not have taken effect"
            )
    return InternalError(f"asyncpg refused a request from Holdfast: {type(error).__name__}: {_line(error)}")


def summary(error: BaseException) -> str:
    """Return a driver's error in one line."""
    found = translation(error)
    return _line(error) if found is None else str(found).removeprefix(f"{AWAY}: ")


def _line(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
