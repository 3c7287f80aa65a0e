"""`holdfast schedules …`: list, add, remove, pause, resume and run schedules."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import (
    AppOption,
    JsonOption,
    PayloadArgument,
    SchemaOption,
    StoreOption,
    noun,
    store_of,
    to_payload,
)
from holdfast.cli.output import in_zone, new_table, print_json, print_table, printable, relative

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.table import Table
    from rich.text import Text

    from holdfast.app import Holdfast
    from holdfast.scheduling.schedules import Schedules
    from holdfast.store.schedules import Schedule

# In the short table: the width of the columns besides the name, that of the timetable, and the narrowest name column.
_OTHERS = 54
_TIMETABLE = 20
_SHORTEST_NAME = 12

commands = noun("List, add, remove, pause and run schedules.")
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)]


@commands.command("list")
def list_schedules(
    address: AppOption = None, store: StoreOption = None, schema: SchemaOption = None, as_json: JsonOption = False
) -> None:
    """List schedules with their next and last occurrences."""
    import asyncio

    app = app_of_store(address, store, schema)
    schedules, now = asyncio.run(_read(app))
    if as_json:
        print_json([_as_dict(schedule) for schedule in schedules])
    elif schedules:
        print_table(_full(schedules, now), lambda width: _short(schedules, now, width))
    else:
        typer.echo(f"The store has no schedules yet: {store_of(app)}")


@commands.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)],
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
        str, typer.Option(metavar="POLICY", help="How to make up for missed occurrences: skip, once or all.")
    ] = "once",
    missed_limit: Annotated[int, typer.Option(help="With --missed all: the maximum to make up at once.")] = 100,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="The jobs' queue. Default: default.", show_default=False)
    ] = None,
    priority: Annotated[int, typer.Option(help="0 (most urgent) to 9.")] = 5,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="The jobs' tenant.", show_default=False)] = None,
    attempts: Annotated[
        int | None, typer.Option(help="Maximum attempts per job. Default: the handler's.", show_default=False)
    ] = None,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Enqueue a job of KIND at each occurrence of TIMETABLE.

    Changes the schedule of that name if it was added before. Cannot change a schedule that an app's code declares.
    """
    value = to_payload(payload)
    _change(
        app_of_store(address, store, schema),
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


@commands.command("remove")
def remove(
    name: NameArgument,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a schedule. Its jobs stay.

    A schedule that an app's code declares comes back when a process of that app next starts.
    """
    _change(
        app_of_store(address, store, schema), name, lambda schedules: schedules.remove(name), "removed", as_json=as_json
    )


@commands.command("pause")
def pause(
    name: NameArgument,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause a schedule. Occurrences during the pause are skipped."""
    _change(
        app_of_store(address, store, schema), name, lambda schedules: schedules.pause(name), "paused", as_json=as_json
    )


@commands.command("resume")
def resume(
    name: NameArgument,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resume a paused schedule at its next occurrence."""
    _change(
        app_of_store(address, store, schema), name, lambda schedules: schedules.resume(name), "resumed", as_json=as_json
    )


@commands.command("run")
def run(
    name: NameArgument,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a schedule once now, in addition to its timetable.

    This also works while the schedule is paused. A process of the app starts the run within a second or so. Several
    requests before it starts make one run.
    """
    _change(
        app_of_store(address, store, schema),
        name,
        lambda schedules: schedules.run_now(name),
        "will run once, when a worker or tick picks it up",
        as_json=as_json,
    )


def _change(
    app: "Holdfast", name: str, change: "Callable[[Schedules], Awaitable[None]]", done: str, *, as_json: bool
) -> None:
    """Change one schedule, and print what was done and when it runs next."""
    import asyncio

    async def run() -> "tuple[Schedule | None, datetime]":
        async with app:
            await change(app.schedules)
            found = [schedule for schedule in await app.schedules.list() if schedule.name == name]
            return found[0] if found else None, await app.clock.now()

    schedule, now = asyncio.run(run())
    if as_json:
        print_json({"name": name, "removed": True} if schedule is None else _as_dict(schedule))
    else:
        said = [done] if schedule is None else [done, _next_run(schedule, now)]
        typer.echo(f"{printable(name)}  {'; '.join(dict.fromkeys(said))}")


def _next_run(schedule: "Schedule", now: "datetime") -> str:
    asked = "asked to run now, " if schedule.run_now else ""
    if schedule.paused:
        return f"{asked}paused"
    return f"{asked}next {in_zone(schedule.next_occurrence, schedule.zone, now)}"


def _as_dict(schedule: "Schedule") -> dict[str, object]:
    from holdfast.domain.json_text import readable

    job = schedule.job
    return {
        "name": schedule.name,
        "timetable": schedule.timetable,
        "tz": schedule.zone,
        "missed": schedule.missed,
        "missed_limit": schedule.missed_limit,
        "origin": schedule.origin,
        "job": None
        if job is None
        else {
            "kind": job.kind,
            "payload": readable(job.payload),
            "queue": job.queue,
            "priority": job.priority,
            "tenant": job.tenant,
            "attempts": job.max_attempts,
        },
        "next_occurrence": schedule.next_occurrence.isoformat(),
        "last_occurrence": None if schedule.last_occurrence is None else schedule.last_occurrence.isoformat(),
        "paused": schedule.paused,
        "run_now": bool(schedule.run_now),
    }


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
            Text("" if schedule.paused else in_zone(schedule.next_occurrence, schedule.zone, now)),
            Text("" if schedule.last_occurrence is None else in_zone(schedule.last_occurrence, schedule.zone, now)),
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
            Text("" if schedule.paused else relative(schedule.next_occurrence, now)),
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
    return Text("due" if schedule.next_occurrence <= now else "waiting")
