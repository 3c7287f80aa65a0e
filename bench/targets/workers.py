"""Real `holdfast worker` processes, and how long their drains take by the store's own timestamps."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.targets.figures import Run
from bench.targets.server import SCHEMA, Stage
from holdfast.domain.errors import HoldfastError
from holdfast.settings import variable

APPS = "bench.targets.apps"
_ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 60.0
_TURN_SECONDS = 0.05


class Stuck(HoldfastError):
    """A process ended unexpectedly or makes no progress."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers to start. Settings that are not given have their defaults."""

    app: str = "nothing"
    workers: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    program: Sequence[str] = ("holdfast",)
    """A module, and its own arguments before those of `holdfast`."""


@contextlib.asynccontextmanager
async def at_work(stage: Stage, crew: Crew) -> "AsyncIterator[list[subprocess.Popen[bytes]]]":
    """Run the workers during the block, and stop them in an orderly way at its end."""
    log = stage.server.folder / "workers.log"
    given = {variable(name): value for name, value in crew.settings.items()}
    command = [*crew.program, "worker", "--app", f"{APPS}:{crew.app}", "--store", stage.url, "--schema", SCHEMA]
    processes = [start(command, log, given) for _ in range(crew.workers)]
    async with ended(processes, log):
        yield processes


def start(command: Sequence[str], log: Path, settings: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a Python module in a separate process, with only the given Holdfast settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    with log.open("ab") as output:
        # A separate session, so that Ctrl-C reaches only this process, which then stops the other one.
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=_ROOT,
            env=environment | dict(settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


@contextlib.asynccontextmanager
async def ended(processes: "Sequence[subprocess.Popen[bytes]]", log: Path) -> AsyncIterator[None]:
    """End the processes with the block. Raises Stuck if one of them failed."""
    try:
        yield
        for process in processes:
            process.terminate()
        for process in processes:
            if await asyncio.to_thread(process.wait, _PATIENCE_SECONDS):
                raise Stuck(f"a process ended with {process.returncode}{last_words(log)}")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                await asyncio.to_thread(process.wait)


async def _nothing() -> None:
    """Do nothing: the default for `beside`."""


async def drained(
    stage: Stage, jobs: int, crew: Crew | None = None, beside: Callable[[], Coroutine[Any, Any, None]] = _nothing
) -> Run:
    """Drain the jobs and return the run, timed from the first job's start to the last one's end.

    `beside` begins when the first jobs are finished.
    """
    crew = crew or Crew()
    begun: list[asyncio.Task[None]] = []

    def begin(done: int) -> None:
        if done and not begun:
            begun.append(asyncio.create_task(beside()))

    since = await now(stage)
    async with stage.metered() as meter:
        before = await finished(stage)
        async with at_work(stage, crew) as processes:
            try:
                await until_finished(stage, jobs, before, processes, begin)
                await asyncio.gather(*begun)
            finally:
                for task in begun:
                    task.cancel()
    return meter.run(jobs, await seconds_taken(stage, since))


async def now(stage: Stage) -> datetime:
    moment: datetime = await stage.value("SELECT clock_timestamp()")
    return moment


async def until_finished(
    stage: Stage,
    jobs: int,
    before: int,
    processes: "Sequence[subprocess.Popen[bytes]]" = (),
    on_turn: Callable[[int], None] = lambda _: None,
) -> None:
    """Wait until that many more jobs are finished than `before`. `on_turn` gets the number so far."""
    newest, changed = before, time.monotonic()
    while True:
        last = await finished(stage)
        on_turn(last - before)
        if last - before >= jobs:
            return
        if last != newest:
            newest, changed = last, time.monotonic()
        if any(process.poll() is not None for process in processes):
            raise Stuck(f"a worker ended by itself{last_words(stage.server.folder / 'workers.log')}")
        if time.monotonic() - changed > _PATIENCE_SECONDS:
            raise Stuck(f"no job finished for {_PATIENCE_SECONDS:.0f} s")
        await asyncio.sleep(_TURN_SECONDS)


async def finished(stage: Stage) -> int:
    """How many jobs of the last days have succeeded. Sums the ledger, because a count would read all of the jobs.

    The days that retention drops are older than that.
    """
    return int(
        await stage.value(
            f"SELECT coalesce(sum(amount), 0) FROM {SCHEMA}.ledger"
            " WHERE state = 'succeeded' AND day > (clock_timestamp() AT TIME ZONE 'UTC')::date - 3"
        )
    )


async def seconds_taken(stage: Stage, since: datetime) -> float:
    return float(
        await stage.value(
            f"SELECT extract(epoch FROM max(finished_at) - min(started_at)) FROM {SCHEMA}.finished"
            " WHERE finished_at >= $1",
            since,
        )
    )


def last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return f"; the last line of its log: {lines[-1]}" if lines else ""
