"""The handlers under fault, with a job schedule and an inline runner, whose slots are noted by their times."""

import asyncio

from holdfast import InlineSlot
from holdfast_lab.faults.app import WORK, app, record, work
from holdfast_lab.faults.record import DONE, What

EACH_SECOND, INLINE = "fault.each_second", "fault.inline"
INLINE_SECONDS = 0.5
"""How long the inline runner is at work, so that a kill meets it there."""

app.schedule("every 1s", name=EACH_SECOND, payload={}, missed="all")(work)
__all__ = ["EACH_SECOND", "INLINE", "WORK", "app", "inline"]


@app.runner(INLINE, "every 2s", missed="all")
async def inline(slot: InlineSlot) -> dict[str, int]:
    moment = "" if slot.slot is None else slot.slot.isoformat()
    _note(What.START, moment, slot.run, "")
    await asyncio.sleep(INLINE_SECONDS)
    _note(What.END, moment, slot.run, DONE)
    return {"done": 1}


def _note(what: What, slot: str, run: int, how: str) -> None:
    if record is not None:
        record.note(what, slot=slot, run=run, how=how)
