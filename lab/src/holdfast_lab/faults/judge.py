"""The rules that must hold after any fault, checked against the recorder's notes and the store's final state.

A pure function, so that it can be tested with histories that break one rule each, and with sabotaged builds.
Neighbors: excuses.py knows which violations a fault explains away.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from uuid import UUID

from holdfast.domain.lifecycle import SUSPECT
from holdfast.worker.settings import WorkerSettings
from holdfast_lab.faults.app import EFFECT, EFFECTIVE, ELSEWHERE, GUILTY, UNSTOPPABLE
from holdfast_lab.faults.excuses import Excuses
from holdfast_lab.faults.record import DONE, Note, What

LOST = "lost"
UNEXPECTED = "unexpected"
DUPLICATE = "unexplained duplicate"
INNOCENT_DEATH = "innocent death"
STALE_WRITE = "stale write accepted"
CHANGED = "final state changed"
WRONG_END = "wrong end"
DISAGREE = "job and effect disagree"
STUCK = "stuck"
UNCOUNTED = "attempt not counted"
REISSUED = "claim issued twice"
WRONG_DELAY = "wrong delay"
TARGET = "target missed"

_STOPPED, _SNOOZED = "CancelledError", "Snooze"
_STATE_AFTER = {DONE: "succeeded", "Permanent": "failed", "Cancel": "canceled"}
"""Ends of an attempt that no other attempt follows."""
_WORKING_SECONDS = 5.0
"""A worker started after the last fault is serving jobs by then."""
_BUSY_SECONDS = 2.0
"""How much later a rescue may come on a busy machine."""


@dataclass(frozen=True, slots=True)
class Final:
    """A final job as the store reports it. `result_hash` stands for the whole result."""

    id: UUID
    kind: str
    state: str
    fence: int | None
    attempt: int
    losses: int
    result_fence: int | None = None
    result_hash: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """`seen`: jobs found final before the end, each as it was first seen.

    `is_ours`: false for other job systems. Their rules for retries, shutdowns and cancels are unknown here.
    """

    notes: Sequence[Note]
    final: Mapping[UUID, Final]
    open: frozenset[UUID]
    effects: Sequence[tuple[UUID, int]] = ()
    seen: Mapping[UUID, Final] = field(default_factory=dict)
    lease: float = 30.0
    is_ours: bool = True


@dataclass(frozen=True, slots=True)
class Violation:
    """`history`: every note about the job, and the faults of that time."""

    kind: str
    text: str
    job: UUID | None = None
    history: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


_Found = Iterator[tuple[str, str]]


class _Job:
    """Everything known about one job. `rows`: the fences of the effects that were committed together with an end."""

    def __init__(self, id: UUID, notes: Sequence[Note], rows: Sequence[int], evidence: Evidence) -> None:
        self.notes = notes
        self.rows = rows
        self.said = {note.what for note in notes}
        self.starts = sorted((note for note in notes if note.what is What.START), key=lambda note: note.at)
        self.ends = {note.fence: note for note in notes if note.what is What.END}
        self.final = evidence.final.get(id)
        self.before = evidence.seen.get(id)
        self.is_open = id in evidence.open
        self.is_ours = evidence.is_ours
        noted = (note.more["kind"] for note in notes if "kind" in note.more)
        self.kind: str = self.final.kind if self.final is not None else next(noted, "")

    def how(self, fence: int | None) -> str | None:
        """How the attempt with this fence ended, or None if no end was noted."""
        end = self.ends.get(fence) if fence is not None else None
        return None if end is None else end.more.get("how")


def judge(evidence: Evidence) -> list[Violation]:
    """Return all violations, sorted by kind and then by job."""
    of_job: dict[UUID, list[Note]] = defaultdict(list)
    for note in evidence.notes:
        if note.job is not None:
            of_job[note.job].append(note)
    rows: dict[UUID, list[int]] = defaultdict(list)
    for id, fence in evidence.effects:
        rows[id].append(fence)
    excuses = Excuses(evidence.notes, evidence.lease)
    found: list[Violation] = []
    for id in {*of_job, *rows, *evidence.final, *evidence.open}:
        job = _Job(id, of_job.get(id, []), rows.get(id, []), evidence)
        for kind, text in _of_job(job, excuses):
            found.append(Violation(kind, f"job {id}: {text}", id, _history(job, excuses)))
    return sorted(found, key=lambda each: (each.kind, str(each.job)))


def is_stuck(overdue: float, calm: float, lease: float) -> bool:
    """Whether a lease that expired `overdue` seconds ago should have been rescued by now.

    `calm`: seconds without a fault. Within two rescue intervals, some worker must have looked for expired leases.
    """
    interval = WorkerSettings(lease=timedelta(seconds=lease)).rescue_every.total_seconds()
    return min(overdue, calm - _WORKING_SECONDS) > 2 * interval + _BUSY_SECONDS


def _of_job(job: _Job, excuses: Excuses) -> _Found:
    yield from _places(job, excuses)
    yield from _duplicates(job, excuses)
    yield from _attempts(job, excuses)
    if job.final is not None:
        yield from _stale(job.final, job)
        yield from _success(job.final, job)
    if job.is_ours:
        yield from _ends(job, excuses)
    yield from _effects(job, excuses)


def _places(job: _Job, excuses: Excuses) -> _Found:
    """A stored job must be in exactly one place, and must stay there once it is final."""
    is_there = job.final is not None or job.is_open
    if What.ENQUEUING not in job.said:
        yield UNEXPECTED, "ran or is stored, but was never enqueued"
    if What.REFUSED in job.said and (is_there or job.starts):
        yield UNEXPECTED, "was refused, but is stored or has run"
    is_prunable = any(note.more.get("is_prunable") for note in job.notes)
    if not is_there and not is_prunable and not excuses.forgot(_stored(job)):
        if What.ACCEPTED in job.said:
            yield LOST, "was accepted, and is neither final nor claimable"
        elif What.REFUSED not in job.said and (job.starts or job.before is not None):
            yield LOST, "existed, although its enqueue got no reply, and is now neither final nor claimable"
    ended = job.final or job.before
    if job.before is not None and excuses.forgot_end(job.ends.get(job.before.fence or 0)):
        return
    if ended is not None and job.is_open and job.is_ours:
        yield CHANGED, f"was {_told(ended)}, and is open again"
    if job.before is not None and job.final is not None and job.before != job.final:
        # An operator may give up a dead letter.
        is_given_up = job.before.state in ("failed", "dead") and job.final.state == "canceled"
        if not (is_given_up and What.CANCEL in job.said):
            yield CHANGED, f"was {_told(job.before)}, and is {_told(job.final)}"


def _stored(job: _Job) -> float:
    """The earliest time at which its enqueue had certainly been committed."""
    proofs = [note.at for note in job.notes if note.what in (What.ACCEPTED, What.START)]
    return min(proofs, default=math.inf)


def _told(final: Final) -> str:
    result = "" if final.result_hash is None else f" with result {final.result_hash:x}"
    return f"{final.state} by fence {final.fence}, attempt {final.attempt}, losses {final.losses}{result}"


def _duplicates(job: _Job, excuses: Excuses) -> _Found:
    for first, second in pairwise(job.starts):
        end = job.ends.get(first.fence)
        is_over = end is not None and end.at <= second.at
        if is_over and _is_tried_again(job, first, excuses):
            continue
        how = job.how(first.fence)
        done = end.at if end is not None and is_over and how == DONE and job.is_ours else None
        # These kinds cannot note that they were stopped: a process is killed, and a thread keeps running.
        is_stopped = job.kind in ELSEWHERE and not is_over and excuses.stopped(first, second.at)
        is_forgotten = excuses.forgot_claim_of(first) or excuses.forgot_end(end)
        if not is_stopped and not is_forgotten and not excuses.lost_lease(first, second.at, done):
            ended = "" if end is None else f", after it had ended: {how}" if is_over else ", while it ran"
            yield DUPLICATE, f"fence {first.fence} was followed by fence {second.fence} for no reason{ended}"


def _is_tried_again(job: _Job, start: Note, excuses: Excuses) -> bool:
    """Whether the end of this attempt calls for another one."""
    end = job.ends[start.fence]
    how = job.how(start.fence)
    if not job.is_ours:
        return how != DONE
    if how == _STOPPED:
        is_asked = any(note.what is What.CANCEL and note.at <= end.at for note in job.notes)
        return is_asked or excuses.stopped(start, end.at)
    return how not in _STATE_AFTER


def _is_no_attempt(job: _Job, start: Note, until: float, excuses: Excuses) -> bool:
    """Whether the attempt does not count: it was snoozed, or stopped by a shutdown or an outage.

    A handler that is stopped outside its worker's process leaves no note of that.
    """
    if job.how(start.fence) == _SNOOZED:
        return True
    end = job.ends.get(start.fence)
    return (end is None or job.how(start.fence) == _STOPPED or job.kind in ELSEWHERE) and excuses.stopped(start, until)


def _attempts(job: _Job, excuses: Excuses) -> _Found:
    claims = Counter(start.more["claim"] for start in job.starts if "claim" in start.more)
    for claim, times in claims.items():
        if times > 1:
            yield REISSUED, f"claim {claim} was started {times} times"
    for first, second in pairwise(job.starts):
        # A job claimed before a failover that forgot the claim may start after its successor.
        is_late = excuses.forgot_claim_of(second) and not excuses.forgot(first.at)
        if second.fence <= first.fence and not is_late:
            yield STALE_WRITE, f"fence {second.fence} started after fence {first.fence}"
        elif (
            second.more["attempt"] <= first.more["attempt"]
            and not _is_no_attempt(job, first, second.at, excuses)
            and not excuses.forgot_claim_of(first)
            # Its worker released a job that it no longer knew, as if that attempt had never begun.
            and not excuses.forgot_end(job.ends.get(first.fence))
        ):
            yield UNCOUNTED, f"fences {first.fence} and {second.fence} were both attempt {second.more['attempt']}"


def _stale(final: Final, job: _Job) -> _Found:
    newest = max((note.fence for note in job.starts), default=None)
    if newest is not None and final.fence is not None and newest > final.fence:
        yield STALE_WRITE, f"was finished by fence {final.fence} after fence {newest} had started"
    if final.state == "succeeded" and final.result_fence not in (None, final.fence):
        yield STALE_WRITE, f"has the result of fence {final.result_fence}, and was finished by {final.fence}"


def _success(final: Final, job: _Job) -> _Found:
    # A handler that commits its own end leaves a row as proof; a kill may come before it can note the end.
    if final.state == "succeeded" and final.kind != EFFECT and job.how(final.fence) != DONE:
        yield LOST, f"succeeded by fence {final.fence}, but that attempt did not end well"


def _ends(job: _Job, excuses: Excuses) -> _Found:
    """Whether the final state follows from how the attempts ended and from what was requested."""
    for start in job.starts:
        if "of" in start.more and start.more["attempt"] - start.more["losses"] > start.more["of"]:
            yield WRONG_END, f"fence {start.fence} started after all {start.more['of']} attempts had failed"
    in_vain = [] if job.final is None else list(_in_vain(job.final, job))
    yield from in_vain
    # An unusable payload or result fails the job even though no attempt failed.
    if in_vain or (job.final is None and not job.is_open) or not job.starts or What.UNUSABLE in job.said:
        return
    last = job.starts[-1]
    state = "open" if job.final is None else job.final.state
    should = _STATE_AFTER.get(job.how(last.fence) or "", state)
    if state == "open" and excuses.forgot_end(job.ends.get(last.fence)):
        return
    # Its worker may have given up on it, whatever the handler noted later; an operator may give up a dead letter.
    is_given_up = (job.kind in ELSEWHERE and state != "failed") or (should, state) == ("failed", "canceled")
    if state != should and not is_given_up:
        until = job.ends[last.fence].at + excuses.lease
        # A worker that lost the lease cannot make the job fail.
        if state in ("succeeded", "failed") or not excuses.lost_lease(last, until):
            yield WRONG_END, f"fence {last.fence} ended: {job.how(last.fence)}, but the job is {state}"


def _in_vain(final: Final, job: _Job) -> _Found:
    fence = final.fence if final.fence is not None or not job.starts else job.starts[-1].fence
    how = job.how(fence)
    match final.state:
        case "canceled" if What.CANCEL not in job.said and how != "Cancel":
            yield WRONG_END, "was canceled, but no cancel was requested"
        case "failed" if how != "Permanent" and What.UNUSABLE not in job.said:
            yield WRONG_END, f"failed by fence {fence}, but that attempt ended: {how}"
        case "dead" if not _is_exhausted(final, job):
            if final.losses and final.kind not in GUILTY:
                yield INNOCENT_DEATH, f"is dead after {final.losses} lost leases, but has killed no worker"
            elif final.losses < SUSPECT + GUILTY.get(final.kind, 0):
                yield WRONG_END, f"is dead at attempt {final.attempt}, but had attempts left"


def _is_exhausted(final: Final, job: _Job) -> bool:
    """Whether all allowed attempts failed. Attempts that lost their lease do not count."""
    last = job.starts[-1] if job.starts else None
    if last is None or "of" not in last.more or final.attempt - final.losses < last.more["of"]:
        return False
    failed = sum(job.how(start.fence) not in (None, DONE, _SNOOZED) for start in job.starts)
    # A handler outside the event loop can be given up without a note of its end.
    return bool(job.kind in ELSEWHERE or failed >= last.more["of"])


def _effects(job: _Job, excuses: Excuses) -> _Found:
    final = job.final
    ended = final.fence if final is not None and final.state == "succeeded" else None
    if job.kind == EFFECT:
        wanted = [] if ended is None else [ended]
        if job.rows != wanted:
            yield DISAGREE, f"its effects have fences {job.rows}, but its end has {wanted}"
        for fence in job.ends:
            # Noted after the commit, so neither a kill nor an outage can undo it.
            if job.how(fence) == DONE and fence != ended and not excuses.forgot(job.ends[fence].at):
                yield DISAGREE, f"fence {fence} committed its end, but the job's end is {wanted}"
        return
    noted = [note for note in job.notes if note.what is What.EFFECT]
    if job.kind in EFFECTIVE and job.how(ended) == DONE and ended not in {note.fence for note in noted}:
        yield DISAGREE, f"succeeded by fence {ended}, but that attempt had no effect"
    yield from _late_effects(job, noted, excuses)


def _late_effects(job: _Job, noted: Sequence[Note], excuses: Excuses) -> _Found:
    """A handler must stop before its lease ends, unless it is unstoppable or its process was paused."""
    starts = {note.fence: note for note in job.starts}
    for effect in noted:
        start = starts.get(effect.fence)
        if start is None:
            if job.is_ours:
                yield DISAGREE, f"there is an effect of fence {effect.fence}, which never started"
            continue
        newer = [each.fence for each in job.starts if each.fence > effect.fence and each.at < effect.at]
        is_excused = excuses.paused(start, effect.at) or excuses.forgot_claim_of(start)
        if newer and job.is_ours and job.kind not in UNSTOPPABLE and not is_excused:
            yield DISAGREE, f"the effect of fence {effect.fence} came after fence {newer[0]} had started"


def _history(job: _Job, excuses: Excuses) -> tuple[str, ...]:
    if not job.notes:
        return ()
    faults = excuses.between(job.notes[0].at, job.notes[-1].at)
    together = sorted({id(note): note for note in (*job.notes, *faults)}.values(), key=lambda note: note.at)
    lines = [str(note) for note in together]
    if job.final is not None:
        lines.append(f"final state: {_told(job.final)}")
    return tuple(lines)


def count(violations: Iterable[Violation]) -> Counter[str]:
    return Counter(each.kind for each in violations)
