"""`holdfast subscriptions add`: a job for each event that matches."""

from typing import Annotated

import typer

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption
from holdfast.cli.subscriptions.showing import change_subscription


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
        int | None, typer.Option(help="Attempts of each job. Default: the handler's.", show_default=False)
    ] = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a job of the kind NAME of each event that matches PATTERN.

    A subscription of that name is changed. One that an app's code declares becomes the code's again with the next
    process of that app.
    """
    change_subscription(
        app_of_store(store, schema),
        name,
        lambda subscriptions: subscriptions.save(name, pattern, queue=queue, priority=priority, attempts=attempts),
        "saved",
        as_json=as_json,
    )
