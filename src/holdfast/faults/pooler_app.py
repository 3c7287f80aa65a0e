"""The handlers under fault, with schedules, and with what else has a way of its own to the store."""

import time

from holdfast import Snooze
from holdfast.faults.app import WORK, Job, app, attempt, work
from holdfast.faults.schedule_app import EACH_SECOND, INLINE

SNOOZY, TOLD, HAPPENED = "fault.snoozy", "fault.told", "fault.happened"

__all__ = ["EACH_SECOND", "HAPPENED", "INLINE", "SNOOZY", "TOLD", "WORK", "app", "snooze"]

app.on(HAPPENED, name=TOLD)(work)


@app.handler(SNOOZY)
async def snooze(job: Job) -> dict[str, int]:
    """Until the time that its payload names."""
    with attempt(job):
        if time.time() < float(job.payload["until"]):
            raise Snooze("200ms")
        return {"fence": job.fence}
