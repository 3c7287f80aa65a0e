"""Formats jobs for display: the table of `jobs list` and the details of `jobs show`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.cli.output import STATE_STYLES, console, new_table, print_table, printable, relative, rough

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from holdfast.domain.job import Job, JobState

_ERRORS = "last error"
_LEAST_ERROR = 20
# `jobs show` prints errors in full.
_LONGEST_ERROR = 200


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, the number of jobs in the store by state, and the store's time."""

    jobs: "Sequence[Job]"
    counts: "Mapping[JobState, int]"
    now: datetime


def print_jobs(page: JobPage) -> None:
    full = _table(page, short=False)
    flexible = _LEAST_ERROR if full.columns[-1].header == _ERRORS else 0
    print_table(full, lambda _: _table(page, short=True), flexible)
    console().print(_footer(page))


def _table(page: JobPage, *, short: bool) -> "Table":
    """The short table is for narrow terminals: it has only the columns that every job fills, and folds a long kind."""
    from rich.text import Text

    with_errors = not short and any(_last_error(job) for job in page.jobs)
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
        cells += [Text(str(job.attempt), justify="right"), Text(_when(job, page.now))]
        if with_errors:
            cells.append(Text(_last_error(job), style="red"))
        table.add_row(*cells)
    return table


def _when(job: "Job", now: datetime) -> str:
    """The time that matters most in the job's state."""
    if job.finished_at is not None:
        return relative(job.finished_at, now)
    if job.lease_until is not None and job.started_at is not None:
        return f"for {rough(now - job.started_at)}"
    if job.run_at is None:
        return ""
    return relative(job.run_at, now) if job.run_at > now else f"due {relative(job.run_at, now)}"


def _last_error(job: "Job") -> str:
    """Why the job has not succeeded so far. Errors of earlier attempts do not matter once it has."""
    if not job.errors or job.state == "succeeded":
        return ""
    error = job.errors[-1]
    code, kind, message = (error.get(name, "") for name in ("code", "type", "message"))
    # The default code ERROR says less than the exception's type.
    line = " ".join(printable(f"{kind if code == 'ERROR' else code}: {message}").split())
    return line if len(line) <= _LONGEST_ERROR else f"{line[: _LONGEST_ERROR - 1]}…"


def _footer(page: JobPage) -> str:
    parts = [f"[{STATE_STYLES[state]}]{state}[/] {count:,}" for state, count in page.counts.items() if count]
    return f"{len(page.jobs)} shown; in the store: {', '.join(parts)}"


def print_job(job: "Job", now: datetime) -> None:
    from rich.text import Text

    shown = console()
    shown.print(_facts(job, now))
    values = job.as_dict()
    for name in ("payload", "headers", "progress", "result"):
        if values[name] is not None:
            shown.print(Text(f"\n{name}", style="bold"))
            shown.print(Text(printable(json.dumps(values[name], indent=2, ensure_ascii=False))))
    if job.errors:
        shown.print(Text("\nerrors", style="bold"))
    for error in job.errors:
        _print_error(shown, error, now, with_traceback=error is job.errors[-1])


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
        return "(cancel requested)"
    return "" if job.state.is_final else f"({_when(job, now)})"


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
