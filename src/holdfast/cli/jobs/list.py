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
    store_of,
)
from holdfast.cli.output import STATE_STYLES, console, new_table, print_json, print_table, printable, relative, rough
from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from holdfast.app import Holdfast
    from holdfast.domain.job import Job, JobState
    from holdfast.store.contract import JobFilter

_MOST = 10_000
_ERRORS = "last error"
_LEAST_ERROR = 20
# `jobs show` has all of it.
_LONGEST_ERROR = 200


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
    app = app_of_store(store, schema)
    page = asyncio.run(_read(app, wanted, limit))
    if as_json:
        print_json([job.as_dict() for job in page.jobs])
        return
    if page.jobs:
        full = _table(page, short=False)
        flexible = _LEAST_ERROR if full.columns[-1].header == _ERRORS else 0
        print_table(full, lambda _: _table(page, short=True), flexible)
        console().print(_footer(page))
    elif any(page.counts.values()):
        typer.echo("No jobs match.")
    else:
        typer.echo(f"The store has no jobs yet: {store_of(app)}")


@dataclass(frozen=True, slots=True)
class _Page:
    jobs: "Sequence[Job]"
    counts: "Mapping[JobState, int]"
    now: datetime


async def _read(app: "Holdfast", wanted: "JobFilter", limit: int) -> _Page:
    async with app:
        return _Page(await app.jobs.list(wanted, limit), await app.jobs.count(), await app.clock.now())


def _table(page: _Page, *, short: bool) -> "Table":
    """The short one is for narrow terminals: it has what every job has, and folds a long kind."""
    from rich.text import Text

    with_errors = not short and any(job.errors for job in page.jobs)
    with_queue = not short and len({job.queue for job in page.jobs}) > 1
    with_tenant = not short and any(job.tenant for job in page.jobs)
    optional = (("queue", with_queue), ("tenant", with_tenant))
    table = new_table("id", "state", "kind", *(name for name, has in optional if has), "try", "when")
    if short:
        table.columns[2].overflow, table.columns[2].no_wrap = "fold", False
    if with_errors:
        table.add_column(_ERRORS, overflow="ellipsis", no_wrap=True)
    for job in page.jobs:
        cells = [Text(str(job.id)), Text(job.state, style=STATE_STYLES[job.state]), Text(printable(job.kind))]
        cells += [Text(printable(getattr(job, name))) for name, has in optional if has]
        cells += [Text(str(job.attempt), justify="right"), Text(when(job, page.now))]
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
    from holdfast.domain.json_text import decode

    if not job.errors:
        return ""
    error = decode(job.errors[-1])
    code, kind, message = (error.get(name, "") for name in ("code", "type", "message"))
    # The code of an exception that nobody has named says less than its type.
    line = " ".join(printable(f"{kind if code == 'ERROR' else code}: {message}").split())
    return line if len(line) <= _LONGEST_ERROR else f"{line[: _LONGEST_ERROR - 1]}…"


def _footer(page: _Page) -> str:
    parts = [f"[{STATE_STYLES[state]}]{state}[/] {count:,}" for state, count in page.counts.items() if count]
    return f"{len(page.jobs)} shown; in the store: {', '.join(parts)}"
