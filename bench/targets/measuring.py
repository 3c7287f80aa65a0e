"""What every measurement gets: the server, the sizes, and the pairs."""

import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench.targets.apps import NOTHING
from bench.targets.figures import Pair, Run
from bench.targets.machine import rest
from bench.targets.server import Fill, Server, Stage
from holdfast.domain.json_text import encode

Side = Callable[[], Awaitable[Run]]
Value = TypeVar("Value")

PAYLOAD = {"text": "x" * 89}
assert len(encode(PAYLOAD).encode()) == 100
BATCH = 1_000
EMPTY, BACKLOG = "empty", "backlog"
FEW_PAIRS = 3
_FILL_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of jobs, and durations."""

    drain: int = 80_000
    behind: int = 50_000
    bulk: int = 50_000
    single: int = 1_000
    pick_up: int = 100
    threads: int = 20_000
    sleep: int = 20_000
    wal: int = 30_000
    memory: int = 1_000_000
    history: int = 1_000_000
    ahead: int = 100_000
    steady_rate: int = 2_000
    idle_seconds: float = 60.0
    snapshot_minutes: float = 5.0


QUICK = Sizes(
    drain=5_000,
    behind=5_000,
    bulk=5_000,
    single=100,
    pick_up=20,
    threads=2_000,
    sleep=2_000,
    wal=5_000,
    memory=50_000,
    history=20_000,
    ahead=5_000,
    steady_rate=500,
    idle_seconds=8.0,
    snapshot_minutes=0.4,
)


@dataclass(frozen=True, slots=True)
class Bench:
    server: Server
    sizes: Sizes
    pairs: int
    busy: list[float] = field(default_factory=list)
    """How busy the machine was with other work before each run, 0 to 1."""

    async def in_pairs(self, what: str, measured: Side, limit: Side, most: int | None = None) -> list[Pair]:
        """Measure pairs in which each side goes first every other time, so that leftovers favor neither.

        `most`: the most pairs for figures that are only reported.
        """
        pairs: list[Pair] = []
        for number in range(self.pairs if most is None else min(most, self.pairs)):
            if number % 2 == 0:
                first = await measured()
                pair = Pair(first, await limit())
            else:
                first = await limit()
                pair = Pair(await measured(), first)
            pairs.append(pair)
            say(f"{what}, pair {number + 1}: {pair.measured.rate:,.0f} and {pair.limit.rate:,.0f}/s, {pair.ratio:.3f}")
        return pairs

    async def repeated(self, what: str, times: int, measure: Callable[[], Awaitable[Value]]) -> list[Value]:
        values: list[Value] = []
        for number in range(times):
            values.append(await measure())
            say(f"{what}, {number + 1} of {times}: {values[-1]}")
        return values

    async def on_copy(self, template: str, work: Callable[[Stage], Awaitable[Value]]) -> Value:
        async with self.server.copy(template) as stage:
            self.busy.append(await rest())
            return await work(stage)

    async def prepare_backlog(self) -> None:
        await self.server.prepare(BACKLOG, backlog_of(self.sizes.drain))


def backlog_of(jobs: int, kind: str = NOTHING) -> Fill:
    async def fill(stage: Stage) -> None:
        await enqueue(stage, jobs, kind)

    return fill


async def enqueue(stage: Stage, jobs: int, kind: str, **options: Any) -> None:  # noqa: ANN401
    say(f"enqueuing {jobs:,} jobs of the kind {kind!r}")
    async with stage.app() as app:
        for first in range(0, jobs, _FILL_BATCH):
            number = min(_FILL_BATCH, jobs - first)
            await app.enqueue_many([app.job(kind, PAYLOAD, **options) for _ in range(number)])


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
