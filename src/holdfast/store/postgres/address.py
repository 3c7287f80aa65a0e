"""Parses a PostgreSQL address: its hosts, and whether a pooler sits in front of them."""

import os
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from holdfast.domain.address import each_host, without_driver, without_password
from holdfast.domain.errors import InvalidInput

_WRITABLE = {"target_session_attrs": "read-write"}


@dataclass(frozen=True, slots=True)
class Address:
    """What asyncpg needs to connect. `?pgbouncer=1` says that a pooler sits in front of the server. `?pgbouncer=0` says
    that none does, or one that supports prepared statements and sessions. Without either, the first connection finds
    out (`is_pooled`).
    """

    dsn: str = field(repr=False)
    pooled: bool | None
    hosts: tuple[str, ...] = field(default=(), repr=False)
    """The address of each host. With several, the writable one is used unless the address says otherwise."""

    @property
    def names_application(self) -> bool:
        return "application_name" in dict(parse_qsl(urlsplit(self.dsn).query))

    @property
    def statement_cache_size(self) -> int:
        """0 with transaction pooling, because a statement prepared on one connection would be used on another."""
        return 0 if self.pooled else 100

    @classmethod
    def parse(cls, url: str) -> Self:
        url = without_driver(url)
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
            is_one_of_several = len(each_host(url)) > 1
        except ValueError:
            # The error would quote part of the address, which may be part of the password.
            raise InvalidInput(
                "store: the PostgreSQL address cannot be read; write postgresql://user@host:port/database, list "
                "several hosts as host:port,host:port, and percent-encode special characters in the password"
            ) from None
        said = options.pop("pgbouncer", "")
        pooled = None if not said else said not in ("0", "false")
        if is_one_of_several:
            options = _WRITABLE | options
        dsn = urlunsplit(parts._replace(query=urlencode(options)))
        return cls(dsn, pooled, each_host(dsn))


def through_pooler(url: str) -> str:
    """Return the address, marked as leading through a pooler."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True)) | {"pgbouncer": "1"}
    return urlunsplit(parts._replace(query=urlencode(options)))


def plain(url: str) -> str:
    """Return the address for asyncpg and psycopg: libpq's form, without the option that only Holdfast knows."""
    place, _, query = without_driver(url).partition("?")
    options = [option for option in query.split("&") if option and not option.startswith("pgbouncer=")]
    return "?".join([place, "&".join(options)] if options else [place])


def place_of(dsn: str) -> str:
    """Return the host and port of an address with one host, without user and password."""
    # First, because an unquoted /, ? or # in a password would end it too early, and its start would look like a port.
    parts = urlsplit(without_password(dsn))
    options = dict(parse_qsl(parts.query))
    return parts.netloc.rpartition("@")[2] or options.get("host", "localhost")


def place_and_database(dsn: str) -> str:
    """Return host, port and database of an address with one host. What it leaves out comes from the environment."""
    parts = urlsplit(without_password(dsn))
    options = {name: value for name, value in parse_qsl(parts.query) if value}
    place = parts.netloc.rpartition("@")[2]
    if not place:
        place = options.get("host") or os.environ.get("PGHOST") or "localhost"
    if parts.port is None:
        place += f":{options.get('port') or os.environ.get('PGPORT') or 5432}"
    named = unquote(parts.path.lstrip("/")) or options.get("dbname") or options.get("database")
    database = named or os.environ.get("PGDATABASE")
    return f"{place}, database {database!r}" if database else place
