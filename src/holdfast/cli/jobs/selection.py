"""Which jobs a command means: ids, or all that a filter matches, after a person has seen how many those are."""

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

import typer

from holdfast.cli.errors import FAILED
from holdfast.cli.options import to_state, to_uuid
from holdfast.cli.output import print_json, warn
from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.store.contract import JobFilter

_MOST_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Selection:
    ids: Sequence[UUID]
    filter: "JobFilter"
    is_all: bool
    is_confirmed: bool


def to_filter(state: str | None, queue: str | None, kind: str | None, tenant: str | None) -> "JobFilter":
    from holdfast.domain.job import check_name
    from holdfast.store.contract import JobFilter

    for name, value in (("queue", queue), ("kind", kind), ("tenant", tenant)):
        if value is not None:
            check_name(name, value)
    return JobFilter(to_state(state), queue, kind, tenant)


def to_selection(
    verb: str, states: Sequence[str], ids: Sequence[str], filter: "JobFilter", is_all: bool, is_confirmed: bool
) -> Selection:
    """`states` are those whose jobs the verb can change."""
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
    return Selection([to_uuid(id) for id in ids], filter, is_all, is_confirmed)


def change_jobs(
    app: "Holdfast",
    selection: Selection,
    verb: str,
    change: "Callable[[Sequence[UUID]], Awaitable[Sequence[StrEnum]]]",
    meanings: dict[str, str],
    *,
    as_json: bool,
) -> None:
    """Let the store change the selected jobs and say what became of each."""
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
    _complain([id for id, answer in answers if answer == "locked"], "somebody else is changing", "try again")


def _complain(ids: Sequence[UUID], what: str, advice: str) -> None:
    if ids:
        names = ", ".join(str(id) for id in ids[:3]) + (f" and {len(ids) - 3:,} more" if len(ids) > 3 else "")
        warn(f"{what} {names}; {advice}")
        raise typer.Exit(FAILED)


async def _selected(app: "Holdfast", selection: Selection, verb: str) -> list[UUID]:
    jobs = await app.jobs.list(selection.filter, _MOST_AT_ONCE)
    if jobs and not selection.is_confirmed:
        _confirm(len(jobs), verb, selection.filter)
    if len(jobs) == _MOST_AT_ONCE:
        warn(f"these are the newest {_MOST_AT_ONCE:,}; run it again for the rest")
    return [job.id for job in jobs]


def _confirm(count: int, verb: str, filter: "JobFilter") -> None:
    names = [f"{filter.state}"]
    names += [f"{name} {value}" for name in ("kind", "queue", "tenant") if (value := getattr(filter, name))]
    question = f"{verb} {count:,} job{'s' if count != 1 else ''} ({', '.join(names)})?"
    if not sys.stdin.isatty():
        raise InvalidInput(f"{question} Nobody is here to ask: add --yes")
    if not typer.confirm(question, err=True):
        raise typer.Abort
