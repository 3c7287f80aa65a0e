"""The measures of a comparison, and how each takes a pair: through side.py, with each run in a fresh database."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.targets.against.checkouts import Side
from bench.targets.against.programs import Program, done, started, started_worker
from bench.targets.against.rounds import Measure, Take
from bench.targets.against.rows import Row, Unit
from bench.targets.against.verdicts import MillisecondsAtMost, RatioAtLeast
from bench.targets.figures import share
from bench.targets.machine import rest
from bench.targets.server import Server, Stage

_START_SECONDS = 4.0
"""The time a run takes besides the measurement, for a database, a process and a moment of rest."""
_EAGER_TASKS = (3, 12)
_WARM_UP_JOBS = 10
_PLACE_BYTES = 16
_JOBS_EACH = 20
_CLAIM_PAIRS = 9
_CLAIM_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Waiting jobs, spread evenly over `filled` of `pairs` pairs of queue and kind."""

    jobs: int = 0
    pairs: int = 1
    queues: int = 1
    filled: int = 1

    @property
    def numbers(self) -> tuple[str, ...]:
        return str(self.jobs), str(self.pairs), str(self.queues), str(self.filled)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The work of one side in one pair: `single`, `bulk` and `spaced` jobs in each of `turns` turns."""

    drain: int = 300_000
    awaiting: int = 100_000
    turns: int = 10
    single: int = 100
    bulk: int = 5_000
    spaced: int = 12
    pairs: tuple[int, int] = (1_000, 10_000)
    filled: int = 50


QUICK = Sizes(drain=5_000, awaiting=3_000, turns=2, single=50, bulk=1_000, spaced=5, pairs=(100, 200), filled=10)


@dataclass(frozen=True, slots=True)
class Yard:
    """The server, the two sides that use it, and the sizes of their work."""

    server: Server
    sides: Mapping[str, Side]
    sizes: Sizes

    @property
    def log(self) -> Path:
        return self.server.folder / "sides.log"

    async def rest(self) -> None:
        if self.sizes is not QUICK:
            await rest()

    @contextlib.asynccontextmanager
    async def stage(self, name: str, backlog: Backlog) -> AsyncIterator[Stage]:
        """A database with tables from the side's migrations and jobs from its bulk enqueue, made once and copied."""
        side = self.sides[name]

        async def install(url: str) -> None:
            await done(side, self.log, "migrate", url)

        async def fill(stage: Stage) -> None:
            if backlog.jobs:
                await done(side, self.log, "fill", stage.url, *backlog.numbers)

        template = "_".join((name, *backlog.numbers))
        await self.server.prepare(template, fill, install)
        async with self.server.copy(template) as stage:
            yield stage


def all_measures(yard: Yard, python: tuple[int, ...]) -> list[Measure]:
    sizes = yard.sizes
    full, awaiting = Backlog(sizes.drain), Backlog(sizes.awaiting)
    empty = RatioAtLeast(0.98 if python >= _EAGER_TASKS else 0.9)
    usual = RatioAtLeast(0.98)
    few, many = sizes.pairs
    return [
        _drain(yard, "drain", "drain, empty handlers", full, "empty", empty),
        _drain(yard, "yielding", "drain, handlers that yield once", awaiting, "yielding", usual),
        _drain(yard, "awaiting", "drain, handlers that await a future", awaiting, "awaiting", usual),
        _drain(yard, "two-workers", "drain, empty handlers, two workers", full, "empty", usual, workers=2),
        _pick_up(yard, usual),
        _enqueuing(yard, "single", "single enqueue", sizes.single, usual),
        _enqueuing(yard, "bulk", "bulk enqueue", sizes.bulk, None),
        *_first_claims(
            yard, "claim-few", few, sizes.filled, 5, [Row("first claim of a connection, 1 pair", Unit.TIME)]
        ),
        *_first_claims(yard, "claim-many", many, sizes.filled, 50),
        *_first_claims(yard, "claim-full", few, few, 20),
    ]


def _in_turn(run: Callable[[str], Awaitable[Sequence[float]]]) -> Take:
    """Run one side after the other."""

    async def take(names: Sequence[str]) -> dict[str, Sequence[float]]:
        return {name: await run(name) for name in names}

    return take


def _drain(
    yard: Yard, name: str, title: str, backlog: Backlog, handler: str, threshold: RatioAtLeast, workers: int = 1
) -> Measure:
    async def run(side: str) -> Sequence[float]:
        shared = yard.server.folder / "started"
        shared.write_bytes(bytes(_PLACE_BYTES * workers))
        async with yard.stage(side, backlog) as stage, contextlib.AsyncExitStack() as stack:
            programs = [
                await stack.enter_async_context(
                    started_worker(
                        yard.sides[side], yard.log,
                        "drain", stage.url, handler, str(backlog.jobs), str(shared), str(place), str(workers),
                    )
                )
                for place in range(workers)
            ]  # fmt: skip
            await yard.rest()
            for program in programs:
                await program.tell("go")
            (seconds,) = await programs[0].hear()
        return [backlog.jobs / seconds]

    row = Row(f"{title} ({backlog.jobs:,} jobs)", Unit.RATE, threshold)
    return Measure(name, [row], _in_turn(run), 2 * (backlog.jobs / 45_000 + _START_SECONDS))


@contextlib.asynccontextmanager
async def _producers(yard: Yard, names: Sequence[str], *, worker: bool) -> AsyncIterator[dict[str, Program]]:
    """One producer per side, both open at the same time; with `worker`, each side also has an idle worker."""
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for name in names:
            side = yard.sides[name]
            stage = await stack.enter_async_context(yard.stage(name, Backlog()))
            if worker:
                idle = await stack.enter_async_context(started_worker(side, yard.log, "stamp", stage.url))
                await idle.tell("go")
            found[name] = await stack.enter_async_context(started(side, yard.log, "produce", stage.url))
        yield found


async def _by_turns(producers: Mapping[str, Program], turns: int, step: str) -> dict[str, list[list[float]]]:
    """Alternate in many short turns, A B B A A B …, so that a slow second of the machine slows both sides."""
    answers: dict[str, list[list[float]]] = {name: [] for name in producers}
    for turn in range(turns):
        for name in producers if turn % 2 == 0 else reversed(list(producers)):
            answers[name].append(await producers[name].step(step))
    return answers


def _enqueuing(yard: Yard, name: str, title: str, jobs: int, threshold: RatioAtLeast | None) -> Measure:
    turns = yard.sizes.turns

    async def take(names: Sequence[str]) -> dict[str, Sequence[float]]:
        async with _producers(yard, names, worker=False) as producers:
            await _by_turns(producers, 1, f"{name} {_WARM_UP_JOBS}")
            await yard.rest()
            answers = await _by_turns(producers, turns, f"{name} {jobs}")
        return {side: [turns * jobs / sum(seconds for (seconds,) in found)] for side, found in answers.items()}

    row = Row(f"{title} ({turns * jobs:,} jobs)", Unit.RATE, threshold)
    return Measure(name, [row], take, 2 * _START_SECONDS)


def _pick_up(yard: Yard, threshold: RatioAtLeast) -> Measure:
    turns, jobs = yard.sizes.turns, yard.sizes.spaced

    async def take(names: Sequence[str]) -> dict[str, Sequence[float]]:
        async with _producers(yard, names, worker=True) as producers:
            await _by_turns(producers, 1, f"spaced {_WARM_UP_JOBS}")
            await yard.rest()
            answers = await _by_turns(producers, turns, f"spaced {jobs}")
        waits = {side: sorted(wait for answer in found for wait in answer) for side, found in answers.items()}
        return {side: [share(found, 0.5), share(found, 0.99)] for side, found in waits.items()}

    title = f"pick-up by an idle worker ({turns * jobs} jobs)"
    rows = [Row(f"{title}, p50", Unit.TIME, threshold), Row(f"{title}, p99", Unit.TIME)]
    return Measure("pick-up", rows, take, 2 * (_START_SECONDS + turns * jobs * 0.04))


def _first_claims(
    yard: Yard, name: str, pairs: int, filled: int, most: float, beside: Sequence[Row] = ()
) -> list[Measure]:
    """Measure with one queue, and with a queue for each kind.

    The second measures the new side only: workers that look for each kind in each queue would have a million places to
    look at.
    """
    return [
        _first_claim(yard, name, Backlog(_JOBS_EACH * filled, pairs, 1, filled), most, 3, beside),
        _first_claim(yard, f"{name}-apart", Backlog(_JOBS_EACH * filled, pairs, pairs, filled), most, 0),
    ]


def _first_claim(
    yard: Yard, name: str, backlog: Backlog, most: float, most_old: int, beside: Sequence[Row] = ()
) -> Measure:
    async def run(side: str) -> Sequence[float]:
        pairs = (str(backlog.pairs), str(backlog.queues))
        async with (
            yard.stage(side, backlog) as stage,
            started(yard.sides[side], yard.log, "first-claim", stage.url, *pairs) as worker,
        ):
            return await worker.step("go", _CLAIM_SECONDS)

    place = "one queue" if backlog.queues == 1 else "a queue each"
    title = f"first claim, {backlog.pairs:,} pairs ({place}), {backlog.filled:,} with jobs"
    rows = [
        Row(title, Unit.TIME, MillisecondsAtMost(most)),
        Row(f"{title}: start to first handler", Unit.TIME),
        *beside,
    ]
    seconds = (2 if most_old else 1) * _START_SECONDS
    return Measure(name, rows, _in_turn(run), seconds, _CLAIM_PAIRS, most_old)
