"""`holdfast migrate`: brings a database's schema to the version of this release."""

from typing import TYPE_CHECKING

import typer

from holdfast.cli.options import JsonOption, SchemaOption, StoreOption, check_kept, store_of
from holdfast.cli.output import print_json

if TYPE_CHECKING:
    from holdfast.settings import Settings
    from holdfast.store.postgres.sql_files import Migration


def migrate(store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False) -> None:
    """Create the tables in a database, or bring them up to date.

    Safe to run again, and while workers run. An embedded store does it by itself.
    """
    import asyncio

    from holdfast.app import Holdfast
    from holdfast.store.postgres.sql_files import newest_version

    app = Holdfast(store, schema=schema)
    check_kept(app)
    applied = asyncio.run(_migrate(app.settings))
    name, version = app.settings.db_schema, newest_version()
    if as_json:
        migrations = [{"version": migration.version, "name": migration.name} for migration in applied]
        print_json({"store": store_of(app), "schema": name, "version": version, "applied": migrations})
        return
    for migration in applied:
        typer.echo(f"applied {migration.version:04} {migration.name}")
    state = "now at" if applied else "up to date, at"
    typer.echo(f'schema "{name}" is {state} version {version} in {store_of(app)}')


async def _migrate(settings: "Settings") -> "list[Migration]":
    from holdfast.store.opening import migrate as apply_migrations
    from holdfast.store.opening import server_url

    async with server_url(settings.store) as server:
        return await apply_migrations(server, settings.db_schema)
