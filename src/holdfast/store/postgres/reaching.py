"""Errors of the first connection to a server. They name the server, because its address may be the mistake."""

from collections.abc import Iterator
from contextlib import contextmanager

from asyncpg import exceptions as pg

from holdfast.domain.errors import CHECK_SERVER, ConnectionLost, HoldfastError, StoreUnavailable, unforeseen
from holdfast.domain.tracebacks import is_debugging
from holdfast.store.postgres.address import Address, place_and_database
from holdfast.store.postgres.translation import AWAY


@contextmanager
def reaching(url: str) -> Iterator[None]:
    """Raise the errors of the block without the driver's traceback, which says no more. At log level DEBUG it stays."""
    try:
        yield
    except HoldfastError as error:
        if unforeseen(error) is not None:
            raise
        raise _named(error, url) from (error.__cause__ if is_debugging() else None)


def _named(error: HoldfastError, url: str) -> HoldfastError:
    if type(error) not in (StoreUnavailable, ConnectionLost) or not str(error).startswith(AWAY):
        return error
    hosts = Address.parse(url).hosts
    # With several hosts, the message has named each of them.
    where = f" at {place_and_database(hosts[0])}" if len(hosts) == 1 else ""
    has_answered = isinstance(error.__cause__, pg.PostgresError)
    return type(error)(f"{AWAY}{where}{str(error).removeprefix(AWAY)}{'' if has_answered else CHECK_SERVER}")
