"""`holdfast faults`: run the fault laboratory on this machine."""

import logging
import secrets
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.errors import FAILED
from holdfast.cli.options import JsonOption
from holdfast.cli.output import console, print_json, warn
from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast_lab.faults.case import Case
    from holdfast_lab.faults.run import Result

_MOST_SIDE_BY_SIDE = 8


def faults(
    cases: Annotated[
        str | None,
        typer.Option(metavar="R1,R2", help="Cases to run. Default: all short cases.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of a run whose faults to repeat. Default: random.", show_default=False)
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="PostgreSQL server to use. Default: a fresh one.", show_default=False),
    ] = None,
    soak: Annotated[bool, typer.Option("--soak", help="Use the large sizes, and include the long cases.")] = False,
    side_by_side: Annotated[int, typer.Option(help="Number of cases to run at once, each on its own server.")] = 1,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="Override this size in the cases that have it.", show_default=False),
    ] = None,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases without running them.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Kill, stop and cut off real workers, and judge the damage.

    Compares the jobs that remain with an independent record of what happened. Uses a fresh PostgreSQL in a temporary
    folder or, with --url, a new schema on that server, and removes either one afterwards. Exits with 0 only if no job
    was lost, duplicated, stuck or changed.
    """
    from holdfast.cli.running import run_to_end
    from holdfast_lab.faults.case import all_cases, cases_named
    from holdfast_lab.faults.report import as_dict, as_table, violation_lines
    from holdfast_lab.faults.run import Plan, run_plan

    if not 1 <= side_by_side <= _MOST_SIDE_BY_SIDE:
        raise InvalidInput(f"side-by-side: {side_by_side} is not a number from 1 to {_MOST_SIDE_BY_SIDE}")
    if seed is not None and seed < 0:
        raise InvalidInput(f"seed: {seed} is below zero")
    chosen = cases_named(cases.replace(" ", "").split(",")) if cases else [c for c in all_cases() if soak or c.is_short]
    sizes = _sizes(size or [])
    if list_cases:
        _show(chosen, as_json=as_json)
        return
    # Some workers run in this process. Their log lines would be noise: the judge reports what happened to their jobs.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    plan = Plan(chosen, secrets.randbelow(1 << 32) if seed is None else seed, url, soak, side_by_side, sizes=sizes)
    warn(f"seed {plan.seed}: run `holdfast faults --seed {plan.seed}` to repeat these faults")
    results = run_to_end(run_plan(plan, *_progress(len(chosen))))
    if as_json:
        print_json(as_dict(results))
    else:
        out = console()
        out.print(as_table(results))
        for line in violation_lines(results):
            out.print(line, markup=False, highlight=False)
    if not all(result.is_fine for result in results):
        raise typer.Exit(FAILED)


def _sizes(given: list[str]) -> dict[str, float]:
    sizes = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            sizes[name] = float(number)
        except ValueError:
            raise InvalidInput(f"size: {text!r} is not understood; write it like minutes=2") from None
    return sizes


def _show(cases: "list[Case]", *, as_json: bool) -> None:
    if as_json:
        print_json([{"case": c.name, "title": c.title, "short": c.is_short, "needs": sorted(c.needs)} for c in cases])
        return
    out = console()
    for each in cases:
        out.print(
            f"{each.name:>4}  {'short' if each.is_short else 'soak ':5}  {each.title}", markup=False, highlight=False
        )


def _progress(number: int) -> "tuple[Callable[[Case, str], None], Callable[[Result], None]]":
    """Report on standard error: every step on a terminal, only finished cases elsewhere."""
    done = 0

    def say(case: "Case", text: str) -> None:
        if sys.stderr.isatty():
            warn(f"{case.name:>4}  {text}")

    def over(result: "Result") -> None:
        nonlocal done
        done += 1
        word = "not run" if result.skipped else "passed" if result.is_fine else "FAILED"
        warn(f"{done} of {number}: {result.case.name} {result.case.title}: {word}, {result.seconds:.1f} s")

    return say, over
