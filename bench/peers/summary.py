"""Medians and spreads of the results, for the tables and the plot."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.peers.record import Line, Record


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    least: float
    most: float
    number: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        return cls(statistics.median(values), min(values), max(values), len(values)) if values else None


@dataclass(frozen=True, slots=True)
class Summary:
    lines: Sequence[Line]

    @classmethod
    def read(cls, record: Record) -> "Summary":
        return cls(record.lines)

    def rounds(self, setting: str, measure: str, figure: str = "rate", workers: int | None = None) -> Spread | None:
        wanted = {"part": "rounds", "setting": setting, "measure": measure, "workers": workers}
        return Spread.of([line[figure] for line in self._matching(wanted)])

    def side(self, pair: str, setting: str, workers: int) -> Spread | None:
        wanted = {"part": "pairs", "pair": pair, "setting": setting, "workers": workers}
        return Spread.of([line["rate"] for line in self._matching(wanted)])

    def ratios(self, pair: str, of: str, against: str, workers: int) -> Spread | None:
        """One side's rate divided by the other's, per turn. Turns without both sides do not count."""
        rates = {
            setting: {
                line["round"]: line["rate"]
                for line in self._matching({"part": "pairs", "pair": pair, "setting": setting, "workers": workers})
            }
            for setting in (of, against)
        }
        turns = sorted(rates[of].keys() & rates[against].keys())
        return Spread.of([rates[of][turn] / rates[against][turn] for turn in turns])

    def _matching(self, wanted: Line) -> list[Line]:
        return [line for line in self.lines if all(line.get(name) == value for name, value in wanted.items())]
