"""What must hold after any faults, judged from the recorder's notes and what the store says in the end.

A pure function, so that it can itself be tested: by notes that break one rule each, and by sabotaged builds.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from uuid import UUID

from holdfast.faults.app import EFFECT, GUILTY
from holdfast.faults.record import DONE, EVERYBODY, Note, What

LOST = "lost"
UNEXPECTED = "unexpected"
DUPLICATE = "unexplained duplicate"
INNOCENT_DEATH = "innocent death"
STALE_WRITE = "stale write accepted"
CHANGED = "final state changed"
DISAGREE = "job and effect disagree"
STUCK = "stuck"
UNCOUNTED = "attempt not counted"
WRONG_DELAY = "wrong delay"
TARGET = "target missed"


@dataclass(frozen=True, slots=True)
class Final:
    """A job that is final, as the store has it."""

    id: UUID
    kind: str
    state: str
    fence: int | None
    attempt: int
    losses: int
    result_fence: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """`seen`: what was final at some moment before the end, the first time that it was seen."""

    notes: Sequence[Note]
    final: Mapping[UUID, Final]
    open: frozenset[UUID]
    effects: Sequence[tuple[UUID, int]] = ()
    seen: Mapping[UUID, Final] = field(default_factory=dict)
    lease: float = 30.0


@dataclass(frozen=True, slots=True)
class Violation:
    """`history`: all that was noted of the job, and of the faults meanwhile."""

    kind: str
    text: str
    job: UUID | None = None
    history: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def judge(evidence: Evidence) -> list[Violation]:
    """Every violation, those of one job together."""
    of_job: dict[UUID, list[Note]] = defaultdict(list)
    for note in evidence.notes:
        if note.job is not None:
            of_job[note.job].append(note)
    times = _Times(evidence.notes, evidence.lease)
    found: list[Violation] = []
    for job in {*of_job, *evidence.final, *evidence.open}:
        notes = of_job.get(job, [])
        for kind, text in _of_job(job, notes, evidence, times):
            found.append(Violation(kind, f"job {job}: {text}", job, _history(notes, evidence, times)))
    return sorted(found, key=lambda each: (each.kind, str(each.job)))


def _of_job(job: UUID, notes: Sequence[Note], evidence: Evidence, times: "_Times") -> Iterator[tuple[str, str]]:
    said = {note.what for note in notes}
    starts = sorted((note for note in notes if note.what is What.START), key=lambda note: note.at)
    ends = {note.fence: note for note in notes if note.what is What.END}
    final = evidence.final.get(job)
    if What.ENQUEUING not in said:
        yield UNEXPECTED, "ran or is there, and nobody enqueued it"
    if What.REFUSED in said and (final is not None or starts):
        yield UNEXPECTED, "was refused, and is there all the same"
    if What.ACCEPTED in said and final is None and job not in evidence.open:
        yield LOST, "was accepted, and is neither final nor claimable"
    yield from _duplicates(starts, ends, times)
    yield from _attempts(starts, ends)
    if final is not None:
        yield from _of_final(final, starts, ends)
        before = evidence.seen.get(job)
        if before is not None and (before.state, before.fence) != (final.state, final.fence):
            yield CHANGED, f"was {before.state} by fence {before.fence}, and is {final.state} by fence {final.fence}"
    yield from _effects(job, final, evidence, notes)


def _duplicates(starts: Sequence[Note], ends: Mapping[int, Note], times: "_Times") -> Iterator[tuple[str, str]]:
    for first, second in pairwise(starts):
        end = ends.get(first.fence)
        if end is not None and end.more.get("how") != DONE and end.at <= second.at:
            continue
        if not times.explains(first, second.at):
            ended = "" if end is None else ", after it had ended well" if end.at <= second.at else ", while it ran"
            yield DUPLICATE, f"fence {first.fence} was followed by fence {second.fence} for no reason{ended}"


def _attempts(starts: Sequence[Note], ends: Mapping[int, Note]) -> Iterator[tuple[str, str]]:
    for first, second in pairwise(starts):
        end = ends.get(first.fence)
        # What is given back at a shutdown, or snoozed, is no attempt.
        is_given_back = end is not None and end.more.get("how") in ("CancelledError", "Snooze")
        if second.fence <= first.fence:
            yield STALE_WRITE, f"fence {second.fence} started after fence {first.fence}"
        elif second.more["attempt"] <= first.more["attempt"] and not is_given_back:
            yield UNCOUNTED, f"fences {first.fence} and {second.fence} were both attempt {second.more['attempt']}"


def _of_final(final: Final, starts: Sequence[Note], ends: Mapping[int, Note]) -> Iterator[tuple[str, str]]:
    newest = max((note.fence for note in starts), default=None)
    if final.state == "succeeded":
        end = ends.get(final.fence or 0)
        # An end that is committed by the handler itself has a row to prove it; a kill may come before the note of it.
        if final.kind != EFFECT and (end is None or end.more.get("how") != DONE):
            yield LOST, f"succeeded by fence {final.fence}, which did not end well"
        if final.result_fence is not None and final.result_fence != final.fence:
            yield STALE_WRITE, f"has the result of fence {final.result_fence}, and was finished by {final.fence}"
    if newest is not None and final.fence is not None and newest > final.fence:
        yield STALE_WRITE, f"was finished by fence {final.fence} after fence {newest} had started"
    if final.state == "dead" and final.kind not in GUILTY and final.losses:
        yield INNOCENT_DEATH, f"ended dead after {final.losses} lost leases, and has killed nobody"


def _effects(job: UUID, final: Final | None, evidence: Evidence, notes: Sequence[Note]) -> Iterator[tuple[str, str]]:
    kind = final.kind if final is not None else next((note.more["kind"] for note in notes if "kind" in note.more), "")
    if kind != EFFECT:
        return
    fences = [fence for id, fence in evidence.effects if id == job]
    wanted = [final.fence] if final is not None and final.state == "succeeded" else []
    if fences != wanted:
        yield DISAGREE, f"the effects have fences {fences}, the job's end {wanted}"


class _Times:
    """When which process was killed, and when it could not renew."""

    def __init__(self, notes: Iterable[Note], lease: float) -> None:
        self._lease = lease
        self._kills: dict[int, list[float]] = defaultdict(list)
        self._cut_off: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self.faults: list[Note] = []
        begun: dict[int, float] = {}
        for note in notes:
            match note.what:
                case What.KILL:
                    self._kills[note.pid].append(note.at)
                case What.CUT_OFF:
                    begun.setdefault(note.pid, note.at)
                case What.BACK if note.pid in begun:
                    self._cut_off[note.pid].append((begun.pop(note.pid), note.at))
                case What.TERMINATE:
                    pass
                case _:
                    continue
            self.faults.append(note)
        for pid, since in begun.items():
            self._cut_off[pid].append((since, float("inf")))

    def explains(self, start: Note, until: float) -> bool:
        """Why an attempt that did not end may be followed by another one."""
        if any(start.at <= at <= until for at in self._kills[start.pid]):
            return True
        # The last renewal was at most a third of a lease before, so a shorter cut costs no lease.
        least = self._lease * 0.6
        return until - start.at >= self._lease * 0.95 and any(
            since <= until and end >= start.at and end - since >= least
            for pid in (start.pid, EVERYBODY)
            for since, end in self._cut_off[pid]
        )

    def between(self, since: float, until: float) -> Iterator[Note]:
        return (note for note in self.faults if since - self._lease <= note.at <= until + self._lease)


def _history(notes: Sequence[Note], evidence: Evidence, times: _Times) -> tuple[str, ...]:
    if not notes:
        return ()
    faults = times.between(notes[0].at, notes[-1].at)
    together = sorted({id(note): note for note in (*notes, *faults)}.values(), key=lambda note: note.at)
    lines = [str(note) for note in together]
    final = evidence.final.get(notes[0].job) if notes[0].job is not None else None
    if final is not None:
        lines.append(
            f"in the end: {final.state} by fence {final.fence}, attempt {final.attempt}, losses {final.losses}"
        )
    return tuple(lines)


def count(violations: Iterable[Violation]) -> Counter[str]:
    return Counter(each.kind for each in violations)
