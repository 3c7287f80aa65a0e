"""What the address of a PostgreSQL says: its hosts, and whether a pooler is before them."""

from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from holdfast.domain.address import each_host
from holdfast.domain.errors import InvalidInput

_WRITABLE = {"target_session_attrs": "read-write"}


@dataclass(frozen=True, slots=True)
class Address:
    """What asyncpg is told. `?pgbouncer=1` says that a pooler is before the server, `?pgbouncer=0` that none is, or one
    that bears prepared statements and sessions; without either the first connection finds out (`is_pooled`).
    """

    dsn: str
    pooled: bool | None
    hosts: tuple[str, ...] = ()
    """The address of each host. Of several it is the one that can be written to, unless the address says otherwise."""

    @property
    def statement_cache_size(self) -> int:
        """None with transaction pooling: a statement would be prepared on one connection and looked for on another."""
        return 0 if self.pooled else 100

    @classmethod
    def parse(cls, url: str) -> Self:
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True))
            is_one_of_several = len(each_host(url)) > 1
        except ValueError:
            # The reason would quote a part of the address, and that may be a part of the password.
            raise InvalidInput(
                "store: the PostgreSQL address cannot be read; write postgresql://user@host:port/database, or several "
                "as host:port,host:port, and percent-encode special characters of the password"
            ) from None
        said = options.pop("pgbouncer", "")
        pooled = None if not said else said not in ("0", "false")
        if is_one_of_several:
            options = _WRITABLE | options
        dsn = urlunsplit(parts._replace(query=urlencode(options)))
        return cls(dsn, pooled, each_host(dsn))


def through_pooler(url: str) -> str:
    """The same address, which says that a pooler is before the server."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True)) | {"pgbouncer": "1"}
    return urlunsplit(parts._replace(query=urlencode(options)))


def place_of(dsn: str) -> str:
    """The host and port of an address with one host, without user and password."""
    parts = urlsplit(dsn)
    options = dict(parse_qsl(parts.query))
    return parts.netloc.rpartition("@")[2] or options.get("host", "localhost")
