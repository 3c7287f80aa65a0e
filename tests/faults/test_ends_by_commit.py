"""Jobs finished in their handlers' own transactions: the row committed with the end proves that it happened."""

from uuid import UUID

import pytest

from holdfast_lab.faults.app import EFFECT, WORK
from holdfast_lab.faults.judge import DISAGREE, LOST, Evidence, Final, judge
from holdfast_lab.faults.record import Note, What

JOB = UUID(int=1)


@pytest.mark.parametrize(
    ("kind", "effects", "found"), [(EFFECT, [(JOB, 1)], set()), (EFFECT, [], {DISAGREE}), (WORK, [], {LOST})]
)
def test_a_kill_may_come_between_the_commit_and_the_note_of_the_end(
    kind: str, effects: list[tuple[UUID, int]], found: set[str]
) -> None:
    notes = [
        Note(0.0, What.ENQUEUING, 1, JOB, more={"kind": kind}),
        Note(0.1, What.ACCEPTED, 1, JOB),
        Note(1.0, What.START, 100, JOB, 1, {"attempt": 1}),
        Note(1.1, What.KILL, 100),
    ]
    succeeded = Final(JOB, kind, "succeeded", fence=1, attempt=1, losses=0)
    evidence = Evidence(notes, {JOB: succeeded}, frozenset(), effects)
    assert {violation.kind for violation in judge(evidence)} == found
