"""The commands of every adapter, and the probe that its handler calls; commands.mjs is the same for node.

    install TUNED | bulk JOBS BATCH | single SECONDS | pickup JOBS GAP_SECONDS | work SETTINGS_AS_JSON

The answer is the last line of the output, as JSON. Times come from the monotonic clock, which processes share."""

import asyncio
import json
import os
import random
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol

import uvloop

WARM_UP_JOBS = 10
_WARM_UP_GAP_SECONDS = 0.05
_SETTLE_SECONDS = 1.0
_COUNTED_AT_ONCE = 500
_STARTED = struct.Struct("<qd")


class Adapter(Protocol):
    async def install(self, *, tuned: bool) -> None:
        """Create the tables; if tuned, with the settings that the peer recommends for them."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def enqueue(self, number: int) -> object: ...

    async def enqueue_many(self, numbers: range) -> object: ...

    def work(self, settings: Mapping[str, Any], started: Callable[[int], None]) -> None:
        """Run one worker until the process is killed; its handler calls `started` and does nothing else."""


def url() -> str:
    return os.environ["BENCH_URL"]


def probe() -> Callable[[int], None]:
    """What the handler reports: every start of a job in a pick-up, and a count now and then in a drain."""
    folder = Path(os.environ["BENCH_FOLDER"])
    return _each_start(folder) if os.environ["BENCH_MEASURE"] == "pickup" else _counted_starts(folder)


def _each_start(folder: Path) -> Callable[[int], None]:
    file = os.open(folder / "started", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def started(number: int) -> None:
        os.write(file, _STARTED.pack(number, time.monotonic()))

    return started


def _counted_starts(folder: Path) -> Callable[[int], None]:
    count, file = 0, -1

    def started(_number: int) -> None:
        nonlocal count, file
        count += 1
        if count == 1 or count % _COUNTED_AT_ONCE == 0:
            if file < 0:
                file = os.open(folder / f"{os.getpid()}.counts", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, _STARTED.pack(count, time.monotonic()))

    return started


def run(main: Coroutine[Any, Any, None], settings: Mapping[str, Any]) -> None:
    """Run on the event loop that the settings name: asyncio's own, unless uvloop is among a peer's best settings."""
    if settings.get("uvloop"):
        uvloop.run(main)
    else:
        asyncio.run(main)


def answer(adapter: Adapter) -> None:
    command, *arguments = sys.argv[1:]
    if command == "work":
        adapter.work(json.loads(arguments[0]), probe())
    else:
        # Producers always get the faster loop, so that all differences come from the peers themselves.
        print(json.dumps(uvloop.run(_answer(adapter, command, arguments))), flush=True)


async def _answer(adapter: Adapter, command: str, arguments: list[str]) -> object:
    if command == "install":
        await adapter.install(tuned=arguments == ["1"])
        return None
    await adapter.open()
    try:
        match command:
            case "bulk":
                return await _bulk(adapter, int(arguments[0]), int(arguments[1]))
            case "single":
                return await _single(adapter, float(arguments[0]))
            case "pickup":
                return await _pickup(adapter, int(arguments[0]), float(arguments[1]))
            case _:
                raise SystemExit(f"unknown command {command}")
    finally:
        await adapter.close()


async def _bulk(adapter: Adapter, jobs: int, batch: int) -> dict[str, float]:
    started = time.monotonic()
    for first in range(0, jobs, batch):
        await adapter.enqueue_many(range(first, min(first + batch, jobs)))
    return {"jobs": jobs, "seconds": time.monotonic() - started}


async def _single(adapter: Adapter, seconds: float) -> dict[str, float]:
    for number in range(WARM_UP_JOBS):
        await adapter.enqueue(number)
    started = time.monotonic()
    jobs = 0
    while (passed := time.monotonic() - started) < seconds:
        await adapter.enqueue(jobs)
        jobs += 1
    return {"jobs": jobs, "seconds": passed}


async def _pickup(adapter: Adapter, jobs: int, gap: float) -> list[tuple[int, float]]:
    """Return when each enqueue returned, by job. Warm-up jobs, which do not count, have negative numbers."""
    for number in range(1, WARM_UP_JOBS + 1):
        await adapter.enqueue(-number)
        await asyncio.sleep(_WARM_UP_GAP_SECONDS)
    await asyncio.sleep(_SETTLE_SECONDS)
    returned = []
    for number in range(jobs):
        await adapter.enqueue(number)
        returned.append((number, time.monotonic()))
        # Vary the gaps, or all jobs would arrive at the same point of a poll.
        await asyncio.sleep(gap * random.uniform(0.5, 1.5))
    return returned
