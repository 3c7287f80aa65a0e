"""`holdfast jobs …`: list, show, wait for, retry, cancel and delete jobs."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from holdfast.cli.errors import FAILED
from holdfast.cli.job_ids import GivenId, to_job_id, whole_ids
from holdfast.cli.job_selection import JobQuery, Selection, selected, to_query, to_selection
from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import (
    AppOption,
    JsonOption,
    KindOption,
    QueueOption,
    SchemaOption,
    StateOption,
    StoreOption,
    TenantOption,
    noun,
    store_of,
)
from holdfast.cli.output import print_json, printable, warn
from holdfast.domain.errors import InvalidInput, UnknownJob

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.cli.job_display import JobPage
    from holdfast.domain.job import Job

TIMED_OUT = 124
"""The exit code of the `timeout` command, too."""

_MOST_SHOWN = 10_000
_RETRIED = ("failed", "dead", "canceled", "succeeded")
_CANCELED = ("ready", "running", "failed", "dead")
_DELETED = _RETRIED
_RETRY_ANSWERS = {
    "ready": "ready to run again",
    "live": "not changed: already ready or running",
    "locked": "not changed: another process is changing it right now",
    "unknown": "no such job",
}
_CANCEL_ANSWERS = {
    "canceled": "canceled",
    "requested": "running: asked to stop; its worker notices when it next renews the lease",
    "final": "not changed: already finished",
    "locked": "not changed: a transaction is finishing it right now",
    "unknown": "no such job",
}

_DELETE_ANSWERS = {
    "deleted": "deleted",
    "live": "not changed: ready or running; cancel it first",
    "locked": "not changed: another process is changing it right now",
    "unknown": "no such job",
}

commands = noun("List, show, wait for, retry, cancel and delete jobs.")
AllOption = Annotated[bool, typer.Option("--all", help="All jobs that match --state and the other filters.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@commands.command("list")
def list_jobs(
    state: StateOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    tenant: TenantOption = None,
    limit: Annotated[int, typer.Option(help="Maximum number to show, newest first.")] = 20,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the newest jobs."""
    import asyncio

    from holdfast.cli.job_display import print_jobs

    if not 1 <= limit <= _MOST_SHOWN:
        raise InvalidInput(f"limit: {limit} is not a number from 1 to {_MOST_SHOWN:,}")
    query = to_query(state, queue, kind, tenant)
    app = app_of_store(address, store, schema)
    page = asyncio.run(_read_page(app, query, limit))
    if as_json:
        print_json([job.as_dict() for job in page.jobs])
        return
    if page.jobs:
        print_jobs(page)
    elif any(page.counts.values()):
        typer.echo("No jobs match.")
    else:
        typer.echo(f"The store has no jobs yet: {store_of(app)}")


async def _read_page(app: "Holdfast", query: JobQuery, limit: int) -> "JobPage":
    from holdfast.cli.job_display import JobPage

    async with app:
        return JobPage(await query.jobs(app, limit), await app.jobs.count(), await app.clock.now())


@commands.command("show")
def show(
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one job: its state, payload, result and errors."""
    import asyncio

    from holdfast.cli.job_display import print_job

    job, now = asyncio.run(_read_job(app_of_store(address, store, schema), to_job_id(id)))
    if as_json:
        print_json(job.as_dict())
    else:
        print_job(job, now)


async def _read_job(app: "Holdfast", given: GivenId) -> "tuple[Job, datetime]":
    async with app:
        (id,) = await whole_ids(app, [given])
        job = await app.jobs.get(id)
        if job is None:
            raise UnknownJob(f"no job has the id {id}; `holdfast jobs list` shows the newest")
        return job, await app.clock.now()


@commands.command("wait")
def wait(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)],
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Longest wait: 90s, 5m, 1h30m; 0s checks once.")] = "30s",
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until jobs are final, and print how they ended.

    Exits with 0 if all succeeded, with 1 if any did not, and with 124 on timeout.
    """
    import asyncio

    jobs = asyncio.run(_wait(app_of_store(address, store, schema), [to_job_id(id) for id in ids], timeout))
    if as_json:
        print_json([job.as_dict() for job in jobs])
    else:
        for job in jobs:
            typer.echo(_line(job))
    others = [job for job in jobs if job.state.is_final and job.state != "succeeded"]
    late = [job for job in jobs if not job.state.is_final]
    if others:
        warn(f"{len(others)} of {len(jobs)} jobs did not succeed; `holdfast jobs show {others[0].id}` shows why")
        raise typer.Exit(FAILED)
    if late:
        warn(f"{len(late)} of {len(jobs)} jobs had not ended after {timeout}; wait again, or use a longer --timeout")
        raise typer.Exit(TIMED_OUT)


async def _wait(app: "Holdfast", ids: Sequence[GivenId], timeout: str) -> "list[Job]":
    async with app:
        return list((await app.wait_many(await whole_ids(app, ids), timeout)).values())


def _line(job: "Job") -> str:
    error = job.last_error
    why = f"  {error.code} {error.summary}" if error is not None and job.state != "succeeded" else ""
    return printable(f"{job.id}  {job.state}{why}")


@commands.command("retry")
def retry(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False)] = None,
    all: AllOption = False,
    state: StateOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    tenant: TenantOption = None,
    yes: YesOption = False,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make finished jobs ready again.

    Attempts are counted from zero again. Give ids, or select jobs:
    `holdfast jobs retry --all --state failed,dead --kind invoice`.
    """
    selection = to_selection("retry", _RETRIED, ids or [], to_query(state, queue, kind, tenant), all, yes)
    app = app_of_store(address, store, schema)
    _change(app, selection, app.retry, _RETRY_ANSWERS, as_json=as_json)


@commands.command("cancel")
def cancel(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False)] = None,
    all: AllOption = False,
    state: StateOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    tenant: TenantOption = None,
    yes: YesOption = False,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel jobs that are no longer wanted.

    Waiting jobs end at once, running jobs as soon as their worker notices. Give ids, or select jobs:
    `holdfast jobs cancel --all --state ready --kind invoice`.
    """
    selection = to_selection("cancel", _CANCELED, ids or [], to_query(state, queue, kind, tenant), all, yes)
    app = app_of_store(address, store, schema)
    _change(app, selection, app.cancel, _CANCEL_ANSWERS, as_json=as_json)


@commands.command("delete")
def delete(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False)] = None,
    all: AllOption = False,
    state: StateOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    tenant: TenantOption = None,
    yes: YesOption = False,
    address: AppOption = None,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete finished jobs for good: payload, result, errors and key.

    Give ids, or select jobs: `holdfast jobs delete --all --state failed,dead --kind invoice`.
    """
    selection = to_selection("delete", _DELETED, ids or [], to_query(state, queue, kind, tenant), all, yes)
    app = app_of_store(address, store, schema)
    _change(app, selection, app.delete, _DELETE_ANSWERS, as_json=as_json)


def _change(
    app: "Holdfast",
    selection: Selection,
    change: "Callable[[Sequence[UUID]], Awaitable[Sequence[StrEnum]]]",
    meanings: dict[str, str],
    *,
    as_json: bool,
) -> None:
    """Change the selected jobs and print the store's answer for each."""
    import asyncio

    async def run() -> list[tuple[UUID, str]]:
        async with app:
            ids = await selected(app, selection) if selection.is_all else await whole_ids(app, selection.ids)
            return list(zip(ids, await change(ids), strict=True)) if ids else []

    answers = asyncio.run(run())
    if as_json:
        print_json([{"id": str(id), "outcome": answer} for id, answer in answers])
    elif selection.is_all:
        for answer, count in Counter(answer for _, answer in answers).items():
            typer.echo(f"{count:,} {meanings[answer]}")
        if not answers:
            typer.echo("no jobs match; nothing was changed")
    else:
        for id, answer in answers:
            typer.echo(f"{id}  {meanings[answer]}")
    unknown = [id for id, answer in answers if answer == "unknown"]
    _complain(unknown, "no job has the id", "`holdfast jobs list` shows the newest")
    _complain([id for id, answer in answers if answer == "locked"], "another process is changing", "try again")


def _complain(ids: Sequence[UUID], what: str, advice: str) -> None:
    if ids:
        names = ", ".join(str(id) for id in ids[:3]) + (f" and {len(ids) - 3:,} more" if len(ids) > 3 else "")
        warn(f"{what} {names}; {advice}")
        raise typer.Exit(FAILED)
