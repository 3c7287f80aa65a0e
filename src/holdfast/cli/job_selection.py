"""Which jobs a command of `holdfast jobs` is about: by id, or by state and other filters."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

import typer

from holdfast.cli.job_ids import GivenId, to_job_id
from holdfast.cli.options import to_states
from holdfast.cli.output import warn
from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.domain.job import Job, JobState
    from holdfast.store.contract import JobFilter

_MOST_CHANGED = 10_000


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The jobs in these states that match the filter; without states, in any state."""

    states: "tuple[JobState, ...]"
    filter: "JobFilter"

    async def jobs(self, app: "Holdfast", limit: int) -> "list[Job]":
        """Return the newest jobs first."""
        # By id, because a job may change its state between two of these requests.
        found = {job.id: job for each in self._filters() for job in await app.jobs.list(each, limit)}
        return [found[id] for id in sorted(found, reverse=True)[:limit]]

    async def ids(self, app: "Holdfast", limit: int) -> list[UUID]:
        found = {id for each in self._filters() for id in await app.jobs.list_ids(each, limit)}
        return sorted(found, reverse=True)[:limit]

    def _filters(self) -> "list[JobFilter]":
        return [replace(self.filter, state=state) for state in self.states] or [self.filter]


def to_query(state: str | None, queue: str | None, kind: str | None, tenant: str | None) -> JobQuery:
    from holdfast.domain.job import check_name
    from holdfast.store.contract import JobFilter

    for name, value in (("queue", queue), ("kind", kind), ("tenant", tenant)):
        if value is not None:
            check_name(name, value)
    return JobQuery(to_states(state), JobFilter(None, queue, kind, tenant))


@dataclass(frozen=True, slots=True)
class Selection:
    verb: str
    ids: Sequence[GivenId]
    query: JobQuery
    is_all: bool
    is_confirmed: bool


def to_selection(
    verb: str, states: Sequence[str], ids: Sequence[str], query: JobQuery, is_all: bool, is_confirmed: bool
) -> Selection:
    """`states` are the states in which the verb can change a job."""
    from holdfast.store.contract import JobFilter

    if ids and (is_all or query != JobQuery((), JobFilter())):
        raise InvalidInput("give ids, or --all with a filter, not both")
    if not ids and not is_all:
        raise InvalidInput(
            f"which jobs? Give their ids, or --all with --state: `holdfast jobs {verb} --all --state failed,dead`"
        )
    if is_all and not query.states:
        raise InvalidInput(f"--all needs --state; `holdfast jobs {verb}` accepts {_listed(states)}")
    others = [state for state in query.states if state not in states]
    if is_all and others:
        raise InvalidInput(f"--state {others[0]}: `holdfast jobs {verb} --all` only accepts {_listed(states)}")
    return Selection(verb, [to_job_id(id) for id in ids], query, is_all, is_confirmed)


async def selected(app: "Holdfast", selection: Selection) -> list[UUID]:
    """Return the jobs of `--all`, once a person has confirmed."""
    ids = await selection.query.ids(app, _MOST_CHANGED)
    if ids and not selection.is_confirmed:
        _confirm(len(ids), selection)
    if len(ids) == _MOST_CHANGED:
        warn(f"only the newest {_MOST_CHANGED:,} jobs are selected; run this again for the rest")
    return ids


def _confirm(count: int, selection: Selection) -> None:
    filter = selection.query.filter
    names = [_listed(selection.query.states)]
    names += [f"{name} {value}" for name in ("kind", "queue", "tenant") if (value := getattr(filter, name))]
    question = f"{selection.verb} {count:,} job{'s' if count != 1 else ''} ({', '.join(names)})?"
    if not sys.stdin.isatty():
        raise InvalidInput(f"{question} There is no terminal to confirm on; add --yes")
    if not typer.confirm(question, err=True):
        raise typer.Abort


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last
