"""The app of the next release: its letters have any number of recipients, which older_app.py cannot read."""

from dataclasses import dataclass
from typing import Any

from holdfast import RunningJob
from holdfast_lab.faults.app import LETTER, app, deliver


@dataclass
class Letter:
    recipients: list[str]
    seconds: float = 0.0


def many_recipients(payload: dict[str, Any]) -> dict[str, Any]:
    return {"recipients": [payload.pop("to")], **payload}


@app.handler(LETTER, version=2, upgrades={1: many_recipients})
async def send(job: RunningJob[Letter]) -> dict[str, int]:
    return await deliver(job, job.payload.recipients, job.payload.seconds)
