"""Jobs that leave a note, for test_wake_ups.py."""

from holdfast import Holdfast, RunningJob
from tests.runtime.apps.effects import note

app = Holdfast()


@app.handler("quick")
async def quick(job: RunningJob[object]) -> None:
    await note("quick", job.id)
