"""asyncpg's exceptions turned into Holdfast's, here and nowhere else.

The question for each is whom to blame: the value that was given, the caller, the role, the schema, an outage, or a bug.
Only an error of the SQLSTATE classes 22 and 23 can be a value's fault.
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
_AWAY = "PostgreSQL is not available: "
_UNUSABLE = re.compile(r"clos|connect|operation|protocol|state|waiter")
"""What asyncpg says of a connection that is of no more use: it has one class for that and for mistakes of a program."""
_CHANGED = "the schema was changed while a connection was open; the next try sees the new one"
_POLICY = "ExecWithCheckOptions"
"""Where PostgreSQL finds that row level security does not let a row in, with the code of a missing grant."""
_ARGUMENT = re.compile(r"invalid input for query (argument \$\d+)")


class LeaseLocked(StoreUnavailable):
    """A statement gave up waiting for a row that another transaction holds."""


class _Translated:
    """A class, because a generator takes as long as all the rest of the way to the driver."""

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
    """Driver errors as Holdfast's own."""
    return _TRANSLATED


def translation(error: BaseException) -> HoldfastError | None:
    """The error of Holdfast's that a driver's error is; None: it is not the driver's."""
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
    return (ConnectionLost if isinstance(error, _CUT) else StoreUnavailable)(f"{_AWAY}{_line(error)}")


def _of_server(error: pg.PostgresError) -> HoldfastError:
    sqlstate = getattr(error, "sqlstate", None) or ""
    match error:
        case pg.UniqueViolationError():
            taken = (error.detail or str(error)).rstrip(".")
            return DuplicateJob(f"{taken}; use a new id, or a key if it is the same work")
        case _ if isinstance(error, _MISSING_SCHEMA):
            return SchemaMismatch(f"the database has no matching Holdfast schema ({error}); run `holdfast migrate`")
        case pg.InvalidSQLStatementNameError() | pg.DuplicatePreparedStatementError():
            return InvalidInput(
                f"{_line(error)}: a pooler that bears no prepared statements is before PostgreSQL; leave `pgbouncer=0` "
                "out of its address"
            )
        case pg.ProtocolViolationError() if "startup parameter" in str(error):
            # PgBouncer's way to refuse what it does not know, with the code of a connection that is lost.
            return InvalidInput(f"the pooler refused: {_line(error)}; leave that out of the store's address")
        case pg.InvalidCatalogNameError():
            return InvalidInput(
                f"PostgreSQL refused: {error}; create it with createdb, or name another one in the store's address"
            )
        case pg.InvalidAuthorizationSpecificationError():
            return AccessRefused(
                f"PostgreSQL refused the login: {_line(error)}; see the role, its password, pg_hba.conf"
            )
        case pg.InsufficientPrivilegeError() if error.server_source_function == _POLICY:
            return InvalidInput(f"PostgreSQL refused: {_line(error)}")
        case pg.InsufficientPrivilegeError():
            return AccessRefused(f"PostgreSQL refused: {_line(error)}; grant it with `holdfast migrate --grant ROLE`")
        case pg.LockNotAvailableError():
            return LeaseLocked(f"a row or table is locked by another transaction: {_line(error)}")
        case pg.InvalidCachedStatementError():
            return StoreUnavailable(_CHANGED)
        case _ if isinstance(error, PASSING) or error.severity_en in ("FATAL", "PANIC"):
            # A database that accepts no connections has the code of a statement's mistake, but it ends the connection.
            return _outage(error)
    if sqlstate[:2] in ("22", "23"):
        return _unstorable(error)
    if sqlstate == "HF002":
        return InvalidInput(str(error))
    return InternalError(
        f"PostgreSQL refused what Holdfast asked for: {_line(error)} (SQLSTATE {sqlstate}); nothing was done"
    )


def _unstorable(error: Exception) -> Unstorable:
    """The driver quotes a value that it cannot send, and a log may not."""
    unsent = _ARGUMENT.search(str(error))
    return Unstorable(f"PostgreSQL refused: {error}", f"{unsent[1]} cannot be sent" if unsent else _line(error))


def _of_driver(error: pg.InterfaceError | pg.InternalClientError) -> HoldfastError:
    """Never in asyncpg's own words about itself, which help nobody who uses a store."""
    match error:
        case pg.ClientConfigurationError():
            return InvalidInput(f"PostgreSQL refused: {error}")
        case ValueError():
            return _unstorable(error)
        case pg.TargetServerAttributeNotMatched():
            return StoreUnavailable(
                f"{_AWAY}it is not as the address asks (target_session_attrs): a standby that may be promoted soon"
            )
        case pg.OutdatedSchemaCacheError():
            return StoreUnavailable(_CHANGED)
        case pg.InterfaceError() if "pool is" in str(error):
            return StoreUnavailable("the store is closed, or is being closed; open() opens it again")
        case pg.InterfaceError() if _UNUSABLE.search(str(error)):
            return ConnectionLost(f"{_AWAY}the connection is closed")
        case pg.InternalClientError() if _UNUSABLE.search(str(error)):
            return ConnectionLost(
                f"{_AWAY}the connection was lost in the middle of a request, which may have taken effect or not"
            )
    return InternalError(f"asyncpg refused what Holdfast asked for: {type(error).__name__}: {_line(error)}")


def summary(error: BaseException) -> str:
    """What a driver's error says, in a line."""
    found = translation(error)
    return _line(error) if found is None else str(found).removeprefix(_AWAY)


def _line(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
