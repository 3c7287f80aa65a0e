"""`holdfast jobs show`: everything about one job."""

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.jobs.list import when
from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import JsonOption, SchemaOption, StoreOption, to_uuid
from holdfast.cli.output import STATE_STYLES, console, print_json, printable, relative
from holdfast.domain.errors import UnknownJob

if TYPE_CHECKING:
    from uuid import UUID

    from rich.console import Console
    from rich.table import Table

    from holdfast.app import Holdfast
    from holdfast.domain.job import Job


def show(
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one job: its state, payload, result and errors."""
    import asyncio

    job, now = asyncio.run(_read(app_of_store(store, schema), to_uuid(id)))
    if as_json:
        print_json(job.as_dict())
    else:
        _print(console(), job, now)


async def _read(app: "Holdfast", id: "UUID") -> "tuple[Job, datetime]":
    async with app:
        job = await app.jobs.get(id)
        if job is None:
            raise UnknownJob(f"no job has the id {id}; `holdfast jobs list` shows the newest")
        return job, await app.clock.now()


def _print(shown: "Console", job: "Job", now: datetime) -> None:
    from rich.text import Text

    from holdfast.domain.json_text import readable

    shown.print(_facts(job, now))
    values = job.as_dict()
    for name in ("payload", "headers", "progress", "result"):
        if values[name] is not None:
            shown.print(Text(f"\n{name}", style="bold"))
            shown.print(Text(printable(json.dumps(values[name], indent=2, ensure_ascii=False))))
    errors: list[dict[str, Any]] = [readable(error) for error in job.errors]
    if errors:
        shown.print(Text("\nerrors", style="bold"))
    for error in errors:
        _print_error(shown, error, now, with_traceback=error is errors[-1])


def _facts(job: "Job", now: datetime) -> "Table":
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")

    def add(name: str, value: object, style: str = "") -> None:
        if value not in (None, ""):
            facts.add_row(name, Text(printable(str(value)), style=style))

    add("id", job.id)
    add("kind", job.kind)
    add("state", f"{job.state} {_state_remark(job, now)}".strip(), STATE_STYLES[job.state])
    add("queue", f"{job.queue}, priority {job.priority}")
    add("tenant", job.tenant)
    add("key", job.key)
    add("correlation id", job.correlation_id)
    add("attempts", f"{job.attempt}{f' of {job.max_attempts}' if job.max_attempts else ''}{_losses(job)}")
    for name, moment in (
        ("created", job.created_at),
        ("not before", job.run_at if job.lease_until is None else None),
        ("started", job.started_at),
        ("finished", job.finished_at),
        ("lease until", job.lease_until),
    ):
        if moment is not None:
            add(name, f"{moment.isoformat(sep=' ', timespec='milliseconds')}  ({relative(moment, now)})")
    add("held by", job.holder)
    return facts


def _state_remark(job: "Job", now: datetime) -> str:
    if job.cancel_requested:
        return "(asked to cancel)"
    return "" if job.state.is_final else f"({when(job, now)})"


def _losses(job: "Job") -> str:
    if not job.losses:
        return ""
    return f", {job.losses} lost because the worker died" if job.losses > 1 else ", 1 lost because the worker died"


def _print_error(shown: "Console", error: dict[str, Any], now: datetime, *, with_traceback: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    at = error.get("at")
    moment = f", {relative(datetime.fromisoformat(at), now)}" if isinstance(at, str) else ""
    line = Text("  ")
    line.append(f"attempt {error.get('attempt', '?')}{moment}: ", style="dim")
    line.append(printable(str(error.get("code", ""))), style="bold red")
    line.append(f" {printable(str(error.get('type', '')))}: {printable(str(error.get('message', '')))}")
    shown.print(line)
    if with_traceback and error.get("traceback"):
        shown.print(Padding(Text(printable(str(error["traceback"])).rstrip(), style="dim"), (0, 0, 0, 4)))
