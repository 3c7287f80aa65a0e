"""`holdfast migrate`: brings a database's schema up to the version of this release."""

from typing import Annotated

import typer

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import AppOption, JsonOption, SchemaOption, StoreOption, store_of
from holdfast.cli.output import print_json


def migrate(
    grant: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE", help="Grant this role the privileges of workers and producers.", show_default=False
        ),
    ] = None,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create the tables in a database, or bring them up to date.

    Safe to run again, and while workers are running. An embedded store is migrated automatically. The role that runs
    this owns the tables. If workers connect as a different role, --grant gives it the privileges they need.
    """
    import asyncio

    from holdfast.store.postgres.schema_files import schema_files

    app = app_of_store(address, store, schema)
    applied = asyncio.run(app.migrate(grant=grant))
    name, version = app.settings.db_schema, schema_files().version
    if as_json:
        migrations = [{"version": migration.version, "name": migration.name} for migration in applied.migrations]
        where = {"store": store_of(app), "schema": name, "version": version}
        print_json({**where, "applied": migrations, "functions": list(applied.functions)})
        return
    for migration in applied.migrations:
        typer.echo(f"applied {migration.version:04} {migration.name}")
    if applied.functions:
        typer.echo(f"installed {len(applied.functions)} functions")
    if grant is not None:
        typer.echo(f'granted "{grant}" the privileges of workers and producers')
    state = "now at" if applied.migrations or applied.functions else "up to date, at"
    typer.echo(f'schema "{name}" is {state} version {version} in {store_of(app)}')
