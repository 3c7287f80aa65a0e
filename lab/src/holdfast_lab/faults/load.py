"""Load for the workers of a case while faults happen, and figures about their speed from the record."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from holdfast.domain.errors import StoreUnavailable
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.record import DONE, Note, What

_LOOK_SECONDS = 0.2


@asynccontextmanager
async def backlog(lab: Lab, kinds: Sequence[str], jobs: int, seconds: float) -> AsyncIterator[None]:
    """Keep about this many jobs of `seconds` ready to be claimed while the block runs."""
    await _fill(lab, kinds, jobs, seconds)
    filling = asyncio.create_task(_keep_filled(lab, kinds, jobs, seconds))
    try:
        yield
    finally:
        filling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await filling


async def _keep_filled(lab: Lab, kinds: Sequence[str], jobs: int, seconds: float) -> None:
    while True:
        # A fault may be in progress.
        with contextlib.suppress(StoreUnavailable, OSError):
            await _fill(lab, kinds, jobs - await lab.open_jobs(), seconds)
        await asyncio.sleep(_LOOK_SECONDS)


async def _fill(lab: Lab, kinds: Sequence[str], jobs: int, seconds: float) -> None:
    share = -(-jobs // len(kinds))
    for kind in kinds:
        if share > 0:
            await lab.enqueue_many(kind, share, {"seconds": seconds})


def ends(notes: Iterable[Note]) -> list[float]:
    """The times at which attempts ended well."""
    return [note.at for note in notes if note.what is What.END and note.more.get("how") == DONE]


def latencies(notes: Iterable[Note]) -> dict[UUID, float]:
    """Seconds from each accepted enqueue to the first start of its job."""
    accepted: dict[UUID, float] = {}
    found: dict[UUID, float] = {}
    for note in notes:
        if note.job is None:
            continue
        if note.what is What.ACCEPTED:
            accepted[note.job] = note.at
        elif note.what is What.START:
            found.setdefault(note.job, note.at)
    return {job: max(0.0, at - accepted[job]) for job, at in found.items() if job in accepted}
