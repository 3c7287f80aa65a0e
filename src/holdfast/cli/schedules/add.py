"""`holdfast schedules add`: a job at each slot of a timetable."""

from typing import Annotated

import typer

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption
from holdfast.cli.payload import PayloadArgument, to_payload
from holdfast.cli.schedules.showing import change_schedule


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of its own.", show_default=False)],
    timetable: Annotated[
        str,
        typer.Argument(
            metavar="TIMETABLE",
            help="When: 'every 2m', '03:17 daily', '08:00 weekdays', '17 3 * * *'.",
            show_default=False,
        ),
    ],
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The jobs' kind.", show_default=False)],
    payload: PayloadArgument = "{}",
    tz: Annotated[str, typer.Option(metavar="ZONE", help="Time zone, such as America/Santiago.")] = "UTC",
    missed: Annotated[
        str, typer.Option(metavar="POLICY", help="What becomes of slots that were missed: skip, once or all.")
    ] = "once",
    missed_limit: Annotated[int, typer.Option(help="With --missed all: at most so many at once.")] = 100,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="The jobs' queue. Default: default.", show_default=False)
    ] = None,
    priority: Annotated[int, typer.Option(help="0 (most urgent) to 9.")] = 5,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Whose jobs they are.", show_default=False)] = None,
    attempts: Annotated[
        int | None, typer.Option(help="Attempts of each job. Default: the handler's.", show_default=False)
    ] = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a job of KIND at each slot of TIMETABLE.

    A schedule of that name that was added before is changed. One that an app's code declares is not.
    """
    value = to_payload(payload)
    change_schedule(
        app_of_store(store, schema),
        name,
        lambda schedules: schedules.save(
            name,
            timetable,
            kind=kind,
            payload=value,
            tz=tz,
            missed=missed,
            missed_limit=missed_limit,
            queue=queue,
            priority=priority,
            tenant=tenant,
            attempts=attempts,
        ),
        "saved",
        as_json=as_json,
    )
