"""Converts a peer's notes and tables into evidence for Holdfast's judge. Pure.

Most peers' tables have no fence. Instead, attempts of a job are numbered in the recorder's order, and the newest
attempt that had ended well when the job became final counts as the one that finished it. A stale write thus shows as a
job that is final although a newer attempt had started.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from holdfast_lab.faults.judge import Evidence, Final
from holdfast_lab.faults.record import DONE, Note, What

SUCCEEDED, FAILED = "succeeded", "failed"
_GOOD = frozenset({"succeeded", "successful", "completed"})
_CLOCKS_SECONDS = 0.005
"""How far the server's clock, converted to the recorder's, may be off."""


@dataclass(frozen=True, slots=True)
class End:
    """A job that became final, according to the peer's tables. `at` is the recorder's clock; `job` may be unknown."""

    job: UUID | None
    id: str
    state: str
    at: float


def evidence(notes: Sequence[Note], ends: Iterable[End], open_jobs: Iterable[UUID], lease: float) -> Evidence:
    numbered = number_attempts(notes)
    known = {str(note.more["id"]): note.job for note in numbered if "id" in note.more and note.job is not None}
    of_job: dict[UUID, list[Note]] = defaultdict(list)
    for note in numbered:
        if note.what is What.END and note.job is not None:
            of_job[note.job].append(note)
    first: dict[UUID, Final] = {}
    last: dict[UUID, Final] = {}
    for end in ends:
        job = end.job or known.get(end.id)
        if job is not None:
            final = _final(job, end, of_job[job])
            first.setdefault(job, final)
            last[job] = final
    return Evidence(notes=numbered, final=last, open=frozenset(open_jobs), seen=first, lease=lease, is_ours=False)


def number_attempts(notes: Sequence[Note]) -> list[Note]:
    """Add a fence to each note of an attempt: its number among the starts of its job."""
    numbers: dict[str, int] = {}
    starts: dict[UUID, int] = defaultdict(int)
    numbered = []
    for note in notes:
        token = note.more.get("token")
        if token is None or note.job is None:
            numbered.append(note)
            continue
        if note.what is What.START:
            starts[note.job] += 1
            numbers[token] = starts[note.job]
        number = numbers.get(token, 0)
        numbered.append(replace(note, fence=number, more=note.more | {"attempt": number}))
    return numbered


def run_more_than_once(notes: Iterable[Note]) -> int:
    return len({note.job for note in notes if note.what is What.START and note.fence > 1})


def started_again(notes: Sequence[Note]) -> Mapping[str, int]:
    """How many attempts came after the first ones, by the kind of job and what its handler does."""
    kinds = {note.job: note.more["kind"] for note in notes if note.what is What.ENQUEUING}
    counts: dict[str, int] = defaultdict(int)
    for note in notes:
        if note.what is What.START and note.fence > 1:
            counts[f"{kinds.get(note.job, '?')}: {note.more['how']}"] += 1
    return dict(counts)


def _final(job: UUID, end: End, ends: Sequence[Note]) -> Final:
    is_good = end.state in _GOOD
    before = [
        note.fence
        for note in ends
        if note.at <= end.at + _CLOCKS_SECONDS and (not is_good or note.more.get("how") == DONE)
    ]
    fence = max(before, default=None)
    return Final(job, "", SUCCEEDED if is_good else FAILED, fence, fence or 0, losses=0)
