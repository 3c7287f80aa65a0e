"""How late a one-second job schedule and a one-second inline runner are under other load, by the store's clock."""

import asyncio
import time
from datetime import datetime
from typing import Any

from bench.runtime.app import app
from bench.runtime.workers import Scene, say, spread
from holdfast.scheduling.job_schedules import OCCURRENCE_HEADER

SCHEDULE = "job schedule"
Figures = dict[str, Any]
_BACKLOG = 20_000


async def beside_a_slow_job(scene: Scene, seconds: float) -> Figures:
    say(f"a one-second schedule next to a job of {seconds:g} s")
    await _save_schedule()
    async with scene.worker("--concurrency", "2"):
        await app.enqueue("sleep", seconds)
        since = await app.clock.now()
        await asyncio.sleep(seconds)
    return await _lateness(scene, since)


async def beside_a_drain(scene: Scene, seconds: float) -> Figures:
    """Measure at full speed: the producer never lets the worker run out of jobs."""
    say(f"a one-second schedule during a drain of {seconds:g} s")
    await scene.top_up("nothing", None, _BACKLOG)
    await _save_schedule()
    async with scene.worker():
        since = await app.clock.now()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await scene.top_up("nothing", None, _BACKLOG)
            await asyncio.sleep(0.05)
    figures = await _lateness(scene, since)
    drained = await scene.value("SELECT count(*) FROM holdfast.finished WHERE finished_at > $1", since)
    await scene.empty()
    return figures | {"jobs per second": round(drained / seconds)}


async def _save_schedule() -> None:
    # More urgent than the drain, behind whose jobs its own would otherwise have to wait. Saved again before each
    # measurement, so that no occurrence was missed earlier.
    if any(schedule.name == SCHEDULE for schedule in await app.schedules.list()):
        await app.schedules.remove(SCHEDULE)
    await app.schedules.save(SCHEDULE, "every 1s", kind="scheduled", priority=0, missed="all")


async def _lateness(scene: Scene, since: datetime) -> Figures:
    jobs = await scene.rows(
        "SELECT extract(epoch FROM started_at - (headers->>$2)::timestamptz)::float8 AS started,"
        " extract(epoch FROM created_at - (headers->>$2)::timestamptz)::float8 AS made"
        " FROM holdfast.job JOIN holdfast.finished USING (id) WHERE (headers->>$2)::timestamptz > $1",
        since,
        OCCURRENCE_HEADER,
    )
    runs = await scene.rows(
        "SELECT extract(epoch FROM started_at - occurrence)::float8 FROM holdfast.run"
        " WHERE name = 'inline runner' AND occurrence > $1",
        since,
    )
    return {
        "job schedule, job made": spread([row["made"] for row in jobs]),
        "job schedule, job started": spread([row["started"] for row in jobs]),
        "inline runner, run started": spread([row[0] for row in runs]),
    }
