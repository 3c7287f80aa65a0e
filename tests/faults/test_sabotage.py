"""Tests of the tester: the judge catches every sabotaged build through the rule that it breaks."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from holdfast_lab.faults.case import cases_named
from holdfast_lab.faults.judge import DUPLICATE, LOST, STALE_WRITE, STUCK, UNCOUNTED, WRONG_DELAY
from holdfast_lab.faults.run import Plan, Result, run_plan
from tests.faults.sabotage import SABOTAGE, SABOTAGES

SEED = 7
LEASE = "lease"
"""In seconds, for cases in which a shorter lease than the default reveals the damage sooner."""
CAUGHT = {
    "no_fence_check": ("R2", {STALE_WRITE}, {"stops": 5}),
    "acknowledge_before_running": ("R1", {LOST}, {"jobs": 400, "kills": 2}),
    "no_rescue": ("R1", {STUCK}, {"jobs": 100, "kills": 1, LEASE: 1}),
    "lease_kept_by_the_event_loop": ("R4", {DUPLICATE}, {"leases": 2, LEASE: 1}),
    "outcome_dropped_on_shutdown": ("R7", {DUPLICATE}, {"ends": 2, "side by side": 2}),
    "attempt_not_counted": ("R1", {UNCOUNTED}, {"jobs": 400, "kills": 2}),
    "notify_trusted": ("R16", {STUCK}, {}),
    "workers_clock_used": ("R28", {WRONG_DELAY}, {"jobs": 30, "seconds": 2}),
}


async def run(name: str, size: Mapping[str, float], app: str) -> Result:
    (case,) = cases_named([name])
    assert case.small is not None
    small = {name: size.get(name, usual) for name, usual in case.small.items()}
    (result,) = await run_plan(
        Plan([replace(case, small=small, lease=size.get(LEASE, case.lease))], SEED, worker_app=app),
        lambda case, text: None,
        lambda result: None,
    )
    assert not result.broken, result.broken
    assert not result.skipped
    return result


def test_each_sabotage_has_a_case() -> None:
    assert set(CAUGHT) == set(SABOTAGES)


@pytest.mark.long
@pytest.mark.parametrize("sabotage", SABOTAGES)
async def test_a_sabotaged_build_is_caught(sabotage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, kinds, size = CAUGHT[sabotage]
    monkeypatch.setenv(SABOTAGE, sabotage)
    result = await run(name, size, "tests.faults.sabotage:app")
    assert {violation.kind for violation in result.violations} & kinds
