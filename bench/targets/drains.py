"""Drains of a backlog: with two workers, with other settings, in threads, and with handlers that wait."""

import asyncio
import itertools
import time
from dataclasses import replace

from bench.targets.apps import NOTHING, SLEEP, SLEEP_SECONDS, THREAD
from bench.targets.figures import Line, Run, as_details, at_least, costs, ratios, run_figures
from bench.targets.measuring import BACKLOG, BATCH, Bench, Side, backlog_of, say
from bench.targets.server import SCHEMA, Stage
from bench.targets.workers import Crew, Stuck, drained, now, seconds_taken
from holdfast.settings import Settings
from holdfast_lab.bench.apart import run_apart
from holdfast_lab.bench.bare import ClaimAndFinish

TASKS = 100
_SEARCHED = {"concurrency": ("8", "128", "512"), "most_ahead": ("300", "2000", "5000")}
_SEARCH_ROUNDS = 2


def drain(bench: Bench, crew: Crew, template: str = BACKLOG, jobs: int | None = None) -> Side:
    number = bench.sizes.drain if jobs is None else jobs

    async def side() -> Run:
        return await bench.on_copy(template, lambda stage: drained(stage, number, crew))

    return side


async def own_statements(bench: Bench) -> Line:
    """The limit is a plain loop: claim, finish, claim, finish.

    A second loop claims while it finishes, as the worker does. Without handlers to run, it keeps both cores busy with
    the statements alone.
    """
    await bench.prepare_backlog()
    in_turn = bare_statements(bench, is_overlapping=False)
    overlapping = bare_statements(bench, is_overlapping=True)
    pairs = await bench.in_pairs("own statements, in turn", drain(bench, Crew()), in_turn)
    others = await bench.in_pairs("own statements, overlapping", drain(bench, Crew()), overlapping)
    name = "drain: 1 worker against its own statements"
    return Line(
        [
            ratios(f"{name}, in turn", pairs, at_least(0.7)),
            *costs(pairs, "1 worker", "its own statements, in turn"),
            ratios(f"{name}, overlapping", others, None),
            run_figures("1 worker, in those pairs", [pair.measured for pair in others])[0],
            run_figures("its own statements, overlapping", [pair.limit for pair in others])[0],
        ],
        as_details(pairs) | {"overlapping": as_details(others)},
    )


def bare_statements(bench: Bench, *, is_overlapping: bool) -> Side:
    async def on(stage: Stage) -> Run:
        since = await now(stage)
        async with stage.metered() as meter:
            spent = await run_apart(ClaimAndFinish(stage.url, SCHEMA, BATCH, NOTHING, is_overlapping=is_overlapping))
        if spent.jobs != bench.sizes.drain:
            raise Stuck(f"the bare loop finished {spent.jobs:,} jobs instead of {bench.sizes.drain:,}")
        # Use the same timestamps as for a worker's drain.
        return meter.run(spent.jobs, await seconds_taken(stage, since))

    async def side() -> Run:
        return await bench.on_copy(BACKLOG, on)

    return side


async def two_workers(bench: Bench) -> Line:
    await bench.prepare_backlog()
    pairs = await bench.in_pairs("two workers", drain(bench, Crew(workers=2)), drain(bench, Crew()))
    return Line(
        [ratios("drain: 2 workers against 1", pairs, at_least(1.1)), *costs(pairs, "2 workers", "1 worker")],
        as_details(pairs),
    )


async def default_settings(bench: Bench) -> Line:
    """Search for the best settings one at a time, each starting from the best so far."""
    await bench.prepare_backlog()
    best, found = Crew(), dict[str, list[float]]()
    others: dict[str, Crew] = {}
    for name in (name for name in _SEARCHED if name in Settings.model_fields):
        changed = [replace(best, settings={**best.settings, name: value}) for value in _SEARCHED[name]]
        others.update({_named(crew): crew for crew in changed})
        for _ in range(min(_SEARCH_ROUNDS, bench.pairs)):
            for crew in (best, *changed):
                found.setdefault(_named(crew), []).append((await drain(bench, crew)()).rate)
        best = max((best, *changed), key=lambda crew: max(found[_named(crew)]))
        say("settings: " + ", ".join(f"{name}: {max(rates):,.0f}/s" for name, rates in found.items()))
    # If the defaults are best, compare them with the runner-up.
    best = max(others.values(), key=lambda crew: max(found[_named(crew)]))
    pairs = await bench.in_pairs("default settings", drain(bench, Crew()), drain(bench, best))
    figure = ratios("default settings against the best", pairs, at_least(0.85))
    return Line(
        [replace(figure, note=f"best: {_named(best)}"), *costs(pairs, "default settings", _named(best))],
        as_details(pairs) | {"search": found, "best": dict(best.settings)},
    )


def _named(crew: Crew) -> str:
    return ", ".join(f"{name} {value}" for name, value in crew.settings.items()) or "defaults"


async def threads(bench: Bench) -> Line:
    await bench.server.prepare("threads", backlog_of(bench.sizes.threads, THREAD))
    work = drain(bench, Crew("threads"), "threads", bench.sizes.threads)
    runs = await bench.repeated("def handlers", bench.pairs, work)
    return Line(
        run_figures("def handlers in threads", runs, at_least(5_000)), {"runs": [run.as_dict() for run in runs]}
    )


async def sleeping(bench: Bench) -> Line:
    await bench.server.prepare("sleep", backlog_of(bench.sizes.sleep, SLEEP))
    crew = Crew("sleeping", settings={"concurrency": str(TASKS)})

    async def bare() -> Run:
        return Run(bench.sizes.sleep, await _bare_tasks(bench.sizes.sleep), 0, 0)

    pairs = await bench.in_pairs("10 ms handlers", drain(bench, crew, "sleep", bench.sizes.sleep), bare)
    bound = at_least(0.9)
    return Line(
        [
            ratios(f"10 ms handlers, {TASKS} at once, against bare tasks", pairs, bound),
            *run_figures("10 ms handlers", [pair.measured for pair in pairs]),
            run_figures("bare tasks", [pair.limit for pair in pairs])[0],
        ],
        as_details(pairs),
    )


async def _bare_tasks(jobs: int) -> float:
    """Run bare tasks on this process's event loop, which is uvloop, as in the worker."""
    left = itertools.count(jobs, -1)

    async def task() -> None:
        while next(left) > 0:  # noqa: ASYNC110 - the sleep is the work
            await asyncio.sleep(SLEEP_SECONDS)

    started = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    return time.perf_counter() - started
