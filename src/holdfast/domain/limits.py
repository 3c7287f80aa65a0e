"""Checks for settings, whether they come from the environment, the command line or code.

Each check returns the value or raises InvalidInput with a message that begins with the setting's name.
"""

import re
from datetime import timedelta

from holdfast.domain.duration import to_text
from holdfast.domain.errors import InvalidInput, shown

CLAIM_BYTES = 16 * 1024 * 1024
MOST_CONCURRENCY = 10_000
MOST_SHARDS = 10_000
RING_AHEAD = timedelta(minutes=1)
"""Producers ring for jobs that are due within this time. Keep in sync with enqueue_one.sql, enqueue_many.sql,
enqueue.sql and finish.sql."""
SHORTEST_LEASE = timedelta(milliseconds=500)
SHORTEST_POLL = timedelta(milliseconds=10)

# SQLAlchemy URLs may include a driver name, as in postgresql+asyncpg://.
_STORES = re.compile(r"postgres(ql)?(\+\w+)?://|embedded:|memory:")
_SCHEME = re.compile(r"([a-z][a-z0-9+._-]*):", re.IGNORECASE)
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_ -]{0,62}")
_RESERVED = re.compile(r"pg_|information_schema$")


def check_store(address: str) -> str:
    """Check only the scheme. The message never quotes the whole address, which may contain a password."""
    if address != "memory" and not _STORES.match(address):
        scheme = _SCHEME.match(address)
        wrong = f"{scheme[1]!r} is not known" if scheme else "the address does not begin with a scheme"
        raise InvalidInput(f"store: {wrong}; use postgresql://user@host/database, embedded: or memory:")
    return address


def check_schema(name: object) -> str:
    """Accept only names that are safe in double quotes, even inside a string literal in a function body."""
    if not isinstance(name, str) or not _SCHEMA_NAME.fullmatch(name) or _RESERVED.match(name):
        raise InvalidInput(
            f"schema: {shown(name)} is not usable; give 1 to 63 letters, digits, underscores, hyphens or spaces, "
            f"starting with a letter or underscore but not with pg_"
        )
    return name


def check_concurrency(value: int) -> int:
    return in_range("concurrency", value, 1, MOST_CONCURRENCY)


def check_lease(value: timedelta) -> timedelta:
    if value < SHORTEST_LEASE:
        raise InvalidInput(f"lease: shorter than {to_text(SHORTEST_LEASE)}; a worker could not renew it in time")
    return value


def check_poll(value: timedelta) -> timedelta:
    if value < SHORTEST_POLL:
        raise InvalidInput(
            f"poll: shorter than {to_text(SHORTEST_POLL)}; that would keep the database busy for nothing"
        )
    return value


def check_renewal(lease: timedelta, renew: timedelta, *, lease_name: str = "lease", renew_name: str = "renew") -> None:
    """Allow at most half of the lease, so that one failed or late renewal does not lose it."""
    if renew > lease / 2:
        raise InvalidInput(
            f"{renew_name} ({to_text(renew)}) is more than half of {lease_name} ({to_text(lease)}); "
            f"set {renew_name} to {to_text(lease / 2)} or less, or {lease_name} to {to_text(renew * 2)} or more"
        )


def in_range(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InvalidInput(f"{name}: {value} is not a number from {least} to {most}")
    return value


def at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise InvalidInput(f"{name}: {value} is less than {least}")
    return value


def at_least_lasting(name: str, value: timedelta, least: timedelta, why: str) -> timedelta:
    if value < least:
        raise InvalidInput(f"{name}: shorter than {to_text(least)}; {why}")
    return value
