"""The engine under a virtual clock: seeds are reproducible, and the oracle catches sabotage and nothing else."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import holdfast.worker
from holdfast_lab.faults.simulation import __main__ as simulation
from holdfast_lab.faults.simulation import engine
from holdfast_lab.faults.simulation.__main__ import main
from holdfast_lab.faults.simulation.plan import FEWEST_JOBS, FEWEST_STEPS
from holdfast_lab.faults.simulation.run import Failure, Results, run_in_processes, run_schedules
from holdfast_lab.faults.simulation.world import World
from tests.faults.simulated_sabotage import SABOTAGES, Sabotage, no_fence_check

ROUNDS = range(10)
"""A few seeds, enough to reveal a change that breaks everything. `make trials` runs many more."""
_ROOT = Path(__file__).parents[2]


def trace(seed: int) -> str:
    return "\n".join(World(seed).run().lines())


def first_failure(most: int) -> Failure | None:
    for seed in range(most):
        failures = run_schedules([seed]).failures
        if failures:
            return failures[0]
    return None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert trace(seed) == trace(seed)


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    """In another process, sets of strings iterate in a different order."""
    replayed = subprocess.run(
        [sys.executable, "-m", "holdfast_lab.faults.simulation", "--replay", "4"],
        capture_output=True,
        text=True,
        check=True,
        cwd=_ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(_ROOT / "src")},
    )
    assert replayed.stdout == f"{trace(4)}\nseed 4: no violation\n"


def test_different_seeds_give_different_traces() -> None:
    assert len({trace(seed) for seed in range(10)}) == 10


# Runs up to 400 schedules, which takes a minute on a busy machine.
@pytest.mark.timeout(300)
@pytest.mark.long
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_every_sabotage_is_caught_by_the_rule_it_breaks(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    failure = first_failure(400)
    assert failure is not None
    assert re.search(SABOTAGES[sabotage], str(failure.violation)), failure


def test_the_engine_breaks_no_promise() -> None:
    results = run_schedules(ROUNDS)
    assert [str(failure) for failure in results.failures] == []
    assert results.schedules == len(ROUNDS)
    assert results.fewest_jobs is not None
    assert results.fewest_jobs >= FEWEST_JOBS
    assert results.fewest_steps is not None
    assert results.fewest_steps >= FEWEST_STEPS


def test_no_module_of_the_worker_reads_the_real_clock() -> None:
    """Modules that are not simulated are the exception."""
    modules = [import_module(f"holdfast.worker.{each.name}") for each in iter_modules(holdfast.worker.__path__)]
    reading = {module for module in modules if hasattr(module, "time")} - {holdfast.worker.processes}
    assert reading <= set(engine._MODULES)


@pytest.mark.long
def test_every_kind_of_move_occurs() -> None:
    told = "\n".join(trace(seed) for seed in range(130))
    for move in (
        *(
            "request lost",
            "request late",
            "request unanswered",
            "paused for",
            "event loop blocked",
            "cut off",
            "late commit",
        ),
        *("died", "asked to stop", "rescued: ready", "rescued: dead", "cancel: requested", "cancel: canceled"),
        *("runs alone with", "and lives", "interrupt with"),
        *("request lost: claim of suspects", "request unanswered: claim of suspects"),
        *("retry: ready", "returned", "raised,", "raised Permanent", "raised Snooze", "raised Cancel"),
        *("was interrupted", "succeed with", "exhaust with", "release with", ": stale", ": already", "of every second"),
        "late commit",
    ):
        assert move in told, move


def test_a_failure_is_reported_with_its_seed_and_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_fence_check(monkeypatch)
    assert main(["--schedules", "10", "--seed", "0", "--jobs", "1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    failure = told["failures"][0]
    assert failure["what"] == "stale write accepted"
    assert main(["--replay", str(failure["seed"])]) == 1
    *history, verdict = capsys.readouterr().out.splitlines()
    assert verdict == f"seed {failure['seed']}: {failure['what']}: {failure['job']}, {failure['told']}"
    assert any(f"{failure['job']} " in line and "enqueued" in line for line in history)
    assert any("VIOLATION" in line for line in history)


@pytest.mark.long
def test_schedules_run_in_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "60", "--seed", "7", "--jobs", "2"]) == 0
    printed = capsys.readouterr()
    assert "no violation" in printed.out
    assert "seeds 7 to 66" in printed.err
    assert "60 of 60, 0 failed" in printed.err
    assert "a minute, expected end" in printed.err


@pytest.mark.parametrize(
    ("jobs", "steps", "told"),
    [
        (FEWEST_JOBS, FEWEST_STEPS, []),
        (FEWEST_JOBS - 1, FEWEST_STEPS, ["too small: a schedule had only 49 jobs, but needs 50"]),
        (FEWEST_JOBS, FEWEST_STEPS - 1, ["too small: a schedule had only 199 steps, but needs 200"]),
    ],
)
def test_a_schedule_that_is_too_small_is_a_failure(
    jobs: int, steps: int, told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def small(seeds: range, processes: int) -> Iterator[Results]:
        yield Results(len(seeds), jobs, steps, jobs, steps)

    monkeypatch.setattr(simulation, "run_in_processes", small)
    assert main(["--schedules", "1"]) == (1 if told else 0)
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("too small")] == told
    assert main(["--schedules", "1", "--json"]) == (1 if told else 0)
    assert json.loads(capsys.readouterr().out)["too_small"] == told


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_interrupted_run_reports_its_results_so_far(
    processes: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(seeds: range, processes: int) -> Iterator[Results]:
        for part in run_in_processes(seeds, processes):
            signal.raise_signal(number)
            yield part

    monkeypatch.setattr(simulation, "run_in_processes", interrupted)
    assert main(["--schedules", "100000", "--seed", "7", "--jobs", processes]) == 130
    printed = capsys.readouterr()
    assert printed.out.startswith("50 schedules")
    assert "no violation" in printed.out
    assert "interrupted after 50 of 100,000 schedules" in printed.err
