"""The figures as Markdown tables, in the form in which the decision record shows them."""

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from bench.layout.candidates import ALL, VERBS


def tables(figures: dict[str, Any]) -> str:
    server = figures["server"]
    parts = [
        f"PostgreSQL {server['version']}, {server['cores']} cores, `python -m bench.layout --url … {server['command']}`"
    ]
    sections: dict[str, Callable[[Any], str]] = {
        "load": load,
        "verbs": verbs,
        "call": call,
        "lanes": lanes,
        "full": full,
        "unhandled": unhandled,
        "pinned": pinned,
    }
    parts.extend(show(figures[name]) for name, show in sections.items() if figures.get(name))
    return "\n\n".join(parts)


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(header)
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join('---' for _ in names)}|"]
    lines.extend(f"| {' | '.join(row)} |" for row in rows)
    return f"{title}\n\n" + "\n".join(lines)


def spread(values: list[float], digits: int = 0) -> str:
    middle = f"{statistics.median(values):,.{digits}f}"
    return f"{middle} ({min(values):,.{digits}f}–{max(values):,.{digits}f})" if len(values) > 1 else middle


def load(rounds: dict[str, list[dict[str, float]]]) -> str:
    columns = {
        "enqueue jobs/s": ("enqueue_rate", 0),
        "drain jobs/s": ("drain_rate", 0),
        "server CPU enqueue µs/job": ("enqueue_cpu", 1),
        "server CPU drain µs/job": ("drain_cpu", 1),
        "claim p50 ms": ("claim_p50", 1),
        "claim p99 ms": ("claim_p99", 1),
        "WAL enqueue B/job": ("enqueue_wal", 0),
        "WAL drain B/job": ("drain_wal", 0),
        "buffers drain /job": ("drain_buffers", 1),
        "size MiB": ("size_mib", 0),
    }
    rows = (
        [name, ALL[name].title, *(spread([one[key] for one in results], digits) for key, digits in columns.values())]
        for name, results in rounds.items()
    )
    return table("Under load, median (least–most)", ["", "layout", *columns], rows)


def verbs(costs: dict[str, dict[str, dict[str, float]]]) -> str:
    wal = table(
        "WAL bytes per job of each statement, without full-page images",
        ["", *VERBS],
        ([name, *(f"{one[verb]['wal']:,.0f}" for verb in VERBS)] for name, one in costs.items()),
    )
    buffers = table(
        "Shared buffers per job of each statement",
        ["", *VERBS],
        ([name, *(f"{one[verb]['buffers']:,.1f}" for verb in VERBS)] for name, one in costs.items()),
    )
    milliseconds = table(
        "Milliseconds of a statement (1,000 jobs enqueued, 500 of the others, one shown)",
        ["", *VERBS],
        ([name, *(f"{one[verb]['ms']:,.2f}" for verb in VERBS)] for name, one in costs.items()),
    )
    return f"{wal}\n\n{buffers}\n\n{milliseconds}"


def call(rounds: list[dict[str, dict[str, float]]]) -> str:
    rows = (
        [way, *(spread([one[way][key] for one in rounds], 2) for key in ("claim_p50", "finish_p50"))]
        for way in ("function", "inline")
    )
    return table("The same statements as functions and inline", ["", "claim p50 ms", "finish p50 ms"], rows)


def lanes(costs: dict[str, list[dict[str, float]]]) -> str:
    places = {-1.0: "nowhere", 0.0: "one kind, priority 0", 9.0: "one kind, priority 9"}
    rows = (
        [name, f"{one['kinds']:.0f}", f"{one['lanes']:.0f}", places[one["jobs_at"]], f"{one['claim_ms']:.1f}",
         f"{one['buffers']:,.0f}"]
        for name, results in costs.items()
        for one in results
    )  # fmt: skip
    return table(
        "A claim of 500 over lanes of which at most one has jobs",
        ["", "kinds", "lanes", "jobs are in", "claim ms", "buffers"],
        rows,
    )


def full(costs: dict[str, list[dict[str, float]]]) -> str:
    rows = (
        [name, f"{one['kinds']:.0f}", f"{one['ms']:.1f}", f"{one['buffers']:,.1f}", f"{one['wal']:,.0f}"]
        for name, results in costs.items()
        for one in results
    )
    return table(
        "A claim of 500 when every kind has more than that waiting",
        ["", "kinds", "claim ms", "buffers /job", "WAL B/job"],
        rows,
    )


def unhandled(costs: dict[str, dict[str, float]]) -> str:
    rows = (
        [name, f"{one['waiting']:,.0f}", f"{one['ms']:.1f}", f"{one['buffers']:,.1f}"] for name, one in costs.items()
    )
    return table(
        "A claim of 500 behind older jobs of a kind that is not handled",
        ["", "jobs in front", "claim ms", "buffers /job"],
        rows,
    )


def pinned(results: list[dict[str, Any]]) -> str:
    rows = (
        [
            one["pinned_by"],
            one["candidate"] + (" with floors" if one["floors"] else ""),
            f"{one['rounds']:.0f}",
            f"{one['first_rate']:,.0f} → {one['last_rate']:,.0f}",
            f"{one['first_buffers']:,.0f} → {one['last_buffers']:,.0f}",
            f"{one['first_p99']:.0f} → {one['last_p99']:.0f}",
            f"{one['full_looks']:.0f}" if one["floors"] else "every claim",
            f"{one['full_look_ms']:.0f}",
            f"{one['rescue_ms']:.0f}",
        ]
        for one in results
    )
    return table(
        "Under a pinned snapshot, first round → last round",
        ["pinned by", "layout", "rounds", "drain jobs/s", "buffers /job", "claim p99 ms", "full looks",
         "full look ms at the end", "rescue ms at the end"],
        rows,
    )  # fmt: skip
