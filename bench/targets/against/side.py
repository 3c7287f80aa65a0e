"""The program of one side: `side.py DO …`, run with the interpreter, packages and sources of its commit.

Commits share only the public API, so this file uses nothing else, except in `_timed_claims`. Each line on standard
input requests a step. The answer is a line of numbers (JSON) on standard output. programs.py is the other end.
"""

import asyncio
import contextlib
import gc
import json
import mmap
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from itertools import cycle
from pathlib import Path
from typing import Any

import uvloop

from holdfast import Holdfast, JobState, NewJob, RunningJob, run_worker
from holdfast.cli import main as command

_PAYLOAD = {"text": "x" * 89}
_BATCH = 1_000
_GAP_SECONDS = (0.025, 0.045, 0.03, 0.06, 0.02, 0.05)
_TURN_SECONDS = 0.005
_MOST_MEMORY = 4 << 30
_WARM_UP = "warm-up"
_WARM_UP_TICKS = 5
_PLACE = struct.Struct("qd")
"""What a worker shares with the others: how many handlers it has started, and when it started the first one."""

clock = time.monotonic
"""A clock that all processes share."""


def kind_of(number: int) -> str:
    return f"kind-{number:05}"


def queue_of(number: int) -> str:
    return f"queue-{number:05}"


def say(*numbers: float) -> None:
    print(json.dumps(numbers), flush=True)


def hear() -> str:
    """Read the next line. This blocks the event loop, which has nothing else to do."""
    return sys.stdin.readline().strip()


def migrate(url: str) -> None:
    sys.argv[1:] = ["migrate", "--store", url]
    command()


async def fill(url: str, jobs: int, pairs: int, queues: int, filled: int) -> None:
    """Spread the jobs evenly over `filled` of the pairs of queue and kind."""
    app = Holdfast(url)
    numbers = cycle(range(0, pairs, pairs // filled))
    async with app:
        for first in range(0, jobs, _BATCH):
            await app.enqueue_many([_job(app, next(numbers), queues) for _ in range(min(_BATCH, jobs - first))])


def _job(app: Holdfast, number: int = 0, queues: int = 1) -> NewJob:
    return app.job(kind_of(number), _PAYLOAD, queue=queue_of(number % queues))


async def produce(url: str) -> None:
    """Steps: `single JOBS` and `bulk JOBS` answer with seconds, `spaced JOBS` with each job's wait in milliseconds."""
    app = Holdfast(url)
    steps = {"single": _single, "bulk": _bulk, "spaced": _spaced}
    async with app:
        say()
        while line := hear():
            name, jobs = line.split()
            say(*await steps[name](app, int(jobs)))


async def _single(app: Holdfast, jobs: int) -> list[float]:
    started = clock()
    for _ in range(jobs):
        await app.enqueue(kind_of(0), _PAYLOAD, queue=queue_of(0))
    return [clock() - started]


async def _bulk(app: Holdfast, jobs: int) -> list[float]:
    batches = [[_job(app) for _ in range(min(_BATCH, jobs - first))] for first in range(0, jobs, _BATCH)]
    started = clock()
    for batch in batches:
        await app.enqueue_many(batch)
    return [clock() - started]


async def _spaced(app: Holdfast, jobs: int) -> list[float]:
    committed = {}
    for _, gap in zip(range(jobs), cycle(_GAP_SECONDS), strict=False):
        await asyncio.sleep(gap)
        enqueued = await app.enqueue(kind_of(0), _PAYLOAD, queue=queue_of(0))
        committed[enqueued.id] = clock()
    waits = []
    for id, since in committed.items():
        while (job := await app.jobs.get(id)) is None or job.result is None:  # noqa: ASYNC110 - the worker ends it
            await asyncio.sleep(_TURN_SECONDS)
        waits.append(1000 * (float(str(job.result)) - since))
    return waits


class Tally:
    """Counts the handlers that this process has started."""

    def __init__(self) -> None:
        self.started = 0
        self.first = 0.0
        self.begun = asyncio.Event()

    def note(self) -> None:
        if not self.started:
            self.first = clock()
            self.begun.set()
        self.started += 1


Handler = Callable[[RunningJob[object]], Awaitable[object]]


def handlers(tally: Tally) -> dict[str, Handler]:
    async def empty(_job: RunningJob[object]) -> None:
        tally.note()

    async def yielding(_job: RunningJob[object]) -> None:
        tally.note()
        await asyncio.sleep(0)

    async def awaiting(_job: RunningJob[object]) -> None:
        tally.note()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future

    async def stamping(_job: RunningJob[object]) -> float:
        return clock()

    return {"empty": empty, "yielding": yielding, "awaiting": awaiting, "stamping": stamping}


def work(url: str, handler: Handler, beside: Callable[[Holdfast], Coroutine[None, None, None]]) -> int:
    """Run a worker until SIGTERM. It opens the app, reports that, waits for a line, and then starts with `beside`."""
    app = Holdfast(url)
    app.handler(kind_of(0), queue=queue_of(0))(handler)

    @contextlib.asynccontextmanager
    async def around() -> AsyncIterator[None]:
        say()
        hear()
        task = asyncio.create_task(beside(app))
        task.add_done_callback(_end_if_broken)
        try:
            yield
        finally:
            task.cancel()

    if hasattr(app, "lifespan"):
        app.lifespan = lambda _app: around()
        return run_worker(app)
    # For commits from before the lifespan.
    return run_worker(app, around=around)  # type: ignore[call-arg]


def _end_if_broken(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGTERM)


def drain(url: str, name: str, jobs: int, shared: str, place: int, workers: int) -> int:
    """Drain with workers that share a file to add up their starts. The one at place 0 reports the time it took.

    Timed from the first start of a handler until the store reports that all jobs have succeeded.
    """
    tally = Tally()

    with Path(shared).open("r+b") as file:
        places = mmap.mmap(file.fileno(), workers * _PLACE.size)

    async def watch(app: Holdfast) -> None:
        while True:
            _PLACE.pack_into(places, place * _PLACE.size, tally.started, tally.first)
            noted = list(_PLACE.iter_unpack(places[:]))
            if place == 0 and sum(started for started, _ in noted) >= jobs:
                break
            await asyncio.sleep(_TURN_SECONDS)
        # A count reads unfinished jobs, of which few are left by now.
        while (await app.jobs.count())[JobState.SUCCEEDED] < jobs:  # noqa: ASYNC110 - the worker ends it
            await asyncio.sleep(0)
        say(clock() - min(first for started, first in noted if started))

    return work(url, handlers(tally)[name], watch)


def stamp(url: str) -> int:
    """Run an idle worker whose jobs return when their handler began."""

    async def nothing(_app: Holdfast) -> None:
        """Do nothing: the producer reads the results."""

    return work(url, handlers(Tally())["stamping"], nothing)


async def first_claim(url: str, pairs: int, queues: int) -> None:
    """Report milliseconds: a worker's claims before its first handler, its start to that handler, and a cold claim.

    The worker is fresh, but its connections have claimed before. The first claim on a new connection reads catalogs and
    compiles functions, however few pairs there are. That is the cold claim, measured with one pair.
    """
    # A commit that cannot handle this must run out of memory before the machine does.
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    app, tally = Holdfast(url), Tally()
    empty = handlers(tally)["empty"]
    app.handler(_WARM_UP, queue=_WARM_UP)(handlers(Tally())["empty"])
    async with app:
        claims = _timed_claims(app)
        for _ in range(_WARM_UP_TICKS):
            await app.enqueue_many([app.job(_WARM_UP, queue=_WARM_UP) for _ in range(_BATCH // 10)])
            await app.tick(runners=["queue"])
        cold = claims[0][1] - claims[0][0]
        for number in range(pairs):
            app.handler(kind_of(number), queue=queue_of(number % queues))(empty)
        claims.clear()
        worker = app.worker()
        say()
        hear()
        since = clock()
        running = asyncio.create_task(worker.run())
        await tally.begun.wait()
        spent = sum(until - start for start, until in claims if until <= tally.first)
        say(1000 * spent, 1000 * (tally.first - since), 1000 * cold)
        worker.stop()
        await running


def _timed_claims(app: Holdfast) -> list[tuple[float, float]]:
    """When each claim of this process was sent and answered. The store's coroutine `claim` is not a public API."""
    store_class: Any = type(app.opened.store)
    claim = store_class.claim
    claims: list[tuple[float, float]] = []

    async def timed(self: object, *arguments: object, **options: object) -> object:
        start = clock()
        answer = await claim(self, *arguments, **options)
        claims.append((start, clock()))
        return answer

    store_class.claim = timed
    return claims


def main(arguments: list[str]) -> int:
    gc.freeze()
    match arguments:
        case ["migrate", url]:
            migrate(url)
        case ["fill", url, jobs, pairs, queues, filled]:
            uvloop.run(fill(url, int(jobs), int(pairs), int(queues), int(filled)))
        case ["produce", url]:
            uvloop.run(produce(url))
        case ["drain", url, handler, jobs, shared, place, workers]:
            return drain(url, handler, int(jobs), shared, int(place), int(workers))
        case ["stamp", url]:
            return stamp(url)
        case ["first-claim", url, pairs, queues]:
            uvloop.run(first_claim(url, int(pairs), int(queues)))
        case _:
            print(f"unknown command: {arguments}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
