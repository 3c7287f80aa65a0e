"""SIGTERM under load: how soon the process ends, and how soon another worker claims the jobs it had not started."""

import signal
import time
from typing import Any

from bench.runtime.app import app
from bench.runtime.workers import Scene, say, spread

_SHORT_SECONDS, _LONG_SECONDS = 0.005, 0.2
_BACKLOG, _LONG_JOBS = 4_000, 4
_SHUTDOWN = "2s"
# A claim begins with the name of its holder, as in the worker's log.
_OF_HOLDER = "left(claim::text, 18) = left($1::text, 18)"


async def stopped_under_load(scene: Scene, rounds: int) -> dict[str, Any]:
    exits: list[float] = []
    again: list[float] = []
    wasted = 0
    async with scene.worker("--concurrency", "8", "--runners", "queue"):
        for number in range(rounds):
            await scene.top_up("sleep", _SHORT_SECONDS, _BACKLOG)
            await app.enqueue_many([app.job("sleep", _LONG_SECONDS, priority=0) for _ in range(_LONG_JOBS)])
            seconds, claimed, attempts = await _round(scene)
            exits.append(seconds)
            again += claimed
            wasted += attempts
            say(f"SIGTERM {number + 1} of {rounds}: ended after {seconds * 1000:.0f} ms, {len(claimed)} jobs released")
    await scene.empty()
    return {
        "exit": spread(exits),
        "claimed by another worker": spread(again),
        "attempts wasted": wasted,
    }


async def _round(scene: Scene) -> tuple[float, list[float], int]:
    """Return the seconds to its end, those until each released job was claimed again, and the attempts lost by them."""
    async with scene.worker("--concurrency", "8", "--runners", "queue", "--shutdown", _SHUTDOWN) as worker:
        await _under_load(scene, worker.holder)
        held = await scene.rows(f"SELECT id, claim FROM holdfast.lease WHERE {_OF_HOLDER}", worker.holder)
        signaled_at = await app.clock.now()
        started = time.monotonic()
        worker.send(signal.SIGTERM)
        await worker.ended()
        seconds = time.monotonic() - started
    await _none_left(scene, [row["id"] for row in held])
    # Finished by another claim means claimed again. With an error, it had been started and was interrupted.
    rows = await scene.rows(
        "SELECT extract(epoch FROM started_at - $3)::float8 AS after, attempt FROM holdfast.finished"
        " JOIN unnest($1::uuid[], $2::uuid[]) AS held (id, claim) USING (id)"
        " WHERE finished.claim <> held.claim AND NOT EXISTS (SELECT FROM holdfast.attempt_error WHERE job_id = id)",
        [row["id"] for row in held],
        [row["claim"] for row in held],
        signaled_at,
    )
    return seconds, [row["after"] for row in rows], sum(row["attempt"] - 1 for row in rows)


async def _under_load(scene: Scene, holder: str) -> None:
    """Wait until the worker holds more jobs than it can run."""
    held = f"SELECT count(*) FROM holdfast.lease WHERE {_OF_HOLDER}"
    await scene.until(lambda: scene.value(f"SELECT ({held}) >= 20", holder), "the worker is under load")


async def _none_left(scene: Scene, ids: list[object]) -> None:
    finished = "SELECT count(*) FROM holdfast.finished WHERE id = ANY ($1::uuid[])"
    await scene.until(lambda: scene.value(f"SELECT ({finished}) >= cardinality($1)", ids), "its jobs are done")
