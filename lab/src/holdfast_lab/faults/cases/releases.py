"""Producers and workers of two releases at once, as in every rolling deploy and every rollback."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from holdfast import JobState
from holdfast_lab.faults.app import LETTER
from holdfast_lab.faults.case import case
from holdfast_lab.faults.judge import TARGET
from holdfast_lab.faults.lab import Lab

_OLDER_APP, _NEWER_APP = "holdfast_lab.faults.older_app:app", "holdfast_lab.faults.newer_app:app"
_OLD, _NEW = 1, 2
_SAID = "wait for a newer worker"
_DRAINED_SECONDS = 10.0
_PATIENCE = timedelta(seconds=60)
_LONGEST_WAIT = 10.0
"""How long a worker that does not know a job's version may leave it aside."""


@case(
    "R53",
    "new producers with old workers, and the reverse, while workers are killed",
    small={"jobs": 60},
    large={"jobs": 2_000},
)
async def two_releases(lab: Lab) -> None:
    """No job may fail because of its version, and a worker that knows the version must do it."""
    done: list[UUID] = []
    async with lab.workers(2, _OLDER_APP) as older:
        old, new = await _enqueued(lab, _OLD), await _enqueued(lab, _NEW)
        await (lab.random.choice(older.alive)).kill()
        lab.faulted()
        await _until_succeeded(lab, old)
        await _expect_untouched(lab, new)
        said = sum(each.output().count(_SAID) for each in older.processes)
        lab.check("warnings of old workers", said, at_least=1, at_most=len(older.processes))
        async with lab.workers(2, _NEWER_APP) as newer:
            done += [*old, *new, *await _enqueued(lab, _NEW), *await _enqueued(lab, _OLD)]
            await (lab.random.choice(newer.alive)).kill()
            for each in older.alive:
                each.terminate()
            lab.faulted()
            await lab.drained(lab.lease + _LONGEST_WAIT + _DRAINED_SECONDS)
            # Now only the new release runs, with producers that are still old.
            done += await _enqueued(lab, _OLD)
            lab.faulted()
            await lab.drained(_DRAINED_SECONDS)
    await _until_succeeded(lab, done)


async def _enqueued(lab: Lab, version: int) -> list[UUID]:
    payloads: list[object] = [
        {"to": f"{number}@old", "seconds": 0.02} if version == _OLD else {"recipients": [f"{number}@new"] * 2}
        for number in range(lab.count("jobs"))
    ]
    return await lab.enqueue_each(LETTER, payloads, version=version)


async def _until_succeeded(lab: Lab, jobs: Sequence[UUID]) -> None:
    for job, found in (await lab.producer.wait_many(jobs, _PATIENCE)).items():
        if found.state is not JobState.SUCCEEDED:
            code = found.last_error.code if found.last_error else "no error"
            lab.violation(TARGET, f"job {job}: is {found.state} with {code} instead of succeeded", job)


async def _expect_untouched(lab: Lab, jobs: Sequence[UUID]) -> None:
    """The jobs must still wait, at no cost to them."""
    for job in jobs:
        found = await lab.producer.jobs.get(job)
        if found is None or found.state.is_final or found.attempt - (found.state is JobState.RUNNING) or found.errors:
            how = "gone" if found is None else f"{found.state} at attempt {found.attempt}"
            lab.violation(TARGET, f"job {job}: is too new for every worker, but is {how}", job)
