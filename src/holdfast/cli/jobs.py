"""`holdfast jobs …`: look at jobs, wait for them, retry them, cancel them."""

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from holdfast.cli.errors import FAILED
from holdfast.cli.load_app import app_of_store
from holdfast.cli.options import (
    JsonOption,
    KindOption,
    QueueOption,
    SchemaOption,
    StateOption,
    StoreOption,
    TenantOption,
    noun,
    store_of,
    to_state,
    to_uuid,
)
from holdfast.cli.output import print_json, printable, warn
from holdfast.domain.errors import InvalidInput, UnknownJob

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.cli.job_display import JobPage
    from holdfast.domain.job import Job
    from holdfast.store.contract import JobFilter

TIMED_OUT = 124
"""The exit code that `timeout` uses, too."""

_MOST_SHOWN = 10_000
_MOST_CHANGED = 10_000
_RETRIED = ("failed", "dead", "canceled", "succeeded")
_CANCELED = ("ready", "running", "failed", "dead")
_RETRY_ANSWERS = {
    "ready": "ready to run again",
    "live": "not changed: already ready or running",
    "locked": "not changed: another process is changing it right now",
    "unknown": "not known",
}
_CANCEL_ANSWERS = {
    "canceled": "canceled",
    "requested": "running: asked to stop; its worker notices at the next renewal of the lease",
    "final": "not changed: already finished",
    "locked": "not changed: a transaction is finishing it right now",
    "unknown": "not known",
}

commands = noun("Look at jobs, wait for them, retry them, cancel them.")
AllOption = Annotated[bool, typer.Option("--all", help="All jobs that match --state and the other filters.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@commands.command("list")
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

    from holdfast.cli.job_display import print_jobs

    if not 1 <= limit <= _MOST_SHOWN:
        raise InvalidInput(f"limit: {limit} is not a number from 1 to {_MOST_SHOWN:,}")
    wanted = _to_filter(state, queue, kind, tenant)
    app = app_of_store(store, schema)
    page = asyncio.run(_read_page(app, wanted, limit))
    if as_json:
        print_json([job.as_dict() for job in page.jobs])
        return
    if page.jobs:
        print_jobs(page)
    elif any(page.counts.values()):
        typer.echo("No jobs match.")
    else:
        typer.echo(f"The store has no jobs yet: {store_of(app)}")


async def _read_page(app: "Holdfast", wanted: "JobFilter", limit: int) -> "JobPage":
    from holdfast.cli.job_display import JobPage

    async with app:
        return JobPage(await app.jobs.list(wanted, limit), await app.jobs.count(), await app.clock.now())


@commands.command("show")
def show(
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one job: its state, payload, result and errors."""
    import asyncio

    from holdfast.cli.job_display import print_job

    job, now = asyncio.run(_read_job(app_of_store(store, schema), to_uuid(id)))
    if as_json:
        print_json(job.as_dict())
    else:
        print_job(job, now)


async def _read_job(app: "Holdfast", id: UUID) -> "tuple[Job, datetime]":
    async with app:
        job = await app.jobs.get(id)
        if job is None:
            raise UnknownJob(f"no job has the id {id}; `holdfast jobs list` shows the newest")
        return job, await app.clock.now()


@commands.command("wait")
def wait(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)],
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long at most: 90s, 5m, 1h30m; 0s looks once.")
    ] = "30s",
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until jobs are final, and say how they ended.

    Exits with 0 if all succeeded, with 1 if one did not, and with 124 if time ran out.
    """
    import asyncio

    jobs = asyncio.run(_wait(app_of_store(store, schema), [to_uuid(id) for id in ids], timeout))
    if as_json:
        print_json([job.as_dict() for job in jobs])
    else:
        for job in jobs:
            typer.echo(_line(job))
    others = [job for job in jobs if job.state.is_final and job.state != "succeeded"]
    late = [job for job in jobs if not job.state.is_final]
    if others:
        warn(f"{len(others)} of {len(jobs)} did not succeed; `holdfast jobs show {others[0].id}` says why")
        raise typer.Exit(FAILED)
    if late:
        warn(f"{len(late)} of {len(jobs)} not final after {timeout}; wait again, or with a longer --timeout")
        raise typer.Exit(TIMED_OUT)


async def _wait(app: "Holdfast", ids: list[UUID], timeout: str) -> "list[Job]":
    async with app:
        return list((await app.wait_many(ids, timeout)).values())


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
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make finished jobs ready again.

    Their attempts are counted from zero. Give ids, or choose: `holdfast jobs retry --all --state dead --kind invoice`.
    """
    selection = _to_selection("retry", _RETRIED, ids or [], _to_filter(state, queue, kind, tenant), all, yes)
    app = app_of_store(store, schema)
    _change(app, selection, "retry", app.retry, _RETRY_ANSWERS, as_json=as_json)


@commands.command("cancel")
def cancel(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", show_default=False)] = None,
    all: AllOption = False,
    state: StateOption = None,
    queue: QueueOption = None,
    kind: KindOption = None,
    tenant: TenantOption = None,
    yes: YesOption = False,
    store: StoreOption = None,
    schema: SchemaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel jobs that are no longer wanted.

    Waiting jobs end at once, running ones as soon as their worker notices. Give ids, or choose:
    `holdfast jobs cancel --all --state ready --kind invoice`.
    """
    selection = _to_selection("cancel", _CANCELED, ids or [], _to_filter(state, queue, kind, tenant), all, yes)
    app = app_of_store(store, schema)
    _change(app, selection, "cancel", app.cancel, _CANCEL_ANSWERS, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Selection:
    ids: Sequence[UUID]
    filter: "JobFilter"
    is_all: bool
    is_confirmed: bool


def _to_filter(state: str | None, queue: str | None, kind: str | None, tenant: str | None) -> "JobFilter":
    from holdfast.domain.job import check_name
    from holdfast.store.contract import JobFilter

    for name, value in (("queue", queue), ("kind", kind), ("tenant", tenant)):
        if value is not None:
            check_name(name, value)
    return JobFilter(to_state(state), queue, kind, tenant)


def _to_selection(
    verb: str, states: Sequence[str], ids: Sequence[str], filter: "JobFilter", is_all: bool, is_confirmed: bool
) -> _Selection:
    """`states`: the states in which the verb can change a job."""
    from holdfast.store.contract import JobFilter

    if ids and (is_all or filter != JobFilter()):
        raise InvalidInput("give ids, or --all with a filter, not both")
    if not ids and not is_all:
        raise InvalidInput(
            f"which jobs? Give their ids, or --all with --state: `holdfast jobs {verb} --all --state dead`"
        )
    if is_all and filter.state not in states:
        found = "without --state" if filter.state is None else f"with --state {filter.state}"
        raise InvalidInput(f"--all {found} is not possible here; {verb} takes --state {' or '.join(states)}")
    return _Selection([to_uuid(id) for id in ids], filter, is_all, is_confirmed)


def _change(
    app: "Holdfast",
    selection: _Selection,
    verb: str,
    change: "Callable[[Sequence[UUID]], Awaitable[Sequence[StrEnum]]]",
    meanings: dict[str, str],
    *,
    as_json: bool,
) -> None:
    """Change the selected jobs and print the store's answer for each."""
    import asyncio

    async def run() -> list[tuple[UUID, str]]:
        async with app:
            ids = await _selected(app, selection, verb) if selection.is_all else selection.ids
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
    _complain(
        [id for id, answer in answers if answer == "unknown"], "no job has the id", "`holdfast jobs list` shows them"
    )
    _complain([id for id, answer in answers if answer == "locked"], "another process is changing", "try again")


def _complain(ids: Sequence[UUID], what: str, advice: str) -> None:
    if ids:
        names = ", ".join(str(id) for id in ids[:3]) + (f" and {len(ids) - 3:,} more" if len(ids) > 3 else "")
        warn(f"{what} {names}; {advice}")
        raise typer.Exit(FAILED)


async def _selected(app: "Holdfast", selection: _Selection, verb: str) -> list[UUID]:
    jobs = await app.jobs.list(selection.filter, _MOST_CHANGED)
    if jobs and not selection.is_confirmed:
        _confirm(len(jobs), verb, selection.filter)
    if len(jobs) == _MOST_CHANGED:
        warn(f"these are the newest {_MOST_CHANGED:,}; run it again for the rest")
    return [job.id for job in jobs]


def _confirm(count: int, verb: str, filter: "JobFilter") -> None:
    names = [f"{filter.state}"]
    names += [f"{name} {value}" for name in ("kind", "queue", "tenant") if (value := getattr(filter, name))]
    question = f"{verb} {count:,} job{'s' if count != 1 else ''} ({', '.join(names)})?"
    if not sys.stdin.isatty():
        raise InvalidInput(f"{question} There is no terminal to ask on: add --yes")
    if not typer.confirm(question, err=True):
        raise typer.Abort
