"""`holdfast subscriptions remove`: no more jobs for it."""

from typing import Annotated

import typer

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption
from holdfast.cli.subscriptions.showing import change_subscription


def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which subscription.", show_default=False)],
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a subscription. Jobs that it made stay.

    One that an app's code declares comes back with the next process of that app: remove it from the code first.
    """
    change_subscription(
        app_of_store(store, schema),
        name,
        lambda subscriptions: subscriptions.remove(name),
        "removed",
        as_json=as_json,
    )
