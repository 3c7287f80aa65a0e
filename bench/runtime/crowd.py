"""What a job costs the server while many workers are idle, and how soon one of them picks it up."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.runtime.app import app
from bench.runtime.workers import ROOT, Scene, say, spread
from holdfast.domain.json_text import decode

_WORKERS = (1, 24)
_ROUNDS = 3
_JOBS, _APART = 200, 0.04
_ALL_ASLEEP = "SELECT count(DISTINCT holder) >= $1 FROM holdfast.sleeper"
# Longer than the growing waits of a worker that ran out of work.
_SETTLE_SECONDS, _IDLE_SECONDS = 8.0, 10.0


async def idle_crowd(scene: Scene) -> dict[str, Any]:
    """Alternate between crews, because the machine's speed varies over time."""
    runs: dict[int, list[tuple[float, float, list[float]]]] = {workers: [] for workers in _WORKERS}
    for number in range(_ROUNDS):
        for workers in _WORKERS:
            runs[workers].append(await _measured(scene, workers))
            idle, each, _ = runs[workers][-1]
            say(f"round {number + 1}, {workers} idle: {each:.2f} ms of server time per job, {idle:.1f} ms/s when idle")
    figures: dict[str, Any] = {}
    for workers, found in runs.items():
        figures[f"pick-up, {workers} idle"] = spread([late for _, _, times in found for late in times])
        idle, each = min(idle for idle, _, _ in found), min(each for _, each, _ in found)
        figures[f"µs of server time per job, {workers} idle"] = round(1000 * each)
        figures[f"µs of server time per second without jobs, {workers} idle"] = round(1000 * idle)
    return figures


async def _measured(scene: Scene, workers: int) -> tuple[float, float, list[float]]:
    """Return the server's milliseconds per second without jobs, those per job with idling, and each job's lateness."""
    returned: dict[object, float] = {}
    async with _crew(scene, workers):
        await scene.until(lambda: scene.value(_ALL_ASLEEP, workers), "all sleep")
        await asyncio.sleep(_SETTLE_SECONDS)
        server = Server(await scene.value("SELECT pg_backend_pid()"))
        before = server.seconds()
        await asyncio.sleep(_IDLE_SECONDS)
        idle = (server.seconds() - before) / _IDLE_SECONDS
        before = server.seconds()
        for _ in range(_JOBS):
            enqueued = await app.enqueue("stamp")
            returned[enqueued.id] = time.time()
            await asyncio.sleep(_APART)
        finished = "SELECT count(*) >= $1 FROM holdfast.finished"
        await scene.until(lambda: scene.value(finished, len(returned)), "all jobs are done")
        spent = server.seconds() - before
    stamps = await scene.rows("SELECT id, result::text AS at FROM holdfast.finished")
    late = [max(0.0, decode(row["at"]) - returned[row["id"]]) for row in stamps if row["id"] in returned]
    await scene.empty()
    return 1000 * idle, 1000 * spent / _JOBS, late


class Server:
    """The CPU time of all processes of one PostgreSQL on this machine."""

    def __init__(self, backend: int) -> None:
        self._postmaster = _parent(Path(f"/proc/{backend}"))

    def seconds(self) -> float:
        """CPU seconds of the running processes. Few processes end during a measurement."""
        processes = [process for process in Path("/proc").iterdir() if process.name.isdigit()]
        return sum(_seconds(process) for process in processes if _parent(process) == self._postmaster)


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _seconds(process: Path) -> float:
    """CPU seconds in nanosecond resolution, because a job takes far less than a clock tick."""
    try:
        return int((process / "schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


@asynccontextmanager
async def _crew(scene: Scene, workers: int) -> AsyncIterator[None]:
    """Run this many workers in a separate process."""
    settings = json.dumps({"store": scene.place.url, "db_schema": scene.place.schema})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.runtime.crowd", str(workers), settings, cwd=ROOT, stdin=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    try:
        yield
    finally:
        # The process works until its input ends.
        process.stdin.close()
        await process.wait()
    assert process.returncode == 0


async def _work(workers: int, settings: dict[str, Any]) -> None:
    app.settings = app.settings.model_copy(update=settings)
    async with app:
        crew = [app.worker(runners=["queue"]) for _ in range(workers)]
        running = [asyncio.create_task(worker.run()) for worker in crew]
        await asyncio.to_thread(sys.stdin.read)
        for worker in crew:
            worker.stop()
        await asyncio.gather(*running)


if __name__ == "__main__":
    asyncio.run(_work(int(sys.argv[1]), json.loads(sys.argv[2])))
