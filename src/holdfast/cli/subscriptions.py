"""`holdfast subscriptions …`: list, add and remove subscriptions to events."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import AppOption, JsonOption, SchemaOption, StoreOption, noun, store_of
from holdfast.cli.output import new_table, print_json, print_table, printable, relative

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.table import Table

    from holdfast.app import Holdfast
    from holdfast.events.subscriptions import Subscriptions
    from holdfast.store.events import Subscription

# In the short table: the width of the second column, and the narrowest first column.
_PATTERN = 30
_SHORTEST_NAME = 12

commands = noun("List, add and remove subscriptions to events.")


@commands.command("list")
def list_subscriptions(
    address: AppOption = None, store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False
) -> None:
    """List subscriptions with the events that they match."""
    import asyncio

    app = app_of_store(address, store, schema)
    subscriptions, now = asyncio.run(_read(app))
    if as_json:
        print_json([_as_dict(subscription) for subscription in subscriptions])
    elif subscriptions:
        print_table(_full(subscriptions, now), lambda width: _short(subscriptions, width))
    else:
        typer.echo(f"The store has no subscriptions yet: {store_of(app)}")


@commands.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The jobs' kind.", show_default=False)],
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="PATTERN", help="Which events: 'invoice.paid', 'invoice.*', or '*' for all.", show_default=False
        ),
    ],
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="The jobs' queue. Default: default.", show_default=False)
    ] = None,
    priority: Annotated[int, typer.Option(help="0 (most urgent) to 9.")] = 5,
    attempts: Annotated[
        int | None, typer.Option(help="Maximum attempts per job. Default: the handler's.", show_default=False)
    ] = None,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Enqueue a job of kind NAME for each event that matches PATTERN.

    Changes the subscription of that name if there is one. If an app's code declares it, the next process of that app
    to start changes it back.
    """
    _change(
        app_of_store(address, store, schema),
        name,
        lambda subscriptions: subscriptions.save(name, pattern, queue=queue, priority=priority, attempts=attempts),
        "saved",
        as_json=as_json,
    )


@commands.command("remove")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The subscription's name.", show_default=False)],
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a subscription. Its jobs stay.

    A subscription that an app's code declares comes back when a process of that app next starts. Remove it from the
    code first.
    """
    _change(
        app_of_store(address, store, schema),
        name,
        lambda subscriptions: subscriptions.remove(name),
        "removed",
        as_json=as_json,
    )


def _change(
    app: "Holdfast", name: str, change: "Callable[[Subscriptions], Awaitable[None]]", done: str, *, as_json: bool
) -> None:
    """Change one subscription, and print what was done."""
    import asyncio

    async def run() -> "Subscription | None":
        async with app:
            await change(app.subscriptions)
            found = [each for each in await app.subscriptions.list() if each.name == name]
            return found[0] if found else None

    subscription = asyncio.run(run())
    if as_json:
        print_json({"name": name, "removed": True} if subscription is None else _as_dict(subscription))
    else:
        typer.echo(f"{printable(name)}  {done}")


def _as_dict(subscription: "Subscription") -> dict[str, object]:
    return {
        "name": subscription.name,
        "pattern": subscription.pattern,
        "queue": subscription.queue,
        "priority": subscription.priority,
        "attempts": subscription.max_attempts,
        "created_at": subscription.created_at.isoformat(),
        "updated_at": subscription.updated_at.isoformat(),
    }


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
