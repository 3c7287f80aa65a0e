"""Runs many schedules, in several processes: each is a seed, and only those that went wrong are worth a word."""

import gc
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast_lab.faults.simulation.oracle import Violation
from holdfast_lab.faults.simulation.world import World

_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Failure:
    """The first violation of a schedule; what follows it is of no worth."""

    seed: int
    violation: Violation

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.violation}"

    def as_dict(self) -> dict[str, object]:
        violation = self.violation
        return {"seed": self.seed, "what": violation.what, "job": violation.job, "told": violation.told}


@dataclass(slots=True)
class Results:
    schedules: int = 0
    jobs: int = 0
    steps: int = 0
    fewest_jobs: int | None = None
    fewest_steps: int | None = None
    """Of schedules that went to their end."""
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Results") -> None:
        self.schedules += other.schedules
        self.jobs += other.jobs
        self.steps += other.steps
        self.fewest_jobs = _least(self.fewest_jobs, other.fewest_jobs)
        self.fewest_steps = _least(self.fewest_steps, other.fewest_steps)
        self.failures += other.failures


def run_schedules(seeds: Sequence[int]) -> Results:
    results = Results()
    with _nothing_collected():
        for seed in seeds:
            world = World(seed)
            oracle = world.run()
            jobs, steps = len(oracle.jobs), world.machine.steps
            if oracle.violations:
                results.add(Results(1, jobs, steps, failures=[Failure(seed, oracle.violations[0])]))
            else:
                results.add(Results(1, jobs, steps, jobs, steps))
            # What is left of a schedule would be looked through for tasks by the next ones.
            del world, oracle
            gc.collect()
    return results


def run_in_processes(seeds: range, processes: int) -> Iterator[Results]:
    """The results of a part of the schedules at a time."""
    parts = [seeds[start : start + _AT_ONCE] for start in range(0, len(seeds), _AT_ONCE)]
    if processes == 1:
        yield from map(run_schedules, parts)
        return
    # Not forked: a child would have whatever threads and loops the caller has, in whatever state.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _ignore_interrupt)
    try:
        yield from pool.map(run_schedules, parts)
    finally:
        # Whoever is interrupted takes no more than what it has.
        pool.shutdown(cancel_futures=True)


def _ignore_interrupt() -> None:
    """Ctrl-C is meant for whoever started this process, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Garbage is collected between schedules only, which is faster, and can do nothing to what is being simulated."""
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    # What is there already is not looked at again: that would take half of the time.
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
        gc.collect()
        if was_enabled:
            gc.enable()


def _least(first: int | None, second: int | None) -> int | None:
    known = [number for number in (first, second) if number is not None]
    return min(known, default=None)
