"""`holdfast schedules list`: every schedule of the store as a table."""

from typing import TYPE_CHECKING

import typer

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption, store_of
from holdfast.cli.output import in_zone, new_table, print_json, print_table, printable, relative
from holdfast.cli.schedules.showing import as_dict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.table import Table
    from rich.text import Text

    from holdfast.app import Holdfast
    from holdfast.store.schedules import Schedule


# What the other columns of the short table take, and what is left to the first one in any case.
_OTHERS = 54
_TIMETABLE = 20
_SHORTEST_NAME = 12


def list_schedules(store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False) -> None:
    """List the schedules, with their next slot and the newest that ran."""
    import asyncio

    app = app_of_store(store, schema)
    schedules, now = asyncio.run(_read(app))
    if as_json:
        print_json([as_dict(schedule) for schedule in schedules])
    elif schedules:
        print_table(_full(schedules, now), lambda width: _short(schedules, now, width))
    else:
        typer.echo(f"The store has no schedules yet: {store_of(app)}")


async def _read(app: "Holdfast") -> "tuple[Sequence[Schedule], datetime]":
    async with app:
        return await app.schedules.list(), await app.clock.now()


def _full(schedules: "Sequence[Schedule]", now: "datetime") -> "Table":
    from rich.text import Text

    table = new_table("name", "timetable", "time zone", "runs", "from", "state", "next", "last")
    for schedule in schedules:
        table.add_row(
            Text(printable(schedule.name)),
            Text(printable(schedule.timetable)),
            Text(printable(schedule.zone)),
            Text("a function" if schedule.job is None else printable(schedule.job.kind)),
            Text(schedule.origin),
            _state(schedule, now),
            Text("" if schedule.paused else in_zone(schedule.next_slot, schedule.zone, now)),
            Text("" if schedule.last_slot is None else in_zone(schedule.last_slot, schedule.zone, now)),
        )
    return table


def _short(schedules: "Sequence[Schedule]", now: "datetime", width: int) -> "Table":
    from rich.text import Text

    table = new_table("name", "timetable", "next", "state")
    table.columns[0].max_width = max(_SHORTEST_NAME, width - _OTHERS)
    for schedule in schedules:
        table.add_row(
            Text(printable(schedule.name)),
            Text(printable(schedule.timetable)),
            Text("" if schedule.paused else relative(schedule.next_slot, now)),
            _state(schedule, now),
        )
    table.columns[1].max_width = _TIMETABLE
    return table


def _state(schedule: "Schedule", now: "datetime") -> "Text":
    from rich.text import Text

    states = [
        *(["paused"] if schedule.paused else []),
        *(["asked to run"] if schedule.run_now else []),
    ]
    if states:
        return Text(", ".join(states), style="yellow")
    return Text("due" if schedule.next_slot <= now else "waiting")
