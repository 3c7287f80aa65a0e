"""Real `holdfast worker` processes, and how long they take to work off what is there, by the store's own times."""

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
    """A process ended, or does nothing any more."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Which workers to start. Settings that are not given are the defaults."""

    app: str = "nothing"
    workers: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    program: Sequence[str] = ("holdfast.cli",)
    """A module, and what it wants before the arguments of `holdfast`."""


@contextlib.asynccontextmanager
async def at_work(stage: Stage, crew: Crew) -> "AsyncIterator[list[subprocess.Popen[bytes]]]":
    """Running from here to the end of the block, and stopped in an orderly way there."""
    log = stage.server.folder / "workers.log"
    given = {variable(name): value for name, value in crew.settings.items()}
    command = [*crew.program, "worker", f"{APPS}:{crew.app}", "--store", stage.url, "--schema", SCHEMA]
    processes = [start(command, log, given) for _ in range(crew.workers)]
    async with ended(processes, log):
        yield processes


def start(command: Sequence[str], log: Path, settings: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """A Python module in a process of its own, with no settings of Holdfast's but those given."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    with log.open("ab") as output:
        # A session of its own: Ctrl-C in the terminal is for us, who then stop it.
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
    """They are gone when the block is left, and Stuck is raised unless each of them went well."""
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
    """What goes on beside most drains."""


async def drained(
    stage: Stage, jobs: int, crew: Crew | None = None, beside: Callable[[], Coroutine[Any, Any, None]] = _nothing
) -> Run:
    """From the first job's start to the last one's end; `beside` begins when the first jobs are finished."""
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
    """Until that many jobs more are finished than before; `on_turn` is told how many are."""
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
            raise Stuck(f"nothing was finished for {_PATIENCE_SECONDS:.0f} s")
        await asyncio.sleep(_TURN_SECONDS)


async def finished(stage: Stage) -> int:
    """How many jobs of the last days have succeeded. The sum of the ledger, because a count would read all of them.

    Days that retention drops are older.
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
