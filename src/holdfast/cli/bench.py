"""`holdfast bench`: how fast Holdfast is on this machine."""

from typing import Annotated

import typer

from holdfast.cli.options import JsonOption
from holdfast.cli.output import console, print_json, warn
from holdfast.errors import InvalidInput

_MOST_JOBS = 10_000_000
_MOST_WORKERS = 64


def bench(
    jobs: Annotated[int, typer.Option(help="Jobs to enqueue and to work off in each measurement.")] = 20_000,
    workers: Annotated[str, typer.Option(metavar="N,M", help="Worker processes, one drain for each number.")] = "1,2",
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A server to measure. Default: a fresh one, fsync on.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast jobs are enqueued, worked off and picked up.

    Uses a fresh PostgreSQL in a temporary folder, or with --store a schema of its own; both are removed afterwards.
    """
    from holdfast.bench.measure import run_bench
    from holdfast.bench.report import as_dict, as_table
    from holdfast.cli.running import run_to_end, start_worker

    if not 1 <= jobs <= _MOST_JOBS:
        raise InvalidInput(f"jobs: {jobs} is not a number from 1 to {_MOST_JOBS:,}")
    report = run_to_end(run_bench(jobs, _numbers(workers), store, start_worker, warn))
    if as_json:
        print_json(as_dict(report))
    else:
        console().print(as_table(report))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or not all(1 <= number <= _MOST_WORKERS for number in numbers):
        raise InvalidInput(f"workers: {text!r} is not a list of numbers from 1 to {_MOST_WORKERS}, such as 1,2")
    return numbers
