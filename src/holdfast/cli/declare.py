"""`holdfast declare`: saves what an app's code declares to the store before any worker runs."""

from typing import TYPE_CHECKING

import typer

from holdfast.cli.options import AppOption, JsonOption, SchemaOption, StoreOption, check_kept, store_of
from holdfast.cli.output import print_json, printable

if TYPE_CHECKING:
    from holdfast.app import Holdfast


def declare(
    app: AppOption = None, store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False
) -> None:
    """Save the app's schedules and subscriptions to the store.

    A worker does the same when it starts. Run this before you deploy, so no event is published before its subscription
    exists. Safe to run again. Schedules and subscriptions that the code no longer declares stay in the store.
    """
    import asyncio

    from holdfast.cli.load_app import load_app

    loaded = load_app(app, store=store, schema=schema)
    check_kept(loaded)
    asyncio.run(_declare(loaded))
    schedules = [declared.name for declared in loaded.declarations]
    subscriptions = {subscription.name: subscription.pattern for subscription in loaded.subscribed}
    if as_json:
        print_json({"store": store_of(loaded), "schedules": schedules, "subscriptions": subscriptions})
        return
    for name in schedules:
        typer.echo(f"schedule {printable(name)}")
    for name, pattern in subscriptions.items():
        typer.echo(f"subscription {printable(name)} to {printable(pattern)}")
    count = len(schedules) + len(subscriptions)
    typer.echo(f"{count} declared in {store_of(loaded)}")


async def _declare(app: "Holdfast") -> None:
    async with app:
        await app.declare()
