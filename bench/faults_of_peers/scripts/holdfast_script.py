"""Holdfast in the same harness, as a control: the findings here must match those of its own laboratory."""

import os
import sys
from typing import Any

from bench.faults_of_peers.scripts.commands import (
    LEASE_SECONDS,
    SLOTS,
    THREAD,
    WORK,
    Job,
    answer,
    handle,
    handle_in_thread,
    url,
)
from holdfast import Holdfast, RunningJob
from holdfast.settings import variable
from holdfast.store.opening import migrate

_APP = "bench.faults_of_peers.scripts.holdfast_script:app"
app = Holdfast()


@app.handler(WORK)
async def work(job: RunningJob[dict[str, Any]]) -> None:
    await handle(job.payload, job.id)


@app.handler(THREAD)
def thread(job: RunningJob[dict[str, Any]]) -> None:
    handle_in_thread(job.payload, job.id)


class HoldfastScript:
    async def install(self) -> None:
        await migrate(url(), "holdfast")

    async def open(self) -> None:
        self._producer = Holdfast(url())
        await self._producer.open()

    async def close(self) -> None:
        await self._producer.close()

    async def enqueue(self, kind: str, jobs: list[Job]) -> list[Any]:
        made = [self._producer.job(kind, job) for job in jobs]
        await self._producer.enqueue_many(made)
        return [each.id for each in made]

    async def work(self) -> None:
        command = [sys.executable, "-m", "holdfast", "worker", "--app", _APP, "--store", url()]
        settings = {"lease": f"{LEASE_SECONDS:g}s", "concurrency": str(SLOTS), "shutdown": "5s"}
        os.execve(  # noqa: S606
            sys.executable, command, os.environ | {variable(name): value for name, value in settings.items()}
        )


if __name__ == "__main__":
    answer(HoldfastScript())
