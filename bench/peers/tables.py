"""The generated part of docs/benchmarks.md: the measurements, in tables."""

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.peers.record import Record, RecordError
from bench.peers.settings import ROOT, Pair, Settings, Sizes
from bench.peers.summary import Spread, Summary

BEGIN = "<!-- begin: python -m bench.peers report -->"
END = "<!-- end -->"
_NONE = "–"
_SIDE_BY_SIDE = """\
The rate of Holdfast divided by that of the other system: the median ratio (least–most) of pairs that ran one after the
other, and the median rates."""
_EVERYBODY = """\
Jobs per second, and milliseconds from the return of the enqueue to the start of the handler, over {pickup_jobs} jobs:
medians (least–most). A drain is cut off after {cap_seconds:g} s."""


def section(settings: Settings, record: Record) -> str:
    summary, share = Summary.read(record), record.facts["share"]
    sizes = settings.sizes.reduced(share)
    parts = [
        _about(record),
        "### Side by side",
        _SIDE_BY_SIDE,
        _pairs(settings, summary, share),
        "### All systems",
        _EVERYBODY.format(pickup_jobs=sizes.pickup_jobs, cap_seconds=sizes.cap_seconds),
        _workers(settings, summary, share),
        _enqueue(settings, summary, sizes),
        "### Versions and settings",
        _versions(settings),
        *_missing(settings, record),
        *_failed(record),
    ]
    return "\n\n".join(parts)


def put(page: str, text: str) -> str:
    """The page with the section between its marks replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RecordError(f"the page has no place for the tables: {BEGIN} … {END}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def _about(record: Record) -> str:
    machine, server = record.facts["machine"], record.facts["server"]
    shown = record.path.resolve()
    path = shown.relative_to(ROOT) if shown.is_relative_to(ROOT) else Path(shown.name)
    options = ", ".join(f"{name} {server[name]}" for name in server if name not in ("which", "server_version"))
    commands = ", then ".join(f"`python -m bench.peers {each}`" for each in record.facts["commands"])
    commit, dirty, _ = record.facts["holdfast_commit"].partition("-dirty")
    changes = " with changes that were not committed" if dirty else ""
    text = (
        f"Measured on {record.facts['date']} with {commands}, Holdfast at `{commit}`{changes}: "
        f"{machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']:g} GiB, Python {machine['python']}, node {_node(record)}; PostgreSQL "
        f"{server['server_version']} on the same cores, {server['which']}: {options}. All figures are in "
        f"`{path}`."
    )
    return "\n".join(textwrap.wrap(text, 120, break_on_hyphens=False))


def _node(record: Record) -> str:
    return next((packages["node"] for packages in record.facts["installed"].values() if "node" in packages), _NONE)


def _pairs(settings: Settings, summary: Summary, share: float) -> str:
    return _table(
        ["Holdfast, default settings, compared with", "jobs", "1 worker", "2 workers"],
        (
            [
                f"{pair.against.peer.name}, {pair.against.name} settings",
                f"{int(pair.jobs * share):,}",
                *(_pair(summary, pair, each) for each in (1, 2)),
            ]
            for pair in settings.pairs
        ),
    )


def _pair(summary: Summary, pair: Pair, workers: int) -> str:
    ratio = summary.ratios(pair.slug, pair.of.slug, pair.against.slug, workers)
    own, other = (summary.side(pair.slug, side.slug, workers) for side in (pair.of, pair.against))
    if ratio is None or own is None or other is None:
        return _NONE
    return f"**{_shown(ratio, 2)}**, {ratio.number} pairs<br>{own.median:,.0f} : {other.median:,.0f} jobs/s"


def _workers(settings: Settings, summary: Summary, share: float) -> str:
    rows = (
        [
            setting.peer.name,
            setting.name,
            f"{int(setting.jobs * share):,}",
            *(_shown(summary.rounds(setting.slug, "drain", workers=workers)) for workers in (1, 2)),
            *(_shown(summary.rounds(setting.slug, "pickup", figure, 1), 1) for figure in ("p50", "p99")),
        ]
        for setting in settings.settings
    )
    return _table(["", "settings", "jobs", "drain, 1 worker", "drain, 2", "pick-up p50 ms", "p99 ms"], rows)


def _enqueue(settings: Settings, summary: Summary, sizes: Sizes) -> str:
    rows = (
        [peer.name, *(_shown(summary.rounds(peer.slug, measure)) for measure in ("bulk", "single"))]
        for peer in settings.peers
    )
    bulk = f"enqueue, {sizes.batch:,} at once, {sizes.bulk_jobs:,} jobs"
    return _table(["", bulk, f"enqueue, one at a time, {sizes.single_seconds:g} s"], rows)


def _versions(settings: Settings) -> str:
    rows = []
    for peer in settings.peers:
        described = [setting.described for setting in settings.settings if setting.peer == peer]
        rows.append([peer.name, peer.version, *described])
    return _table(["", "version", "default", "best"], rows)


def _missing(settings: Settings, record: Record) -> list[str]:
    """The peers without figures, and the reasons: an unexplained gap would look like a choice."""
    missing = record.facts["missing"]
    return [
        f"{peer.name} was not measured here: `{' '.join(missing[peer.slug].split())[-300:]}`"
        for peer in settings.peers
        if peer.slug in missing
    ]


def _failed(record: Record) -> list[str]:
    """Measurements that failed and never succeeded in a later try."""
    failed = [line for line in record.failures if record.failed(line)]
    named = [f"{line['measure']} of {line['setting']}" for line in failed]
    return [f"Failed in at least one turn, which does not count: {', '.join(dict.fromkeys(named))}."] if named else []


def _shown(spread: Spread | None, digits: int = 0) -> str:
    if spread is None:
        return _NONE
    middle = f"{spread.median:,.{digits}f}"
    return f"{middle} ({spread.least:,.{digits}f}–{spread.most:,.{digits}f})" if spread.number > 1 else middle


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|{'|'.join('---' for _ in header)}|"]
    lines.extend(f"| {' | '.join(row)} |" for row in rows)
    return "\n".join(lines)
