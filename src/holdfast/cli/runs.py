"""`holdfast runs list`: shows what ran, where, when, and with what result."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import AppOption, JsonOption, SchemaOption, StoreOption, noun, store_of
from holdfast.cli.output import in_zone, new_table, print_json, print_table, printable, relative, rough
from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from holdfast.app import Holdfast
    from holdfast.store.schedules import Run

_MOST = 10_000
# In the short table: the width of the columns besides the name, the width of the times, and the narrowest name column.
_OTHERS = 50
_TIMES = 28
_SHORTEST_NAME = 12
_LEAST_RESULT = 40

commands = noun("List runs of schedules and runners.")


@commands.command("list")
def list_runs(
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only runs of this schedule or runner.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number to show, newest first.")] = 20,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the newest runs of schedules and runners."""
    import asyncio

    if not 1 <= limit <= _MOST:
        raise InvalidInput(f"limit: {limit} is not a number from 1 to {_MOST:,}")
    app = app_of_store(address, store, schema)
    page = asyncio.run(_read(app, name, limit))
    if as_json:
        print_json([_as_dict(run) for run in page.runs])
    elif page.runs:
        print_table(_full(page), lambda width: _short(page, width), flexible=_LEAST_RESULT)
    elif name is None:
        typer.echo(f"The store has no runs yet: {store_of(app)}")
    else:
        typer.echo(f"No runs of {printable(name)}.")


@dataclass(frozen=True, slots=True)
class _Page:
    """`zones` maps the name of each schedule to its time zone."""

    runs: "Sequence[Run]"
    zones: "Mapping[str, str]"
    now: datetime


async def _read(app: "Holdfast", name: str | None, limit: int) -> _Page:
    async with app:
        runs = await app.runs.list(name, limit)
        zones = {schedule.name: schedule.zone for schedule in await app.schedules.list()}
        return _Page(runs, zones, await app.clock.now())


def _full(page: _Page) -> "Table":
    from rich.text import Text

    table = new_table("name", "started", "took", "occurrence", "replica", "result")
    for run in page.runs:
        zone = page.zones.get(run.name, "UTC")
        table.add_row(
            Text(printable(run.name)),
            Text(in_zone(run.started_at, zone, page.now)),
            Text(_took(run)),
            Text("" if run.occurrence is None else in_zone(run.occurrence, zone, page.now).partition(" (")[0]),
            Text(printable(run.replica)),
            Text(_error(run) or _result(run), style="red" if run.error else ""),
        )
    return table


def _short(page: _Page, width: int) -> "Table":
    from rich.text import Text

    table = new_table("name", "started", "took", "result")
    table.columns[0].max_width = max(_SHORTEST_NAME, width - _OTHERS)
    for run in page.runs:
        table.add_row(
            Text(printable(run.name)),
            Text(relative(run.started_at, page.now)),
            Text(_took(run)),
            Text(_error(run) or _short_result(run), style="red" if run.error else ""),
        )
    taken = min(table.columns[0].max_width, max(len(run.name) for run in page.runs))
    table.columns[-1].max_width = max(_SHORTEST_NAME, width - taken - _TIMES)
    return table


def _took(run: "Run") -> str:
    return "still running" if run.finished_at is None else rough(run.finished_at - run.started_at)


def _error(run: "Run") -> str:
    from holdfast.domain.json_text import decode

    if run.error is None:
        return ""
    error = decode(run.error)
    said = f"{error.get('code', '')}: {error.get('message', '')}" if isinstance(error, dict) else str(error)
    return printable(" ".join(said.split()))


def _result(run: "Run") -> str:
    from holdfast.domain.json_text import decode

    return "" if run.result is None else printable(json.dumps(decode(run.result), ensure_ascii=False))


def _short_result(run: "Run") -> str:
    """The result in words if a job schedule ran, because its JSON lists the ids of all jobs."""
    from holdfast.domain.json_text import decode

    result = None if run.result is None else decode(run.result)
    if not isinstance(result, dict) or not isinstance(result.get("enqueued"), int):
        return _result(run)
    skipped = result.get("dropped")
    words = "1 job" if result["enqueued"] == 1 else f"{result['enqueued']:,} jobs"
    return f"{words}, {skipped:,} skipped" if isinstance(skipped, int) and skipped else words


def _as_dict(run: "Run") -> dict[str, object]:
    from holdfast.domain.json_text import decode

    return {
        "id": run.id,
        "name": run.name,
        "replica": run.replica,
        "occurrence": None if run.occurrence is None else run.occurrence.isoformat(),
        "started_at": run.started_at.isoformat(),
        "finished_at": None if run.finished_at is None else run.finished_at.isoformat(),
        "result": None if run.result is None else decode(run.result),
        "error": None if run.error is None else decode(run.error),
    }
