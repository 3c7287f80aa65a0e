"""`holdfast rows …`: finds what an application's own table lacks to be a queue, and prints the SQL that adds it."""

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from holdfast.cli.errors import FAILED
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption, check_kept, noun
from holdfast.cli.output import print_json, printable
from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.settings import Settings
    from holdfast.store.postgres.store import PostgresStore
    from holdfast.store.rows.fit import RowFinding
    from holdfast.store.rows.mapping import Rows

Answer = TypeVar("Answer")

commands = noun("Check your own tables that serve as queues.")

MappingOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="APP",
        envvar="HOLDFAST_APP",
        help="An app with mappings, or one mapping: shop.jobs:app, shop.jobs:OUTBOX. Default: HOLDFAST_APP.",
        show_default=False,
        show_envvar=False,
    ),
]


@commands.command("check")
def check(
    mapping: MappingOption = None, store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False
) -> None:
    """Check tables for missing columns, wrong types and missing indexes.

    Changes nothing. Exits with 1 if anything is missing.
    """
    import asyncio

    from holdfast.store.rows.check import check_rows

    settings, mappings = _loaded(mapping, store, schema)
    found = asyncio.run(_each(settings, mappings, check_rows))
    findings = [finding for each in found for finding in each]
    if as_json:
        print_json({"ok": not findings, "findings": [finding.as_dict() for finding in findings]})
    else:
        _show(mappings, findings)
    raise typer.Exit(FAILED if findings else 0)


@commands.command("migration")
def migration(
    mapping: MappingOption = None, store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False
) -> None:
    """Print the SQL that adds the columns and indexes a table lacks.

    Changes nothing: put the SQL into a migration of your application.
    """
    import asyncio

    settings, mappings = _loaded(mapping, store, schema)
    printed = asyncio.run(_each(settings, mappings, _migration_of))
    if as_json:
        print_json([{"rows": each.name, "sql": sql} for each, sql in zip(mappings, printed, strict=True)])
    else:
        typer.echo("\n\n".join(printed))


async def _migration_of(store: "PostgresStore", rows: "Rows") -> str:
    from holdfast.store.rows.columns import read_columns
    from holdfast.store.rows.fit import ensure_addable
    from holdfast.store.rows.migration import migration_sql

    async with store.acquired() as connection:
        columns = await read_columns(connection, rows)
    ensure_addable(rows, columns)
    return migration_sql(rows, columns)


def _loaded(address: str | None, store: str | None, schema: str | None) -> "tuple[Settings, Sequence[Rows]]":
    from holdfast.app import Holdfast
    from holdfast.cli.load_app import app_of_store, load_app, load_attribute
    from holdfast.store.rows.mapping import Rows

    found = None if address is None else load_attribute(address)
    if isinstance(found, Rows):
        return app_of_store(None, store, schema).settings, [found]
    if found is not None and not isinstance(found, Holdfast):
        raise InvalidInput(f"rows: {address} is a {type(found).__name__}; name a mapping (Rows) or an app")
    app = load_app(address, store=store, schema=schema)
    check_kept(app)
    mappings = [queue.rows for queue in app.row_queues]
    if not mappings:
        raise InvalidInput(f"rows: the app {address} has no mappings; register one with app.rows(mapping)")
    return app.settings, mappings


async def _each(
    settings: "Settings", mappings: "Sequence[Rows]", ask: "Callable[[PostgresStore, Rows], Awaitable[Answer]]"
) -> "list[Answer]":
    from holdfast.store.opening import is_embedded, migrate, server_url
    from holdfast.store.postgres.store import PostgresStore

    async with server_url(settings.store) as server:
        if is_embedded(settings.store):
            await migrate(server, settings.db_schema)
        opened = PostgresStore(server, settings.db_schema, pool_size=1)
        await opened.open()
        try:
            return [await ask(opened, rows) for rows in mappings]
        finally:
            await opened.close()


def _show(mappings: "Sequence[Rows]", findings: "Sequence[RowFinding]") -> None:
    for each in mappings:
        own = [finding for finding in findings if finding.rows == each.name]
        for finding in own:
            typer.echo(printable(f"{each.name}: {finding.line} → {finding.next_step}"))
        if not own:
            typer.echo(printable(f"{each.name}: nothing is missing"))
