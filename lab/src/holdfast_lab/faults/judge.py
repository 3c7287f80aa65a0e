"""What must hold after any faults, judged from the recorder's notes and what the store says in the end.

A pure function, so that it can itself be tested: by notes that break one rule each, and by sabotaged builds.
Neighbour: excuses.py knows what the faults explain.
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
"""Ends of an attempt after which there is no other one."""
_WORKING_SECONDS = 5.0
"""Whoever was started after the last fault is at work by then."""
_BUSY_SECONDS = 2.0
"""By which a rescue may come late on a machine that has other things to do."""


@dataclass(frozen=True, slots=True)
class Final:
    """A job that is final, as the store has it. `result_hash` stands for all of its result."""

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
    """`seen`: what was final at some moment before the end, the first time that it was seen.

    `is_ours`: not a peer's, whose rules for retries, shutdowns and cancels are its own. Nobody here knows them.
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
    """`history`: all that was noted of the job, and of the faults meanwhile."""

    kind: str
    text: str
    job: UUID | None = None
    history: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


_Found = Iterator[tuple[str, str]]


class _Job:
    """All that is known of one. `rows`: the fences of the effects that were committed with an end."""

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
        """That attempt ended."""
        end = self.ends.get(fence) if fence is not None else None
        return None if end is None else end.more.get("how")


def judge(evidence: Evidence) -> list[Violation]:
    """Every violation, those of one job together."""
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
    """Whether a lease that ended so many seconds ago should have been rescued, there being no fault for `calm` ones.

    After two rescue intervals somebody must have looked.
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
    """Whether it is in one place, if it was ever stored, and in that one for good once it is final."""
    is_there = job.final is not None or job.is_open
    if What.ENQUEUING not in job.said:
        yield UNEXPECTED, "ran or is there, and nobody enqueued it"
    if What.REFUSED in job.said and (is_there or job.starts):
        yield UNEXPECTED, "was refused, and is there all the same"
    is_prunable = any(note.more.get("is_prunable") for note in job.notes)
    if not is_there and not is_prunable and not excuses.forgot(_stored(job)):
        if What.ACCEPTED in job.said:
            yield LOST, "was accepted, and is neither final nor claimable"
        elif What.REFUSED not in job.said and (job.starts or job.before is not None):
            yield LOST, "was there, though its enqueue had no answer, and is neither final nor claimable"
    ended = job.final or job.before
    if job.before is not None and excuses.forgot_end(job.ends.get(job.before.fence or 0)):
        return
    if ended is not None and job.is_open and job.is_ours:
        yield CHANGED, f"was {_told(ended)}, and is open again"
    if job.before is not None and job.final is not None and job.before != job.final:
        # A person may give a dead letter up.
        is_given_up = job.before.state in ("failed", "dead") and job.final.state == "canceled"
        if not (is_given_up and What.CANCEL in job.said):
            yield CHANGED, f"was {_told(job.before)}, and is {_told(job.final)}"


def _stored(job: _Job) -> float:
    """When its enqueue had surely been committed."""
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
        # Who has no word of its own for being stopped: a process is killed, and a thread goes on.
        is_stopped = job.kind in ELSEWHERE and not is_over and excuses.stopped(first, second.at)
        is_forgotten = excuses.forgot_claim_of(first) or excuses.forgot_end(end)
        if not is_stopped and not is_forgotten and not excuses.lost_lease(first, second.at, done):
            ended = "" if end is None else f", after it had ended: {how}" if is_over else ", while it ran"
            yield DUPLICATE, f"fence {first.fence} was followed by fence {second.fence} for no reason{ended}"


def _is_tried_again(job: _Job, start: Note, excuses: Excuses) -> bool:
    """Whether the end of this attempt asks for another one."""
    end = job.ends[start.fence]
    how = job.how(start.fence)
    if not job.is_ours:
        return how != DONE
    if how == _STOPPED:
        is_asked = any(note.what is What.CANCEL and note.at <= end.at for note in job.notes)
        return is_asked or excuses.stopped(start, end.at)
    return how not in _STATE_AFTER


def _is_no_attempt(job: _Job, start: Note, until: float, excuses: Excuses) -> bool:
    """What is snoozed, and what a shutdown or an outage has stopped. Other than by its own process it is not noted."""
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
        # What was claimed ahead of a failover, and forgotten by it, may start after its successor.
        is_late = excuses.forgot_claim_of(second) and not excuses.forgot(first.at)
        if second.fence <= first.fence and not is_late:
            yield STALE_WRITE, f"fence {second.fence} started after fence {first.fence}"
        elif (
            second.more["attempt"] <= first.more["attempt"]
            and not _is_no_attempt(job, first, second.at, excuses)
            and not excuses.forgot_claim_of(first)
            # Its worker gives back what it does not know any more, as if that had not begun.
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
    # An end that is committed by the handler itself has a row to prove it; a kill may come before the note of it.
    if final.state == "succeeded" and final.kind != EFFECT and job.how(final.fence) != DONE:
        yield LOST, f"succeeded by fence {final.fence}, which did not end well"


def _ends(job: _Job, excuses: Excuses) -> _Found:
    """Whether what the store says in the end follows from what its attempts said, and from what it was asked for."""
    for start in job.starts:
        if "of" in start.more and start.more["attempt"] - start.more["losses"] > start.more["of"]:
            yield WRONG_END, f"fence {start.fence} started, and all {start.more['of']} attempts had failed"
    in_vain = [] if job.final is None else list(_in_vain(job.final, job))
    yield from in_vain
    # What cannot be used fails after its handler has ended well.
    if in_vain or (job.final is None and not job.is_open) or not job.starts or What.UNUSABLE in job.said:
        return
    last = job.starts[-1]
    state = "open" if job.final is None else job.final.state
    should = _STATE_AFTER.get(job.how(last.fence) or "", state)
    if state == "open" and excuses.forgot_end(job.ends.get(last.fence)):
        return
    # By its worker, whatever it noted afterwards; or as a dead letter, by a person.
    is_given_up = (job.kind in ELSEWHERE and state != "failed") or (should, state) == ("failed", "canceled")
    if state != should and not is_given_up:
        until = job.ends[last.fence].at + excuses.lease
        # Nobody whose lease was lost makes a job fail.
        if state in ("succeeded", "failed") or not excuses.lost_lease(last, until):
            yield WRONG_END, f"fence {last.fence} ended: {job.how(last.fence)}, and the job is {state}"


def _in_vain(final: Final, job: _Job) -> _Found:
    fence = final.fence if final.fence is not None or not job.starts else job.starts[-1].fence
    how = job.how(fence)
    match final.state:
        case "canceled" if What.CANCEL not in job.said and how != "Cancel":
            yield WRONG_END, "was canceled, and nobody asked for it"
        case "failed" if how != "Permanent" and What.UNUSABLE not in job.said:
            yield WRONG_END, f"failed by fence {fence}, which ended: {how}"
        case "dead" if not _is_exhausted(final, job):
            if final.losses and final.kind not in GUILTY:
                yield INNOCENT_DEATH, f"ended dead after {final.losses} lost leases, and has killed nobody"
            elif final.losses < SUSPECT + GUILTY.get(final.kind, 0):
                yield WRONG_END, f"ended dead at attempt {final.attempt}, and more of them were to be tried"


def _is_exhausted(final: Final, job: _Job) -> bool:
    """Whether as many attempts failed as may. Those that lost their lease do not count."""
    last = job.starts[-1] if job.starts else None
    if last is None or "of" not in last.more or final.attempt - final.losses < last.more["of"]:
        return False
    failed = sum(job.how(start.fence) not in (None, DONE, _SNOOZED) for start in job.starts)
    # Elsewhere an attempt is given up without a note of its end.
    return bool(job.kind in ELSEWHERE or failed >= last.more["of"])


def _effects(job: _Job, excuses: Excuses) -> _Found:
    final = job.final
    ended = final.fence if final is not None and final.state == "succeeded" else None
    if job.kind == EFFECT:
        wanted = [] if ended is None else [ended]
        if job.rows != wanted:
            yield DISAGREE, f"the effects have fences {job.rows}, the job's end {wanted}"
        for fence in job.ends:
            # Noted after the commit, so that neither a kill nor an outage takes it back.
            if job.how(fence) == DONE and fence != ended and not excuses.forgot(job.ends[fence].at):
                yield DISAGREE, f"fence {fence} has committed its end, and the job's end is {wanted}"
        return
    noted = [note for note in job.notes if note.what is What.EFFECT]
    if job.kind in EFFECTIVE and job.how(ended) == DONE and ended not in {note.fence for note in noted}:
        yield DISAGREE, f"succeeded by fence {ended}, which has had no effect"
    yield from _late_effects(job, noted, excuses)


def _late_effects(job: _Job, noted: Sequence[Note], excuses: Excuses) -> _Found:
    """A handler is stopped before its lease ends, unless it cannot be or everything stands still."""
    starts = {note.fence: note for note in job.starts}
    for effect in noted:
        start = starts.get(effect.fence)
        if start is None:
            if job.is_ours:
                yield DISAGREE, f"there is an effect of fence {effect.fence}, which has not started"
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
        lines.append(f"in the end: {_told(job.final)}")
    return tuple(lines)


def count(violations: Iterable[Violation]) -> Counter[str]:
    return Counter(each.kind for each in violations)
