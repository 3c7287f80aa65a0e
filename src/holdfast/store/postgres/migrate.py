"""Numbered forward migrations, applied one at a time under a lock, and the check before a store is opened."""

import asyncpg

from holdfast.domain.errors import SchemaMismatch
from holdfast.store.postgres.driver import translated
from holdfast.store.postgres.sql_files import Migration, migrations, newest_version, quoted

# Advisory lock "holdfast migrate": two migrators wait for each other instead of failing.
_LOCK = 0x686F6C6466617374


class Migrator:
    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def version(self) -> int:
        """The schema's version; 0 if there is none."""
        with translated():
            table = f"{quoted(self._schema)}.migration"
            if await self._connection.fetchval("SELECT to_regclass($1)", table) is None:
                return 0
            found: int | None = await self._connection.fetchval(f"SELECT max(version) FROM {table}")  # noqa: S608
            return found or 0

    async def migrate(self, up_to: int | None = None) -> list[Migration]:
        """Apply what is missing, each migration in a transaction of its own; returns what was applied."""
        applied: list[Migration] = []
        with translated():
            while (migration := await self._apply_next(up_to or newest_version())) is not None:
                applied.append(migration)
        return applied

    async def _apply_next(self, up_to: int) -> Migration | None:
        async with self._connection.transaction():
            await self._connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            version = await self.version()
            self._refuse_newer(version)
            migration = next((each for each in migrations(self._schema) if version < each.version <= up_to), None)
            if migration is None:
                return None
            schema = quoted(self._schema)
            if version == 0:
                await self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                await self._connection.execute(
                    f"CREATE TABLE {schema}.migration (version integer PRIMARY KEY, name text NOT NULL, "
                    f"applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
                )
            await self._connection.execute(migration.sql)
            await self._connection.execute(
                f"INSERT INTO {schema}.migration (version, name) VALUES ($1, $2)",  # noqa: S608
                migration.version,
                migration.name,
            )
            return migration

    async def check(self) -> None:
        """SchemaMismatch unless the schema is the one this release knows."""
        version = await self.version()
        self._refuse_newer(version)
        if version < newest_version():
            state = "is missing" if version == 0 else f"is version {version}, this release needs {newest_version()}"
            raise SchemaMismatch(f'the schema "{self._schema}" {state}; run `holdfast migrate`')

    def _refuse_newer(self, version: int) -> None:
        if version > newest_version():
            raise SchemaMismatch(
                f'the schema "{self._schema}" is version {version}, newer than this release knows '
                f"({newest_version()}); upgrade holdfast"
            )
