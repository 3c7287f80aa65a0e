"""The results as one picture: an SVG of horizontal bars that is readable on light and dark pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.peers.settings import Settings
from bench.peers.summary import Spread, Summary

_WIDTH = 880
_MARGIN = 28
_LABEL = "Holdfast and other job systems on PostgreSQL"
_STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
    .page { fill: #ffffff; stroke: #d8dee4; }
    .title { font-size: 16px; font-weight: 600; fill: #1f2328; }
    .name { fill: #1f2328; }
    .own { font-weight: 600; }
    .dim { fill: #656d76; }
    .small { font-size: 11.5px; }
    .grid { stroke: #e4e8ec; }
    .whisker { stroke: #1f2328; stroke-opacity: .55; }
    .ours { fill: #0b7a5b; } .ours.second { fill: #7cc5ae; }
    .theirs { fill: #7d8894; } .theirs.second { fill: #c3cad2; }
"""
_DARK = """
      .page { fill: #0d1117; stroke: #30363d; }
      .title, .name { fill: #e6edf3; }
      .dim { fill: #9198a1; }
      .grid { stroke: #21262d; }
      .whisker { stroke: #e6edf3; }
      .ours { fill: #2fc596; } .ours.second { fill: #176b51; }
      .theirs { fill: #8b949e; } .theirs.second { fill: #454d57; }
"""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    detail: str
    is_own: bool
    spreads: Sequence[Spread]


@dataclass(frozen=True, slots=True)
class Panel:
    """`measures` names the bars of each row; the first is dark, the second light."""

    title: str
    measures: Sequence[str]
    rows: Sequence[Row]
    digits: int = 0


def picture(settings: Settings, summary: Summary) -> str:
    drain, *small = _panels(settings, summary)
    parts: list[str] = []
    y = _drain(parts, drain, _MARGIN + 14) + 26
    gap = 30
    width = (_WIDTH - 2 * _MARGIN - gap * (len(small) - 1)) / len(small)
    ends = [_small(parts, panel, _MARGIN + index * (width + gap), y, width) for index, panel in enumerate(small)]
    height = max(ends) + _MARGIN - 6
    size = f'viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_LABEL}">',
            f"  <style>{_STYLE}    @media (prefers-color-scheme: dark) {{{_DARK}    }}\n  </style>",
            f'  <rect class="page" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1:.0f}" rx="8"/>',
            *(f"  {part}" for part in parts),
            "</svg>\n",
        ]
    )


def _panels(settings: Settings, summary: Summary) -> list[Panel]:
    drains, pickups = [], []
    for setting in settings.settings:
        peer = setting.peer
        drain = [summary.rounds(setting.slug, "drain", workers=workers) for workers in (1, 2)]
        drains.append(Row(peer.name, f"{setting.name} settings", peer.is_own, [each for each in drain if each]))
        if setting.name == "default":
            pickup = [summary.rounds(setting.slug, "pickup", figure, 1) for figure in ("p50", "p99")]
            pickups.append(Row(peer.name, "", peer.is_own, [each for each in pickup if each]))
    enqueues = [
        [
            Row(peer.name, "", peer.is_own, [spread])
            for peer in settings.peers
            if (spread := summary.rounds(peer.slug, measure))
        ]
        for measure in ("bulk", "single")
    ]
    by_rate = [sorted(rows, key=lambda row: -row.spreads[0].median) for rows in (_full(drains), *enqueues)]
    by_wait = sorted(_full(pickups), key=lambda row: row.spreads[0].median)
    return [
        Panel("Drain, jobs per second", ("1 worker process", "2"), by_rate[0]),
        Panel(f"Enqueue {settings.sizes.batch:,} at once, jobs/s", (), by_rate[1]),
        Panel("Enqueue one at a time, jobs/s", (), by_rate[2]),
        Panel("Pick-up when idle, ms", ("p50", "p99"), by_wait, digits=1),
    ]


def _full(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.spreads]


def _drain(parts: list[str], panel: Panel, y: float) -> float:
    """Draw names on the left with two bars each. Returns the bottom edge."""
    left, right = _MARGIN + 218, _WIDTH - _MARGIN - 62
    scale = _scale(panel, right - left)
    parts.append(_text(_MARGIN, y, panel.title, "title"))
    _legend(parts, panel, _WIDTH - _MARGIN, y)
    top = y + 18
    bottom = top + len(panel.rows) * 36
    for value in _ticks(right - left, scale):
        x = left + value * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
        parts.append(_text(x, bottom + 15, f"{value:,.0f}", "dim small", "middle"))
    for index, row in enumerate(panel.rows):
        middle = top + index * 36 + 18
        parts.append(_name(left - 12, middle + 4.5, row))
        for number, spread in enumerate(row.spreads):
            bar = middle - 13 + number * 13
            _rectangle(parts, row, number, spread, left, bar, 12, scale)
            end = _whisker(parts, spread, left, bar, 12, scale)
            _value(parts, row, f"{spread.median:,.{panel.digits}f}", end, bar + 6)
    return bottom + 22


def _small(parts: list[str], panel: Panel, x: float, y: float, width: float) -> float:
    """Draw names above the bars, for a narrow column. Returns the bottom edge."""
    parts.append(_text(x, y, panel.title, "title").replace('class="title"', 'class="title" style="font-size:13.5px"'))
    _legend(parts, panel, x + width, y)
    top = y + 24
    scale = _scale(panel, width - (72 if panel.measures else 52))
    for index, row in enumerate(panel.rows):
        line = top + index * 42
        parts.append(_text(x, line + 8, row.name, "name own small" if row.is_own else "name small"))
        # Here the second value is never less than the first, so the first bar is drawn on top.
        for number, spread in reversed(list(enumerate(row.spreads))):
            _rectangle(parts, row, number, spread, x, line + 14, 17, scale)
        end = _whisker(parts, row.spreads[-1], x, line + 14, 17, scale)
        _value(parts, row, " / ".join(f"{each.median:,.{panel.digits}f}" for each in row.spreads), end, line + 22.5)
    return top + len(panel.rows) * 42


def _scale(panel: Panel, room: float) -> float:
    return room / max((spread.most for row in panel.rows for spread in row.spreads), default=1.0)


def _ticks(room: float, scale: float) -> list[float]:
    most = room / scale
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100) if most / (step * 1000) <= 6), 200) * 1000
    return [step * index for index in range(int(most // step) + 1)]


def _rectangle(
    parts: list[str], row: Row, number: int, spread: Spread, x: float, y: float, height: float, scale: float
) -> None:
    kind = ("ours" if row.is_own else "theirs") + (" second" if number else "")
    width = max(1.5, spread.median * scale)
    parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5"/>')


def _whisker(parts: list[str], spread: Spread, x: float, y: float, height: float, scale: float) -> float:
    """Draw a line from the least to the most. Returns the end of the bar and the whisker."""
    least, most, middle = x + spread.least * scale, x + spread.most * scale, y + height / 2
    if spread.number > 1 and most - least > 6:  # a shorter line would only be a blot
        ends = "".join(f"M{end:.1f} {middle - 2.5:.1f}v5" for end in (least, most))
        parts.append(f'<path class="whisker" fill="none" d="M{least:.1f} {middle:.1f}H{most:.1f}{ends}"/>')
    return max(x + 1.5, most)


def _value(parts: list[str], row: Row, text: str, end: float, middle: float) -> None:
    parts.append(_text(end + 6, middle + 4, text, "own name small" if row.is_own else "dim small"))


def _legend(parts: list[str], panel: Panel, right: float, y: float) -> None:
    x = right
    for number, name in reversed(list(enumerate(panel.measures))):
        parts.append(_text(x, y, name, "dim small", "end"))
        x -= 6.2 * len(name) + 18
        kind = "theirs second" if number else "theirs"
        parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y - 9:.1f}" width="11" height="10" rx="1.5"/>')
        x -= 14


def _name(x: float, y: float, row: Row) -> str:
    own = " own" if row.is_own else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="end"><tspan class="name{own}">{escape(row.name)}</tspan>'
        f'<tspan class="dim small"> {escape(row.detail)}</tspan></text>'
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
