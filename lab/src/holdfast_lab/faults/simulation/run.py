"""Runs many schedules in several processes, one per seed, and reports those that fail."""

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
    """The first violation of a schedule. Later ones may only be its consequences."""

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
    """Counted only over schedules that ran to their end."""
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
            # Otherwise later schedules would search the remains of this one for tasks.
            del world, oracle
            gc.collect()
    return results


def run_in_processes(seeds: range, processes: int) -> Iterator[Results]:
    """Yield results for one part of the schedules at a time."""
    parts = [seeds[start : start + _AT_ONCE] for start in range(0, len(seeds), _AT_ONCE)]
    if processes == 1:
        yield from map(run_schedules, parts)
        return
    # Not forked, because a child would inherit the caller's threads and loops in an unknown state.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _ignore_interrupt)
    try:
        yield from pool.map(run_schedules, parts)
    finally:
        # When interrupted, finish only the parts that are running.
        pool.shutdown(cancel_futures=True)


def _ignore_interrupt() -> None:
    """Leave Ctrl-C to the parent process, which then ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Collect garbage only between schedules: that is faster, and a collection cannot affect the simulation."""
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    # Exempt existing objects, because scanning them again would take half of the time.
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
