"""`python -m holdfast_lab.faults.simulation`: run many schedules, or replay one by its seed."""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Event

from holdfast_lab.faults.simulation.plan import FEWEST_JOBS, FEWEST_STEPS
from holdfast_lab.faults.simulation.run import Results, run_in_processes
from holdfast_lab.faults.simulation.world import World

_MOST_SEED = 10**9
_SHOWN_FAILURES = 20
_INTERRUPTED = 130
"""The exit code that shells expect from a program ended by Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    return _run(given) if given.replay is None else _replay(given.replay)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast_lab.faults.simulation", description=__doc__)
    parser.add_argument("--schedules", type=_at_least_one, default=1000, metavar="N", help="how many (default 1000)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the first schedule; each next one is one higher")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one and print the history of the failed job")
    parser.add_argument("--jobs", type=_at_least_one, metavar="N", help="number of processes (default: one per core)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _run(given: argparse.Namespace) -> int:
    first = random.randrange(_MOST_SEED) if given.seed is None else given.seed  # noqa: S311 - any will do
    seeds = range(first, first + given.schedules)
    started, results = time.monotonic(), Results()
    _say(f"{len(seeds):,} schedules, seeds {seeds[0]} to {seeds[-1]}")
    with _heard_interrupt() as interrupted:
        for part in run_in_processes(seeds, given.jobs or os.cpu_count() or 1):
            for failure in part.failures[: max(0, _SHOWN_FAILURES - len(results.failures))]:
                _say(f"\r{failure}")
            results.add(part)
            _say(f"\r{_progress(results, len(seeds), time.monotonic() - started)} ", end="")
            if interrupted.is_set():
                break
    seconds = time.monotonic() - started
    _say("")
    if results.schedules < len(seeds):
        _say(f"interrupted after {results.schedules:,} of {len(seeds):,} schedules")
    if given.json:
        sys.stdout.write(json.dumps(_as_dict(results, first, seconds), indent=2) + "\n")
    else:
        sys.stdout.write(_told(results, seconds))
    if results.schedules < len(seeds):
        return _INTERRUPTED
    return 1 if results.failures or _too_small(results) else 0


def _too_small(results: Results) -> list[str]:
    """A schedule in which little happened proves little, so no conclusion may be drawn from it."""
    counts = (("jobs", results.fewest_jobs, FEWEST_JOBS), ("steps", results.fewest_steps, FEWEST_STEPS))
    return [
        f"too small: a schedule had only {fewest} {what}, but needs {least}"
        for what, fewest, least in counts
        if fewest is not None and fewest < least
    ]


@contextmanager
def _heard_interrupt() -> Iterator[Event]:
    """An event that the first Ctrl-C or SIGTERM sets. As an exception, it could be mistaken for a handler's error."""
    heard = Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def hear(*_signal: object) -> None:
        heard.set()
        unhear()

    def unhear() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, hear)
    try:
        yield heard
    finally:
        unhear()


def _progress(results: Results, wanted: int, seconds: float) -> str:
    to_go = timedelta(seconds=seconds / results.schedules * (wanted - results.schedules))
    end = (datetime.now(UTC) + to_go).astimezone()
    return (
        f"{results.schedules:,} of {wanted:,}, {len(results.failures)} failed, "
        f"{results.schedules * 60 / seconds:,.0f} a minute, expected end {end:%H:%M:%S}"
    )


def _as_dict(results: Results, seed: int, seconds: float) -> dict[str, object]:
    return {
        "seed": seed,
        "schedules": results.schedules,
        "jobs": results.jobs,
        "steps": results.steps,
        "fewest_jobs": results.fewest_jobs,
        "fewest_steps": results.fewest_steps,
        "seconds": round(seconds, 1),
        "schedules_per_minute": round(results.schedules * 60 / seconds),
        "too_small": _too_small(results),
        "failures": [failure.as_dict() for failure in results.failures],
    }


def _told(results: Results, seconds: float) -> str:
    lines = [
        f"{results.schedules:,} schedules in {seconds:.1f} s ({results.schedules * 60 / seconds:,.0f} a minute)",
        f"{results.jobs:,} jobs, at least {results.fewest_jobs} in each",
        f"{results.steps:,} steps, at least {results.fewest_steps} in each",
    ]
    if results.failures:
        seed = results.failures[0].seed
        lines.append(f"{len(results.failures)} failed; replay one with --replay {seed}")
    else:
        lines.append("no violation")
    return "\n".join([*lines, *_too_small(results)]) + "\n"


def _replay(seed: int) -> int:
    oracle = World(seed).run()
    first = oracle.violations[0] if oracle.violations else None
    history = oracle.history(first.job) if first is not None and first.job else oracle.lines()
    verdict = "no violation" if first is None else str(first)
    sys.stdout.write("\n".join([*history, f"seed {seed}: {verdict}"]) + "\n")
    return 0 if first is None else 1


def _say(text: str, end: str = "\n") -> None:
    """Print progress to standard error, to keep it apart from the result."""
    sys.stderr.write(text + end)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
