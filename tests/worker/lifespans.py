"""An app with a lifespan that handlers in process isolation can import."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast import Holdfast, RunningJob

FOLDER = "HOLDFAST_TEST_FOLDER"


@dataclass
class Clients:
    """A resource bound to one event loop and one process."""

    loop: asyncio.AbstractEventLoop
    pid: int
    uses: int = 0


def note(line: str) -> None:
    with (Path(os.environ[FOLDER]) / "lifespans").open("a") as file:
        file.write(f"{line} {os.getpid()}\n")


def notes(folder: Path) -> list[tuple[str, int]]:
    path = folder / "lifespans"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(what, int(pid)) for what, pid in map(str.split, lines)]


@asynccontextmanager
async def open_clients(app: Holdfast[Clients]) -> AsyncIterator[Clients]:
    if (Path(os.environ[FOLDER]) / "broken").exists() and not app.is_open:
        raise ConnectionError("no clients today")
    # A task group must be exited by the task that entered it.
    async with asyncio.TaskGroup():
        note("open")
        try:
            yield Clients(asyncio.get_running_loop(), os.getpid())
        finally:
            await asyncio.sleep(0)
            note("close")


app: Holdfast[Clients] = Holdfast("memory:", lifespan=open_clients)


@app.handler("async")
async def use(job: RunningJob[object, Clients]) -> dict[str, int]:
    assert job.state.loop is asyncio.get_running_loop()
    job.state.uses += 1
    return {"pid": job.state.pid, "uses": job.state.uses}


@app.handler("thread")
def use_in_thread(job: RunningJob[object, Clients]) -> int:
    return job.state.pid


@app.handler("process", isolation="process")
async def use_in_process(job: RunningJob[object, Clients]) -> dict[str, int]:
    assert job.state.loop is asyncio.get_running_loop()
    assert job.state.pid == os.getpid()
    job.state.uses += 1
    return {"pid": job.state.pid, "uses": job.state.uses}


@app.handler("plain process", isolation="process")
def use_in_plain_process(job: RunningJob[object, Clients]) -> int:
    assert job.state.pid == os.getpid()
    return job.state.pid


@app.handler("fail in process", isolation="process", attempts=1)
def fail_in_process(job: RunningJob[object, Clients]) -> None:
    raise KeyError("in the process")


@app.handler("exit in process", isolation="process", attempts=1)
async def exit_in_process(job: RunningJob[object, Clients]) -> None:
    raise SystemExit(3)
