"""The handlers under test, plus a job schedule and an inline runner that notes its occurrences by their times."""

import asyncio

from holdfast.schedules import Occurrence
from holdfast_lab.faults.app import WORK, app, record, work
from holdfast_lab.faults.record import DONE, What

EACH_SECOND, INLINE = "fault.each_second", "fault.inline"
INLINE_SECONDS = 0.5
"""How long the inline runner works, so that kills can hit it."""

app.schedule("every 1s", name=EACH_SECOND, payload={}, missed="all")(work)
__all__ = ["EACH_SECOND", "INLINE", "WORK", "app", "inline"]


@app.runner(INLINE, "every 2s", missed="all")
async def inline(occurrence: Occurrence) -> dict[str, int]:
    moment = "" if occurrence.at is None else occurrence.at.isoformat()
    _note(What.START, moment, occurrence.run, "")
    await asyncio.sleep(INLINE_SECONDS)
    _note(What.END, moment, occurrence.run, DONE)
    return {"done": 1}


def _note(what: What, occurrence: str, run: int, how: str) -> None:
    if record is not None:
        record.note(what, occurrence=occurrence, run=run, how=how)
