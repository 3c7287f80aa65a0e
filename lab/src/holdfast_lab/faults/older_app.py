"""The app of the previous release: its letters have one recipient. newer_app.py is the release after it."""

from dataclasses import dataclass

from holdfast import RunningJob
from holdfast_lab.faults.app import LETTER, app, deliver


@dataclass
class Letter:
    to: str
    seconds: float = 0.0


@app.handler(LETTER)
async def send(job: RunningJob[Letter]) -> dict[str, int]:
    return await deliver(job, [job.payload.to], job.payload.seconds)
