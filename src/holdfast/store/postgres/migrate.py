"""Brings a schema to the state this release needs, and checks it before a store is opened.

`schema_files.py` reads the files of schema/: tables.sql for a fresh schema, migrations/ for an existing one, functions/
for both. docs/decisions/0010-schema.md has the rules that keep workers of the previous release running.
"""

import shlex
from dataclasses import dataclass

import asyncpg

from holdfast.domain.errors import InvalidInput, SchemaMismatch
from holdfast.store.postgres.driver import translated
from holdfast.store.postgres.schema_files import Migration, SchemaFiles, digest, schema_files
from holdfast.store.postgres.sql_files import in_schema, quoted, statement

# The advisory lock of `holdfast migrate`, so that two migrators wait for each other instead of failing.
_LOCK = 0x686F6C6466617374
# Functions are compared by the text that PostgreSQL produces for them, which these settings affect.
_SPELLING = (
    "SET LOCAL search_path = pg_catalog; SET LOCAL quote_all_identifiers = off; SET LOCAL IntervalStyle = postgres"
)
# PostgreSQL checks nothing here, so a producer can store bytes that are no characters, and no client can read that row.
UNREADABLE_ENCODING = "SQL_ASCII"
# Keep in sync with sql/doctor_privileges.sql.
_ONLY_READ = ("clock", "migration", "installed_function")


@dataclass(frozen=True, slots=True)
class Applied:
    """What a migrator changed."""

    migrations: tuple[Migration, ...] = ()
    functions: tuple[str, ...] = ()


class Migrator:
    def __init__(
        self, connection: "asyncpg.Connection[asyncpg.Record]", schema: str, files: SchemaFiles | None = None
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._files = files or schema_files()

    @property
    def _remedy(self) -> str:
        """Without an option, `holdfast migrate` would migrate the database that the environment names."""
        schema = "" if self._schema == "holdfast" else f" --schema {shlex.quote(self._schema)}"
        return f"run `holdfast migrate{schema}` with --store or --app"

    async def version(self) -> int:
        """Return the schema's version, or 0 if there is no schema."""
        with translated():
            (tables,) = await self._fetch("schema_tables")
            if not tables["has_migrations"]:
                return 0
            if not tables["has_functions"]:
                raise SchemaMismatch(
                    f'the schema "{self._schema}" was created before the first release; '
                    f"drop it with `DROP SCHEMA {quoted(self._schema)} CASCADE` and {self._remedy}"
                )
            (row,) = await self._fetch("schema_version")
            version: int = row["version"]
            return version

    async def changed_functions(self) -> dict[str, str]:
        """Return the texts of this release's functions that are not installed or were edited by hand since."""
        with translated():
            async with self._connection.transaction():
                await self._connection.execute(_SPELLING)
                rows = await self._fetch("schema_functions")
        installed = {row["name"]: row["digest"] for row in rows if row["is_untouched"]}
        return {name: text for name, text in self._files.functions.items() if installed.get(name) != digest(text)}

    async def migrate(self) -> Applied:
        """Apply what is missing. A second run changes nothing.

        Each migration is a separate transaction. Claims and finishes lock tables in opposite orders, so a transaction
        that holds one table and waits for another may deadlock. The functions come with the last migration.
        """
        migrations: list[Migration] = []
        with translated():
            while True:
                async with self._connection.transaction(isolation="read_committed"):
                    await self._connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
                    # A migration that waits for a table must not make everything wait behind it for long. But only a
                    # wait of at least one second (deadlock_timeout) cancels an autovacuum.
                    await self._connection.execute(f"SET LOCAL lock_timeout = '2s'; {_SPELLING}")
                    version = await self.version()
                    self._refuse_newer(version)
                    if version == 0:
                        await self._refuse_unreadable()
                    missing = self._missing(version)
                    if missing:
                        await self._change_tables(missing[0])
                        migrations.append(missing[0])
                    if len(missing) <= 1:
                        functions = await self._install_functions()
                        if version == 0:
                            await self._execute(self._files.first_rows)
                        return Applied(tuple(migrations), functions)

    async def check(self) -> None:
        """Raise SchemaMismatch unless tables and functions match this release."""
        version = await self.version()
        self._refuse_newer(version)
        newest = self._files.version
        if version < newest:
            state = "is missing" if version == 0 else f"is version {version}, this release needs {newest}"
            raise SchemaMismatch(f'the schema "{self._schema}" {state}; {self._remedy}')
        with translated():
            installed = {row["name"]: row["digest"] for row in await self._fetch("schema_functions")}
        for name, text in self._files.functions.items():
            if installed.get(name) != digest(text):
                raise SchemaMismatch(
                    f'the function "{name}" in the schema "{self._schema}" does not match this release; {self._remedy}'
                )

    async def grant(self, role: str) -> None:
        """Grant a role what workers and producers need. Functions that change tables run as their owner.

        The owner needs no grant, and must not lose the rights that only the owner has.
        """
        schema, grantee = quoted(self._schema), '"' + role.replace('"', '""') + '"'
        with translated():
            async with self._connection.transaction():
                found = await self._fetch("schema_role", role)
                if not found:
                    raise InvalidInput(f'grant: there is no role "{role}"; create it with CREATE ROLE … LOGIN')
                if found[0]["owns"]:
                    return
                for privileges in (
                    f"USAGE ON SCHEMA {schema}",
                    f"SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema}",
                    f"EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema}",
                ):
                    await self._connection.execute(f"GRANT {privileges} TO {grantee}")
                kept = ", ".join(f"{schema}.{table}" for table in _ONLY_READ)
                await self._connection.execute(f"REVOKE INSERT, UPDATE, DELETE ON {kept} FROM {grantee}")

    async def _refuse_unreadable(self) -> None:
        """An existing schema is left alone, because refusing its migrations would end workers that run well."""
        encoding: str = await self._connection.fetchval("SELECT current_setting('server_encoding')")
        if encoding == UNREADABLE_ENCODING:
            raise InvalidInput(
                f"the encoding of this database is {encoding}, where a job may contain bytes that no worker can read; "
                "make another one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0 and name it in --store"
            )

    def _refuse_newer(self, version: int) -> None:
        if version > self._files.version:
            raise SchemaMismatch(
                f'the schema "{self._schema}" is version {version}, newer than this release knows '
                f"({self._files.version}); upgrade holdfast"
            )

    def _missing(self, version: int) -> list[Migration]:
        """A fresh schema gets tables.sql; an existing one gets the migrations after its version."""
        if version == 0:
            return [Migration(self._files.version, "tables", self._files.tables)]
        return [each for each in self._files.migrations if each.version > version]

    async def _change_tables(self, migration: Migration) -> None:
        await self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(self._schema)}")
        await self._execute(migration.sql)
        await self._fetch("schema_migrated", migration.version, migration.name)

    async def _install_functions(self) -> tuple[str, ...]:
        """Install changed functions. Functions that only older releases know stay, for their workers."""
        changed = await self.changed_functions()
        # A function may call one that is created later.
        await self._connection.execute("SET LOCAL check_function_bodies = off")
        for name, text in changed.items():
            await self._install(name, text)
        return tuple(changed)

    async def _install(self, name: str, text: str) -> None:
        try:
            await self._execute(text)
        except asyncpg.InvalidFunctionDefinitionError as error:
            raise self._other_signature(name) from error
        (row,) = await self._fetch("schema_function_installed", name, digest(text))
        if row["functions"] != 1:
            raise self._other_signature(name)

    def _other_signature(self, name: str) -> SchemaMismatch:
        return SchemaMismatch(
            f'the schema "{self._schema}" has a function "{name}" with another signature; '
            "give the new one a different name, because workers of the previous release call the old one"
        )

    async def _execute(self, sql: str) -> None:
        await self._connection.execute(in_schema(sql, self._schema))

    async def _fetch(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        return await self._connection.fetch(statement(verb, self._schema), *arguments)
