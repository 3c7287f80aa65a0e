"""A database role for one test. It owns nothing, and the test can revoke its rights for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Composable, Identifier, Literal

_GRANTS = (
    "GRANT USAGE ON SCHEMA holdfast TO {role}",
    "GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO {role}",
    "GRANT ALL ON ALL SEQUENCES IN SCHEMA holdfast TO {role}",
)


@dataclass(frozen=True)
class Role:
    """`url` connects to the database as this role."""

    name: str
    url: str
    _owner: "psycopg.Connection[tuple[object, ...]]"

    def allow_logins(self, allowed: bool) -> None:
        self._execute("ALTER ROLE {role} LOGIN" if allowed else "ALTER ROLE {role} NOLOGIN")
        if not allowed:
            self.disconnect()

    def disconnect(self) -> None:
        self._execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = {name}")

    def allow_writes(self, allowed: bool) -> None:
        change = (
            "GRANT ALL ON {tables} TO {role}" if allowed else "REVOKE INSERT, UPDATE, DELETE ON {tables} FROM {role}"
        )
        self._execute(change.replace("{tables}", "ALL TABLES IN SCHEMA holdfast"))

    def _execute(self, sql: str) -> None:
        parts: dict[str, Composable] = {"role": Identifier(self.name), "name": Literal(self.name)}
        self._owner.execute(SQL(sql).format(**parts))


@contextmanager
def role_of(url: str) -> Iterator[Role]:
    """Create a role that may do everything a worker does, and drop it afterwards."""
    name = f"holdfast_test_{uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as owner:
        role = Role(name, url.replace("postgres@", f"{name}@", 1), owner)
        role._execute("CREATE ROLE {role} LOGIN")
        try:
            for grant in _GRANTS:
                role._execute(grant)
            yield role
        finally:
            role._execute("DROP OWNED BY {role}")
            role._execute("DROP ROLE {role}")
