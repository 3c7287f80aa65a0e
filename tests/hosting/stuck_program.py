"""A program with an unstoppable handler: `python -m tests.hosting.stuck_program tick|worker KIND`."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from holdfast import Holdfast, RunningJob, run_tick, run_worker

app = Holdfast("memory:", shutdown="100ms", tick_max="1s", runners=("queue",))
command, stuck_kind = sys.argv[1:]


def begun() -> None:
    if command == "worker":
        os.kill(os.getpid(), signal.SIGTERM)


@app.handler("hang")
def hang(job: RunningJob[object]) -> None:
    begun()
    while True:
        time.sleep(0.1)


@app.handler("borrow")
async def borrow(job: RunningJob[object]) -> None:
    await asyncio.to_thread(hang, job)


@app.handler("stubborn")
async def stubborn(job: RunningJob[object]) -> None:
    begun()
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@asynccontextmanager
async def with_a_job(app: Holdfast) -> AsyncIterator[None]:
    await app.enqueue(stuck_kind)
    yield


app.lifespan = with_a_job

if __name__ == "__main__":
    logging.basicConfig(level="ERROR", format="%(message)s")
    if command == "tick":
        (report,) = run_tick(app).runners
        sys.stdout.write(f"{report.runner} {report.counts}")
    else:
        sys.stdout.write(f"exit code {run_worker(app)}")
