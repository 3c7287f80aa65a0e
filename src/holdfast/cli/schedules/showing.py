"""How a schedule is shown, and how one is changed and shown again."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import in_zone, print_json, printable

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.app import Holdfast
    from holdfast.scheduling.schedules import Schedules
    from holdfast.store.schedules import Schedule

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Which schedule.", show_default=False)]


def change_schedule(
    app: "Holdfast", name: str, change: "Callable[[Schedules], Awaitable[None]]", done: str, *, as_json: bool
) -> None:
    """Change one schedule, and say that it is `done` and when it runs next."""
    import asyncio

    async def run() -> "tuple[Schedule | None, datetime]":
        async with app:
            await change(app.schedules)
            found = [schedule for schedule in await app.schedules.list() if schedule.name == name]
            return found[0] if found else None, await app.clock.now()

    schedule, now = asyncio.run(run())
    if as_json:
        print_json({"name": name, "removed": True} if schedule is None else as_dict(schedule))
    else:
        said = [done] if schedule is None else [done, next_run(schedule, now)]
        typer.echo(f"{printable(name)}  {'; '.join(dict.fromkeys(said))}")


def next_run(schedule: "Schedule", now: "datetime") -> str:
    asked = "asked to run now, " if schedule.run_now else ""
    if schedule.paused:
        return f"{asked}paused"
    return f"{asked}next {in_zone(schedule.next_slot, schedule.zone, now)}"


def as_dict(schedule: "Schedule") -> dict[str, object]:
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
        "next_slot": schedule.next_slot.isoformat(),
        "last_slot": None if schedule.last_slot is None else schedule.last_slot.isoformat(),
        "paused": schedule.paused,
        "run_now": bool(schedule.run_now),
    }
