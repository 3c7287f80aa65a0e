"""The figures as Markdown tables. A ratio is the median of the ratios to the first layout, pair by pair."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from bench.layout.report import spread, table

Costs = Mapping[str, Mapping[str, float]]


def ratio(values: Sequence[float], base: Sequence[float]) -> str:
    return f"{statistics.median(one / other for one, other in zip(values, base, strict=True)):.2f}"


def _first(figures: Mapping[str, Mapping[str, Sequence[float]]]) -> Mapping[str, Sequence[float]]:
    return next(iter(figures.values()))


def costs(used: Mapping[str, Mapping[str, Sequence[float]]], written: Mapping[str, Costs]) -> str:
    verbs, base = list(_first(used)), _first(used)

    def cells(name: str) -> Iterable[str]:
        for verb in verbs:
            cost = written[name][verb]
            microseconds = f"{statistics.median(used[name][verb]):.2f} ({ratio(used[name][verb], base[verb])})"
            yield f"{microseconds}, {cost['wal']:.0f} B, {cost['buffers']:.1f}"
        yield f"{sum(cost['wal'] for cost in written[name].values()):.0f} B"

    return table(
        "Server processor µs per job (ratio), WAL bytes, buffers",
        ["", *verbs, "WAL of a life"],
        ([name, *cells(name)] for name in used),
    )


def verbs(figures: Mapping[str, Costs]) -> str:
    rows = (
        [name, verb, f"{cost['wal']:.0f}", f"{cost['buffers']:.1f}"]
        for name, costs_of_one in figures.items()
        for verb, cost in costs_of_one.items()
    )
    return "\n" + table("The other verbs, per job", ["", "verb", "WAL B", "buffers"], rows)


def rates(workers: int, figures: Mapping[str, Sequence[float]]) -> str:
    base = next(iter(figures.values()))
    rows = ([name, spread(list(each)), ratio(each, base)] for name, each in figures.items())
    return "\n" + table(f"Drain by the store alone, {workers} at a time", ["", "jobs/s", "ratio"], rows)


def pinned(figures: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    rows = (
        [
            name,
            *(f"{each[0][what]:,.{digits}f} → {each[-1][what]:,.{digits}f}" for what, digits in COLUMNS),
        ]
        for name, each in figures.items()
    )
    return "\n" + table(
        "Under a pinned snapshot, first round → last", ["", "jobs/s", "server µs per job", "claim p50 ms"], rows
    )


def unvacuumed(jobs: int, figures: Mapping[str, Sequence[float]]) -> str:
    rows = ([name, " ".join(f"{one:.1f}" for one in each)] for name, each in figures.items())
    title = f"Claims without a vacuum: server µs per job, {jobs:,} jobs a round"
    return "\n" + table(title, ["", "round by round"], rows)


COLUMNS = (("rate", 0), ("processor", 1), ("claim_p50", 1))


def idle(kinds: int, figures: Costs) -> str:
    rows = ([name, f"{each['claim']:.0f}", f"{each['next_due']:.0f}"] for name, each in figures.items())
    return "\n" + table(f"Nothing to do, {kinds} kinds: server µs", ["", "empty claim", "next_due"], rows)
