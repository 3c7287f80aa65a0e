"""Pick-up while the listener's connection is lost: how late jobs start, and how soon the worker listens again."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.runtime.app import app
from bench.runtime.workers import LISTENER, Scene, say, spread, until
from holdfast.domain.json_text import decode

_SECONDS, _FAULT_AT, _APART = 10.0, 3.0, 0.05
_BACK = "wake-ups are back"


async def listener_killed(scene: Scene) -> dict[str, Any]:
    say("pick-up while the listener's backend is killed")

    async def kill() -> None:
        killed = await scene.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", LISTENER
        )
        assert len(killed) == 1

    return await _measured(scene, scene.listen_url(), kill)


async def link_half_open(scene: Scene) -> dict[str, Any]:
    say("pick-up while the listener's link is half-open")
    with scene.proxy() as proxy:

        async def half_open() -> None:
            proxy.half_open()

        return await _measured(scene, scene.listen_url(proxy), half_open)


async def _measured(scene: Scene, listen_url: str, fault: Callable[[], Awaitable[None]]) -> dict[str, Any]:
    returned: dict[object, float] = {}
    async with scene.worker("--runners", "queue", listen_url=listen_url) as worker:
        await scene.until(lambda: scene.value("SELECT count(*) > 0 FROM holdfast.sleeper"), "the worker sleeps")
        before = worker.log.count(_BACK)
        started = time.monotonic()
        breaking = asyncio.create_task(_break(fault, started + _FAULT_AT, lambda: worker.log.count(_BACK) > before))
        while time.monotonic() < started + _SECONDS:
            enqueued = await app.enqueue("stamp")
            returned[enqueued.id] = time.time()
            await asyncio.sleep(_APART)
        back = await breaking
        finished = "SELECT count(*) >= $1 FROM holdfast.finished"
        await scene.until(lambda: scene.value(finished, len(returned)), "all jobs are done")
    stamps = await scene.rows("SELECT id, result::text AS at FROM holdfast.finished")
    # A handler can start before its enqueuer gets the reply.
    late = [max(0.0, decode(row["at"]) - returned[row["id"]]) for row in stamps if row["id"] in returned]
    await scene.empty()
    return {"pick-up": spread(late), "listening again": spread([back])}


async def _break(fault: Callable[[], Awaitable[None]], at: float, is_back: Callable[[], bool]) -> float:
    """Return the seconds from the fault until the worker listens again."""
    await asyncio.sleep(at - time.monotonic())
    await fault()
    broken = time.monotonic()
    await until(is_back, "the worker listens again")
    return time.monotonic() - broken
