"""`holdfast schedules list`: every schedule of the store as a table."""

from typing import TYPE_CHECKING

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption
from holdfast.cli.output import console, in_zone, print_json, printable
from holdfast.cli.schedules.showing import as_dict, next_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.table import Table

    from holdfast.app import Holdfast
    from holdfast.store.schedules import Schedule


def list_schedules(store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False) -> None:
    """List the schedules, with their next slot and the newest that ran."""
    import asyncio

    schedules, now = asyncio.run(_read(app_of_store(store, schema)))
    if as_json:
        print_json([as_dict(schedule) for schedule in schedules])
    elif schedules:
        console().print(_table(schedules, now))
    else:
        console().print("The store has no schedules yet.")


async def _read(app: "Holdfast") -> "tuple[Sequence[Schedule], datetime]":
    async with app:
        return await app.schedules.list(), await app.clock.now()


def _table(schedules: "Sequence[Schedule]", now: "datetime") -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("name", "timetable", "time zone", "runs", "from", "next", "last"):
        table.add_column(heading, overflow="fold")
    for schedule in schedules:
        is_waiting = not schedule.paused and not schedule.run_now
        table.add_row(
            Text(printable(schedule.name)),
            Text(printable(schedule.timetable)),
            Text(printable(schedule.zone)),
            Text("a function" if schedule.job is None else printable(schedule.job.kind)),
            Text(schedule.origin),
            Text(next_run(schedule, now).removeprefix("next "), style="" if is_waiting else "yellow"),
            Text("" if schedule.last_slot is None else in_zone(schedule.last_slot, schedule.zone, now)),
        )
    return table
