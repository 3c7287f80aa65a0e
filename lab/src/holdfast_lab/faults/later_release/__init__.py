"""A synthetic later release: this one plus the migrations, tables and functions of this folder."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from holdfast.store.postgres import migrate, schema_files
from holdfast.store.postgres.schema_files import Migration, SchemaFiles, read_functions, read_migrations
from holdfast.store.postgres.schema_files import schema_files as of_this_release

IN_LABORATORY = "FAULTS_LATER_RELEASE"
"""Set only for the laboratory's own stores: no real release knows a store that this one migrated."""

_HERE = Path(__file__).parent
_COLUMNS = (
    ('    kind text COLLATE "C" NOT NULL\n) WITH (\n    fillfactor = 50,', "    zone text"),
    ("    headers json\n) PARTITION BY RANGE (id);", "    weight smallint"),
)
"""The end of a table in tables.sql, and the column that the later release adds there."""


@cache
def later_schema_files() -> SchemaFiles:
    this = of_this_release()
    migrations = (
        Migration(this.version + each.version, each.name, each.sql) for each in read_migrations(_HERE / "migrations")
    )
    return replace(
        this,
        tables=_later_tables(this.tables),
        migrations=(*this.migrations, *migrations),
        functions={**this.functions, **read_functions(_HERE / "functions")},
    )


def _later_tables(tables: str) -> str:
    for end, column in _COLUMNS:
        if tables.count(end) != 1:
            raise ValueError(f"tables.sql has no table that ends with {end!r}")
        tables = tables.replace(end, end.replace("\n)", f",\n{column}\n)"))
    return tables + (_HERE / "tables.sql").read_text()


def take_over() -> None:
    """Make this process belong to the later release."""
    for module in (schema_files, migrate):
        vars(module)["schema_files"] = later_schema_files
