"""`holdfast subscriptions list`: every subscription of the store as a table."""

from typing import TYPE_CHECKING

import typer

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption, store_of
from holdfast.cli.output import new_table, print_json, print_table, printable, relative
from holdfast.cli.subscriptions.showing import as_dict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.table import Table

    from holdfast.app import Holdfast
    from holdfast.store.events import Subscription

# What the second column of the short table takes, and what is left to the first one in any case.
_PATTERN = 30
_SHORTEST_NAME = 12


def list_subscriptions(store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False) -> None:
    """List the subscriptions: the kind of their jobs, and the events that make them."""
    import asyncio

    app = app_of_store(store, schema)
    subscriptions, now = asyncio.run(_read(app))
    if as_json:
        print_json([as_dict(subscription) for subscription in subscriptions])
    elif subscriptions:
        print_table(_full(subscriptions, now), lambda width: _short(subscriptions, width))
    else:
        typer.echo(f"The store has no subscriptions yet: {store_of(app)}")


async def _read(app: "Holdfast") -> "tuple[Sequence[Subscription], datetime]":
    async with app:
        return await app.subscriptions.list(), await app.clock.now()


def _full(subscriptions: "Sequence[Subscription]", now: "datetime") -> "Table":
    from rich.text import Text

    table = new_table("name", "events", "queue", "priority", "attempts", "changed")
    for each in subscriptions:
        table.add_row(
            Text(printable(each.name)),
            Text(printable(each.pattern)),
            Text(printable(each.queue)),
            Text(str(each.priority)),
            Text("the handler's" if each.max_attempts is None else str(each.max_attempts)),
            Text(relative(each.updated_at, now)),
        )
    return table


def _short(subscriptions: "Sequence[Subscription]", width: int) -> "Table":
    from rich.text import Text

    table = new_table("name", "events")
    table.columns[0].max_width = max(_SHORTEST_NAME, width - _PATTERN - 2)
    table.columns[1].max_width = _PATTERN
    for each in subscriptions:
        table.add_row(Text(printable(each.name)), Text(printable(each.pattern)))
    return table
