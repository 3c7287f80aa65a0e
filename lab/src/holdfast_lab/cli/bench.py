"""`holdfast bench`: measure Holdfast on this machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import JsonOption
from holdfast.cli.output import console, print_json, warn
from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast_lab.bench.measure import Say, Step

_MOST_JOBS = 10_000_000
_MOST_WORKERS = 64
_MOST_ROUNDS = 100
_BAR = 20


def bench(
    jobs: Annotated[int, typer.Option(help="Number of jobs to enqueue and run in each measurement.")] = 20_000,
    workers: Annotated[
        str, typer.Option(metavar="N,M", help="Numbers of worker processes to measure with, one drain each.")
    ] = "1,2",
    rounds: Annotated[int, typer.Option(help="Number of rounds; the report shows medians.")] = 3,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="PostgreSQL server to measure. Default: a fresh one with fsync on.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast jobs are enqueued, run and picked up.

    Compares each figure with what this machine can do without Holdfast. Uses a fresh PostgreSQL in a temporary folder
    or, with --store, a new schema on that server, and removes either one afterwards.
    """
    from holdfast.cli.running import run_to_end, start_worker
    from holdfast_lab.bench.measure import Size, run_bench
    from holdfast_lab.bench.report import as_dict, as_table

    size = Size(_within("jobs", jobs, _MOST_JOBS), _numbers(workers), _within("rounds", rounds, _MOST_ROUNDS))
    with _progress() as say:
        report = run_to_end(run_bench(size, store, start_worker, say))
    if as_json:
        print_json(as_dict(report))
    else:
        out = console()
        out.print(as_table(report, out.width))


@contextmanager
def _progress() -> "Iterator[Say]":
    """Show a progress bar on a terminal and plain lines elsewhere, always on standard error."""
    if not sys.stderr.isatty():
        yield lambda step: warn(f"{step.number} of {step.of}: {step.title}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(_BAR), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Redraw only between steps, so that drawing takes no CPU time from a measurement.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task("preparing PostgreSQL", total=None)
        progress.refresh()

        def say(step: "Step") -> None:
            progress.update(task, total=step.of, completed=step.number - 1, description=step.title, refresh=True)

        yield say


def _within(name: str, number: int, most: int) -> int:
    if not 1 <= number <= most:
        raise InvalidInput(f"{name}: {number} is not a number from 1 to {most:,}")
    return number


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or not all(1 <= number <= _MOST_WORKERS for number in numbers):
        raise InvalidInput(f"workers: {text!r} is not a list of numbers from 1 to {_MOST_WORKERS}, such as 1,2")
    return numbers
