"""The laboratory's final report: a table, violations with the history of their jobs, or JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from holdfast_lab.faults.judge import Violation, count
from holdfast_lab.faults.lab import Figure
from holdfast_lab.faults.run import Result

_MOST_SHOWN = 5
_LONGEST_HISTORY = 40


def as_table(results: Sequence[Result]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("case", "title", "result", "seconds", "notes", "figures"):
        table.add_column(name, justify="right" if name in ("seconds", "notes") else "left", overflow="fold")
    for result in results:
        seconds, notes = (f"{result.seconds:.1f}", f"{result.notes:,}") if not result.skipped else ("", "")
        figures = "\n".join(_figure(each) for each in result.figures)
        table.add_row(result.case.name, result.case.title, _verdict(result), seconds, notes, figures)
    return table


def violation_lines(results: Sequence[Result]) -> Iterator[str]:
    """The first few violations of each case, each with the job's whole history."""
    for result in results:
        for violation in result.violations[:_MOST_SHOWN]:
            yield f"{result.case.name}  {violation}"
            yield from (f"    {line}" for line in violation.history[-_LONGEST_HISTORY:])
        if len(result.violations) > _MOST_SHOWN:
            yield f"{result.case.name}  and {len(result.violations) - _MOST_SHOWN} more; --json shows all of them"


def as_dict(results: Sequence[Result]) -> dict[str, Any]:
    return {
        "seed": results[0].seed if results else None,
        "fine": all(result.is_fine for result in results),
        "cases": [
            {
                "case": result.case.name,
                "title": result.case.title,
                "seconds": round(result.seconds, 1),
                "notes": result.notes,
                "skipped": result.skipped or None,
                "broken": result.broken or None,
                "figures": [_as_figure(each) for each in result.figures],
                "violations": [_as_violation(each) for each in result.violations],
            }
            for result in results
        ],
    }


def _verdict(result: Result) -> Text:
    if result.skipped:
        return Text(f"not run: {result.skipped}", "yellow")
    if result.broken:
        return Text(f"broken: {result.broken}", "red")
    if result.violations:
        kinds = count(result.violations)
        return Text(", ".join(f"{number} {kind}" for kind, number in kinds.items()), "red")
    return Text("0 violations", "green")


def _figure(figure: Figure) -> str:
    bound = ""
    if figure.at_most is not None:
        bound = f" (≤ {figure.at_most:g})"
    if figure.at_least is not None:
        bound = f" (≥ {figure.at_least:g})"
    value = f"{figure.value:,.0f}" if figure.value == int(figure.value) else f"{figure.value:.2f}"
    return f"{figure.name} {value}{figure.unit and ' '}{figure.unit}{bound}"


def _as_figure(figure: Figure) -> dict[str, object]:
    bounds = {"at_most": figure.at_most, "at_least": figure.at_least}
    known = {name: bound for name, bound in bounds.items() if bound is not None}
    return {"name": figure.name, "value": figure.value, "unit": figure.unit, "met": figure.is_met, **known}


def _as_violation(violation: Violation) -> dict[str, object]:
    return {
        "kind": violation.kind,
        "text": violation.text,
        "job": None if violation.job is None else str(violation.job),
        "history": list(violation.history),
    }
