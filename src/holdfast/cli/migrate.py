"""`holdfast migrate`: brings a database's schema up to the version of this release."""

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import JsonOption, SchemaOption, StoreOption, check_kept, store_of
from holdfast.cli.output import print_json

if TYPE_CHECKING:
    from holdfast.settings import Settings
    from holdfast.store.postgres.migrate import Applied


def migrate(
    grant: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="A role that workers and producers connect as.", show_default=False),
    ] = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create the tables in a database, or bring them up to date.

    Safe to run again, and while workers run. An embedded store is migrated automatically. Workers may connect as
    another role than the one that runs this and owns the tables; --grant gives it what they need.
    """
    import asyncio

    from holdfast.app import Holdfast
    from holdfast.store.postgres.schema_files import schema_files

    app = Holdfast(store, schema=schema)
    check_kept(app)
    applied = asyncio.run(_migrate(app.settings, grant))
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
        typer.echo(f'granted to "{grant}" what workers and producers need')
    state = "now at" if applied.migrations or applied.functions else "up to date, at"
    typer.echo(f'schema "{name}" is {state} version {version} in {store_of(app)}')


async def _migrate(settings: "Settings", grant: str | None) -> "Applied":
    from holdfast.store.opening import migrate as apply_migrations
    from holdfast.store.opening import server_url

    async with server_url(settings.store) as server:
        return await apply_migrations(server, settings.db_schema, grant=grant)
