"""The checks inside cases: each must notice if the fault did not happen or cost too much."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from holdfast_lab.faults.cases.killing import _interrupted
from holdfast_lab.faults.cases.soaks import _check_p99, _descriptors, _memory
from holdfast_lab.faults.cases.stopping import _holder
from holdfast_lab.faults.crew import Broken
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.processes import start_process
from holdfast_lab.faults.record import Record, What
from holdfast_lab.faults.server import FaultServer, Place


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(
        place=Place("", "", ""),
        server=FaultServer("", None),
        folder=tmp_path,
        record=Record(tmp_path / "nobody"),
        size={},
        random=Random(1),
        lease=3.0,
        worker_app="",
        progress=lambda text: None,
    )


def noted(lab: Lab, *notes: tuple[What, int, int]) -> None:
    """Record each note: what happened, in which process, with which fence."""
    job = str(uuid4())
    lines = [
        json.dumps({"at": at, "what": what, "pid": pid, "fence": fence, "job": job})
        for at, (what, pid, fence) in enumerate(notes)
    ]
    (lab.folder / "record.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("before", "during", "is_met"),
    [
        (0.029, 0.060, True),
        (0.029, 0.090, False),
        (0.001, 0.014, True),
        (0.001, 0.016, False),
    ],
)
def test_a_p99_is_compared_with_the_baseline_but_not_below_the_noise(
    lab: Lab, before: float, during: float, is_met: bool
) -> None:
    _check_p99(lab, "a claim", [before] * 100, [9.0] * 50 + [during] * 100)
    assert (not lab.violations) == is_met


@pytest.mark.parametrize(("before", "during"), [([], [0.1]), ([0.1] * 10, [0.1] * 9)])
def test_a_p99_of_too_few_values_is_refused(lab: Lab, before: Sequence[float], during: Sequence[float]) -> None:
    with pytest.raises(Broken, match="a claim: measured"):
        _check_p99(lab, "a claim", before, during)


def test_only_handlers_in_progress_count_as_interrupted_by_a_kill(lab: Lab) -> None:
    ended, killed, of_another = (What.START, 1, 1), (What.START, 1, 2), (What.START, 2, 3)
    noted(lab, ended, (What.END, 1, 1), killed, of_another, (What.KILL, 1, 0), (What.START, 1, 4), (What.END, 2, 3))
    assert _interrupted(lab) == 1


async def test_a_worker_that_logs_no_holder_is_an_error(lab: Lab) -> None:
    process = start_process(["this"], lab.folder / "worker.log", lab.record, {}, {})
    assert await process.ended(60) is not None
    with pytest.raises(Broken, match="does not say by which name"):
        _holder(process)


def test_a_dead_process_has_no_memory_to_compare(lab: Lab) -> None:
    assert _memory(os.getpid()) > 1
    assert _descriptors(os.getpid()) > 2
    pid = os.fork()
    if not pid:
        os._exit(0)
    # Dead, but not reaped yet.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        with pytest.raises(Broken, match="has ended"):
            _memory(pid)
    finally:
        os.waitpid(pid, 0)
