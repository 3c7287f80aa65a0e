"""The edge to asyncpg: opening connections, and its exceptions turned into Holdfast's, here and nowhere else."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
from asyncpg import exceptions as pg

from holdfast.errors import DuplicateJob, HoldfastError, InvalidInput, SchemaMismatch, StoreUnavailable

COMMAND_SECONDS = 30.0
CONNECT_SECONDS = 5.0

_PASSING = (
    OSError,
    TimeoutError,
    pg.PostgresConnectionError,
    pg.ConnectionDoesNotExistError,
    pg.OperatorInterventionError,
    pg.IdleInTransactionSessionTimeoutError,
    pg.InsufficientResourcesError,
    pg.TransactionRollbackError,
    pg.ReadOnlySQLTransactionError,
    pg.InternalServerError,
    pg.PostgresSystemError,
    # asyncpg's own state after a connection died in the middle of an exchange.
    pg.InternalClientError,
)
_MISSING_SCHEMA = (
    pg.UndefinedTableError,
    pg.InvalidSchemaNameError,
    pg.UndefinedFunctionError,
    pg.UndefinedObjectError,
)
_REFUSED = (
    pg.DataError,
    pg.InvalidAuthorizationSpecificationError,
    pg.InsufficientPrivilegeError,
    pg.ClientConfigurationError,
)


# PostgreSQL counts the days of an interval by the session's time zone, where one may have 23 hours.
_SESSION = {"timezone": "UTC"}


class LeaseLocked(StoreUnavailable):
    """A statement gave up waiting for a row that another transaction holds."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Driver errors as the caller's mistake, a passing outage, or a schema that is not there."""
    try:
        yield
    except HoldfastError:
        raise
    except pg.UniqueViolationError as error:
        raise DuplicateJob(
            f"{(error.detail or str(error)).rstrip('.')}; use a new id, or a key if it is the same work"
        ) from error
    except _MISSING_SCHEMA as error:
        raise SchemaMismatch(
            f"the database has no matching Holdfast schema ({error}); run `holdfast migrate`"
        ) from error
    except pg.InvalidCatalogNameError as error:
        raise InvalidInput(
            f"PostgreSQL refused: {error}; create it with createdb, or name another one in the store's address"
        ) from error
    except _REFUSED as error:
        raise InvalidInput(f"PostgreSQL refused: {error}") from error
    except pg.LockNotAvailableError as error:
        raise LeaseLocked(f"a row is locked by another transaction: {_line(error)}") from error
    except pg.InterfaceError as error:
        # asyncpg uses this class for a lost connection as well as for a call that can never succeed.
        if "clos" not in str(error) and "connection" not in str(error):
            raise
        raise StoreUnavailable(f"PostgreSQL is not available: {_line(error)}") from error
    except _PASSING as error:
        raise StoreUnavailable(f"PostgreSQL is not available: {_line(error)}") from error
    except pg.PostgresError as error:
        if getattr(error, "sqlstate", "") == "HF002":
            raise InvalidInput(str(error)) from error
        # A statement's mistake has the same code as a database that lets nobody in; the latter ends the connection.
        if isinstance(error, pg.ObjectNotInPrerequisiteStateError) and error.severity_en == "FATAL":
            raise StoreUnavailable(f"PostgreSQL is not available: {_line(error)}") from error
        raise


@dataclass(frozen=True, slots=True)
class Address:
    """What asyncpg is told. `?pgbouncer=1` turns the statement cache off, which transaction pooling cannot bear."""

    dsn: str
    statement_cache_size: int

    @classmethod
    def parse(cls, url: str) -> "Address":
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
            _ = parts.port
        except ValueError:
            # The reason would quote a part of the address, and that may be a part of the password.
            raise InvalidInput(
                "store: the PostgreSQL address cannot be read; write postgresql://user@host:port/database and "
                "percent-encode special characters of the password"
            ) from None
        pooled = options.pop("pgbouncer", "") not in ("", "0", "false")
        return cls(urlunsplit(parts._replace(query=urlencode(options))), 0 if pooled else 100)


async def open_pool(url: str, size: int) -> "asyncpg.Pool[asyncpg.Record]":
    address = Address.parse(url)
    with translated():
        return await asyncpg.create_pool(
            address.dsn,
            min_size=1,
            max_size=size,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            statement_cache_size=address.statement_cache_size,
            server_settings=_SESSION,
        )


async def open_connection(url: str) -> "asyncpg.Connection[asyncpg.Record]":
    address = Address.parse(url)
    with translated():
        return await asyncpg.connect(
            address.dsn,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            statement_cache_size=address.statement_cache_size,
            server_settings=_SESSION,
        )


def _line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
