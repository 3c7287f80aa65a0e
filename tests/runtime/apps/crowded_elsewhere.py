"""Another program with different handlers on the same queue, for test_crowds.py."""

from holdfast import Holdfast, RunningJob
from tests.runtime.apps.effects import note

app = Holdfast()


@app.handler("elsewhere")
async def elsewhere(job: RunningJob[object]) -> None:
    await note("done", job.id)
