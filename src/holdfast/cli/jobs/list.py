"""`holdfast jobs list`: the newest jobs as a table."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.jobs.selection import to_filter
from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import (
    JsonOption,
    KindOption,
    QueueOption,
    SchemaOption,
    StateOption,
    StoreOption,
    TenantOption,
)
from holdfast.cli.output import STATE_STYLES, console, print_json, printable, relative, rough
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from holdfast.app import Holdfast
    from holdfast.job import Job, JobState
    from holdfast.store.contract import JobFilter

_MOST = 10_000
_WIDTH_FOR_ERRORS = 100


def list_jobs(
    state: StateOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    tenant: TenantOption = None,
    limit: Annotated[int, typer.Option(help="How many to show, the newest first.")] = 20,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the newest jobs."""
    import asyncio

    if not 1 <= limit <= _MOST:
        raise InvalidInput(f"limit: {limit} is not a number from 1 to {_MOST:,}")
    wanted = to_filter(state, queue, kind, tenant)
    page = asyncio.run(_read(app_of_store(store, schema), wanted, limit))
    if as_json:
        print_json([job.as_dict() for job in page.jobs])
        return
    shown = console()
    if page.jobs:
        shown.print(_table(page, shown.width))
    shown.print(_footer(page))


@dataclass(frozen=True, slots=True)
class _Page:
    jobs: "Sequence[Job]"
    counts: "Mapping[JobState, int]"
    now: datetime


async def _read(app: "Holdfast", wanted: "JobFilter", limit: int) -> _Page:
    async with app:
        return _Page(await app.jobs.list(wanted, limit), await app.jobs.count(), await app.clock.now())


def _table(page: _Page, width: int) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    with_errors = width >= _WIDTH_FOR_ERRORS and any(job.errors for job in page.jobs)
    with_queue = width >= _WIDTH_FOR_ERRORS and len({job.queue for job in page.jobs}) > 1
    with_tenant = width >= _WIDTH_FOR_ERRORS and any(job.tenant for job in page.jobs)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("id", no_wrap=True, min_width=36)
    table.add_column("state", no_wrap=True)
    table.add_column("kind", overflow="fold")
    if with_queue:
        table.add_column("queue", overflow="fold")
    if with_tenant:
        table.add_column("tenant", overflow="fold")
    table.add_column("try", justify="right", no_wrap=True)
    table.add_column("when", no_wrap=True)
    if with_errors:
        table.add_column("last error", overflow="ellipsis", no_wrap=True, ratio=1)
    for job in page.jobs:
        cells = [Text(str(job.id)), Text(job.state, style=STATE_STYLES[job.state]), Text(printable(job.kind))]
        if with_queue:
            cells.append(Text(printable(job.queue)))
        if with_tenant:
            cells.append(Text(printable(job.tenant)))
        cells += [Text(str(job.attempt)), Text(when(job, page.now))]
        if with_errors:
            cells.append(Text(_last_error(job), style="red"))
        table.add_row(*cells)
    return table


def when(job: "Job", now: datetime) -> str:
    """The time that matters in the job's state."""
    if job.finished_at is not None:
        return relative(job.finished_at, now)
    if job.lease_until is not None and job.started_at is not None:
        return f"for {rough(now - job.started_at)}"
    if job.run_at is None:
        return ""
    return relative(job.run_at, now) if job.run_at > now else f"due {relative(job.run_at, now)}"


def _last_error(job: "Job") -> str:
    from holdfast.json_text import decode

    if not job.errors:
        return ""
    error = decode(job.errors[-1])
    code, kind, message = (error.get(name, "") for name in ("code", "type", "message"))
    # The code of an exception that nobody has named says less than its type.
    return printable(f"{kind if code == 'ERROR' else code}: {message}".replace("\n", " "))


def _footer(page: _Page) -> str:
    if not page.jobs:
        return "No jobs match." if any(page.counts.values()) else "The store has no jobs yet."
    parts = [f"[{STATE_STYLES[state]}]{state}[/] {count:,}" for state, count in page.counts.items() if count]
    return f"{len(page.jobs)} shown; in the store: {', '.join(parts)}"
