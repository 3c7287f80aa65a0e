"""Drains with jobs around that must not matter: history, future jobs, and jobs that no worker may run now."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.targets.apps import BLOCKED, NOTHING
from bench.targets.drains import drain
from bench.targets.figures import Figure, Line, Pair, Run, as_details, at_least, at_most, costs, ratios
from bench.targets.measuring import PAYLOAD, Bench, backlog_of, enqueue, say
from bench.targets.server import SCHEMA, Stage
from bench.targets.workers import Crew, Stuck, drained
from holdfast.domain.json_text import encode
from holdfast.maintenance.chores import Retention, all_chores, run_chore
from holdfast.settings import Settings
from holdfast.store.postgres.maintenance import PostgresMaintenance
from holdfast.store.postgres.store import PostgresStore

LEAST_RATE = 0.9
MOST_BUFFERS = 1.1
_LATER = timedelta(days=1)
_HISTORY, _ALONE, _BLOCKED, _FUTURE = "history", "alone", "blocked", "future"


async def history(bench: Bench) -> Line:
    await bench.prepare_backlog()
    say(f"making {bench.sizes.history:,} finished jobs")
    await bench.server.prepare(_HISTORY, lambda stage: _fill_history(bench, stage))
    pruned: Counter[str] = Counter()

    async def beside_history(stage: Stage) -> Run:
        async def retention() -> None:
            pruned.update(await _keep_retention(stage))

        return await drained(stage, bench.sizes.drain, beside=retention)

    pairs = await bench.in_pairs("history", lambda: bench.on_copy(_HISTORY, beside_history), drain(bench, Crew()))
    await bench.server.forget(_HISTORY)
    what = f"{bench.sizes.history:,} finished, {bench.sizes.ahead:,} future, retention"
    note = ", ".join(f"{number / len(pairs):,.0f} {name}" for name, number in pruned.items())
    return Line(
        [replace(figure, note=note) if number == 0 else figure for number, figure in enumerate(_figures(what, pairs))],
        as_details(pairs) | {"retention": dict(pruned)},
    )


async def _fill_history(bench: Bench, stage: Stage) -> None:
    # A past day is dropped once all of it is older than the retention.
    days = Settings.model_fields["retention"].default.days + 1
    await stage.value(
        f"SELECT {SCHEMA}.add_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date - $1::integer, $1)", days
    )
    sql = (Path(__file__).parent / "sql" / "history.sql").read_text()
    await stage.connection.execute(sql, bench.sizes.history, days, NOTHING, encode(PAYLOAD))
    await enqueue(stage, bench.sizes.drain, NOTHING)
    await enqueue(stage, bench.sizes.ahead, NOTHING, delay=_LATER)


async def _keep_retention(stage: Stage) -> Counter[str]:
    """Run all chores of maintenance in this process.

    A worker runs them at a random time within a minute of its start, when the drain is already over.
    """
    counts: Counter[str] = Counter()
    settings = Settings()
    store = PostgresStore(stage.url, SCHEMA)
    await store.open()
    try:
        maintenance = PostgresMaintenance(store)
        kept = Retention(settings.retention, settings.dead_letter_retention, settings.run_retention)
        for chore in all_chores(maintenance, kept):
            report = await run_chore(maintenance, chore, lambda: False)
            if report.error is not None:
                raise Stuck(report.error)
            counts.update({name: number for name, number in report.counts.items() if number})
    finally:
        await store.close()
    return counts


async def behind(bench: Bench) -> Line:
    """Drain behind jobs of another kind that are due earlier but stay, and behind more urgent jobs that are not due."""
    jobs = bench.sizes.behind
    await bench.server.prepare(_ALONE, backlog_of(jobs))
    await bench.server.prepare(_BLOCKED, lambda stage: _fill(bench, stage, BLOCKED))
    await bench.server.prepare(_FUTURE, lambda stage: _fill(bench, stage, NOTHING, priority=0, delay=_LATER))
    number = f"{bench.sizes.ahead:,}"
    # Otherwise the worker would wait for its one slow job when it stops.
    limited = Crew("limited", settings={"shutdown": "0s"})
    cases = {
        f"{number} due ahead, unhandled": (Crew(), _BLOCKED),
        f"{number} due ahead, paused": (Crew("pausing"), _BLOCKED),
        f"{number} due ahead, at their limit": (limited, _BLOCKED),
        f"{number} future, more urgent": (Crew(), _FUTURE),
    }
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    for what, (crew, template) in cases.items():
        pairs = await bench.in_pairs(what, drain(bench, crew, template, jobs), drain(bench, crew, _ALONE, jobs))
        figures += _figures(what, pairs)
        details[what] = as_details(pairs)
    for template in (_ALONE, _BLOCKED, _FUTURE):
        await bench.server.forget(template)
    return Line(figures, details)


async def _fill(bench: Bench, stage: Stage, kind: str, **options: Any) -> None:  # noqa: ANN401
    await enqueue(stage, bench.sizes.ahead, kind, **options)
    await enqueue(stage, bench.sizes.behind, NOTHING)


def _figures(what: str, pairs: list[Pair]) -> list[Figure]:
    return [
        ratios(f"{what}: drain against without", pairs, at_least(LEAST_RATE)),
        Figure(
            f"{what}: buffers against without", [pair.buffers_ratio for pair in pairs], at_most(MOST_BUFFERS), "ratio"
        ),
        *costs(pairs, what, f"without {what}"),
    ]
