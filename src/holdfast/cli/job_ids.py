"""Ids of jobs as a person gives them: whole, or only their end, which is what a log on a terminal shows."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.domain.errors import InvalidInput, UnknownJob

if TYPE_CHECKING:
    from holdfast.app import Holdfast

GivenId = UUID | str
"""A string is the end of an id, without hyphens."""

_END = re.compile(r"[0-9a-f]{8,31}")
_MOST_SEARCHED = 10_000
_MOST_NAMED = 3


def to_job_id(text: str) -> GivenId:
    try:
        return UUID(text)
    except ValueError:
        end = text.lower().replace("-", "")
        if _END.fullmatch(end):
            return end
    raise InvalidInput(
        f"id: {text!r} is not a job id; it looks like 01890a5d-ac96-774b-bcce-b302099a8057, "
        "or give its last eight digits or more"
    )


async def whole_ids(app: "Holdfast", given: Sequence[GivenId]) -> list[UUID]:
    """Look for ends of ids among the newest jobs of the store."""
    known = await _recent(app) if any(isinstance(each, str) for each in given) else set()
    return [each if isinstance(each, UUID) else _with_end(each, known) for each in given]


async def _recent(app: "Holdfast") -> set[UUID]:
    from holdfast.domain.job import JobState
    from holdfast.store.contract import JobFilter

    # Live jobs may be older than many finished ones.
    filters = (JobFilter(), JobFilter(state=JobState.READY), JobFilter(state=JobState.RUNNING))
    return {id for each in filters for id in await app.jobs.list_ids(each, _MOST_SEARCHED)}


def _with_end(end: str, known: set[UUID]) -> UUID:
    found = sorted((id for id in known if id.hex.endswith(end)), reverse=True)
    if not found:
        raise UnknownJob(
            f"none of the newest {_MOST_SEARCHED:,} jobs has an id that ends with {end}; give the whole id"
        )
    if len(found) > 1:
        named = ", ".join(str(id) for id in found[:_MOST_NAMED])
        more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
        raise InvalidInput(f"id: several jobs have an id that ends with {end}: {named}{more}; give a whole id")
    return found[0]
