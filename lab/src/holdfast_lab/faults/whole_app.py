"""The handlers under test, plus schedules, snoozes and events, which reach the store in other ways."""

import time

from holdfast import Snooze
from holdfast_lab.faults.app import WORK, Job, app, attempt, work
from holdfast_lab.faults.schedule_app import EACH_SECOND, INLINE

SNOOZY, TELLS, TOLD, HAPPENED = "fault.snoozy", "fault.tells", "fault.told", "fault.happened"
WHOLE_APP = f"{__name__}:app"

__all__ = ["EACH_SECOND", "HAPPENED", "INLINE", "SNOOZY", "TELLS", "TOLD", "WHOLE_APP", "WORK", "app", "snooze", "tell"]

app.on(HAPPENED, name=TOLD)(work)


@app.handler(SNOOZY)
async def snooze(job: Job) -> dict[str, int]:
    """Snooze until the time in the payload."""
    with attempt(job):
        if time.time() < float(job.payload["until"]):
            raise Snooze("200ms")
        return {"fence": job.fence}


@app.handler(TELLS)
async def tell(job: Job) -> dict[str, int]:
    """Publish with a key, so that another attempt publishes nothing new."""
    with attempt(job):
        await app.publish(HAPPENED, {}, key=str(job.id))
        return {"fence": job.fence}
