"""The rows of a comparison: what is compared, the readings of each pair, and the results."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bench.targets.against.verdicts import Estimate, MillisecondsAtMost, RatioAtLeast, Verdict
from bench.targets.table import table

NEW, OLD = "new", "old"


class Unit(StrEnum):
    RATE = "jobs/s"
    TIME = "ms"


@dataclass(frozen=True, slots=True)
class Reading:
    """One pair. A slow old side is not measured in every pair."""

    new: float
    old: float | None
    first: str
    """The side that was measured first."""


@dataclass(slots=True)
class Row:
    title: str
    unit: Unit
    threshold: RatioAtLeast | MillisecondsAtMost | None = None
    readings: list[Reading] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Above 1 the new side is better, even for units of which less is better."""
        pairs = [(each.new, each.old) for each in self.readings if each.old is not None]
        return [new / old if self.unit is Unit.RATE else old / new for new, old in pairs]

    @property
    def ratio(self) -> Estimate | None:
        return Estimate.of(self.ratios) if self.ratios else None

    @property
    def new(self) -> Estimate | None:
        return Estimate.of([each.new for each in self.readings]) if self.readings else None

    @property
    def old(self) -> float | None:
        values = [each.old for each in self.readings if each.old is not None]
        return statistics.median(values) if values else None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, or None for a row without a threshold."""
        if self.threshold is None:
            return None
        judged = self.new if isinstance(self.threshold, MillisecondsAtMost) else self.ratio
        return Verdict.UNCLEAR if judged is None else self.threshold.verdict(judged)

    def as_json(self) -> dict[str, object]:
        ratio = self.ratio
        return {
            "row": self.title,
            "unit": self.unit,
            "ratio": None if ratio is None else {"median": ratio.median, "low": ratio.low, "high": ratio.high},
            "is_95_percent": ratio is not None and ratio.is_certain,
            "threshold": None if self.threshold is None else str(self.threshold),
            "verdict": self.verdict,
            "pairs": [{NEW: each.new, OLD: each.old, "first": each.first} for each in self.readings],
        }


_HEADER = ("measure", "unit", "must be", "verdict", "new/old", "95% interval", "pairs", "new", "95% interval", "old")
_TEXT_COLUMNS = 4
_NOTE = (
    "new/old: the median over pairs, inverted for times, so that more is always better. Intervals: exact order\n"
    "statistics of the median. In parentheses: least to most, because fewer than six pairs have no 95% interval."
)


def as_table(rows: Sequence[Row], *, is_judged: bool) -> str:
    return f"{table(_HEADER, [_cells(row, is_judged) for row in rows], _TEXT_COLUMNS)}\n\n{_NOTE}"


def _cells(row: Row, is_judged: bool) -> tuple[str, ...]:
    verdict = row.verdict if is_judged else None
    ratio, new = row.ratio, row.new
    return (
        row.title,
        row.unit,
        "" if row.threshold is None else str(row.threshold),
        {None: "", Verdict.MET: "met"}.get(verdict, f"**{verdict}**"),
        "" if ratio is None else f"{ratio.median:.3f}",
        "" if ratio is None else _interval(ratio, "{:.3f}"),
        str(len(row.ratios)),
        "" if new is None else _amount(new.median),
        "" if new is None else _interval(new, _format(new.median)),
        "" if row.old is None else _amount(row.old),
    )


def _interval(estimate: Estimate, form: str) -> str:
    text = f"{form.format(estimate.low)}–{form.format(estimate.high)}"
    return text if estimate.is_certain else f"({text})"


def _amount(value: float) -> str:
    return _format(value).format(value)


def _format(value: float) -> str:
    return "{:,.0f}" if value >= 100 else "{:,.2f}"
