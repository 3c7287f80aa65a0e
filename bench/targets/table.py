"""The figures as two Markdown tables with aligned columns, for people. The JSON output has all the data behind them."""

from collections.abc import Mapping, Sequence

from bench.targets.figures import Figure, Line

_LEFT = 3
_SPREAD = ("median", "quartiles", "least–most")
_VERDICTS = {"met": "met", "missed": "**missed**"}


def as_text(title: str, lines: Mapping[str, Line], problems: Mapping[str, str]) -> str:
    targets, beside = [], []
    for name, line in lines.items():
        judged = [figure for figure in line.figures if figure.bound is not None]
        reported = [figure for figure in line.figures if figure.bound is None]
        targets += [
            (*row, str(figure.bound), _VERDICTS[figure.verdict])
            for row, figure in zip(_rows(name, judged), judged, strict=True)
        ]
        beside += _rows(name, reported)
    broken = [f"- {name} broke: {problem}" for name, problem in problems.items()]
    return "\n\n".join(
        part
        for part in (
            title,
            table(("", "target", "", *_SPREAD, "must be", ""), targets),
            table(("", "other figures", "", *_SPREAD), beside),
            "\n".join(broken),
        )
        if part
    )


def _rows(name: str, figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    return [_row(name if number == 0 else "", figure) for number, figure in enumerate(figures)]


def _row(name: str, figure: Figure) -> tuple[str, ...]:
    note = f" ({figure.note})" if figure.note else ""
    first, third = figure.quartiles
    several = len(figure.values) > 1
    return (
        name,
        f"{figure.name}{note}",
        figure.unit,
        figure.shown(figure.value),
        f"{figure.shown(first)}–{figure.shown(third)}" if several else "",
        f"{figure.shown(min(figure.values))}–{figure.shown(max(figure.values))}" if several else "",
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = _LEFT) -> str:
    """A Markdown table with `left` columns of text, then figures; an empty string if there are no rows."""
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    rule = ["-" * width if column < left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join(_line(row, widths, left) for row in (header, rule, *rows))


def _line(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    padded = (
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"
