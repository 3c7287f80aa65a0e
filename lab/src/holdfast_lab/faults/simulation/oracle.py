"""Judges a schedule from its own record of what was asked of the store, what it answered, and what handlers did.

It keeps its own account of every job and never looks into the store before the end. A store or an engine that breaks a
promise is caught by the first answer that does not fit. The first violation ends a schedule.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.domain.job import Job, JobState, Lease, LeasedJob, NewJob
from holdfast.domain.json_text import decode
from holdfast.domain.lifecycle import (
    CANCEL_REQUESTED,
    DEFAULT_ATTEMPTS,
    KEPT_ERRORS,
    LEASE_LOST,
    SUSPECT,
    Move,
    Transition,
)
from holdfast.store.contract import Canceling, Fenced, Finish, Renewal, Renewed, Rescued, Retrying
from holdfast_lab.faults.simulation.witness import Claimed, Ending, Witness, is_explained, seconds_of

_NO_TIME = 1e-6
"""Tolerance for rounding: the store counts in microseconds, but the clock here does not."""
_RESCUE_EVERY = 1 / 3
"""Share of a lease between two rescues, if that is longer than _RESCUE_SECONDS."""
_RESCUE_SECONDS = 0.2
_LONGEST_REST_SECONDS = 0.7
"""How long a process rests after failed requests; after a slow rescue it may be a lease."""
_TURN_SECONDS = 0.05
"""Longer than all requests of one undisturbed turn take."""

_ENDED_BY: dict[Move, frozenset[Ending | None]] = {
    Move.SUCCEED: frozenset({Ending.RETURNED}),
    Move.FAIL: frozenset({Ending.PERMANENT}),
    Move.SNOOZE: frozenset({Ending.SNOOZED}),
    # Errors raised while a handler is being stopped do not count. A handler without an end ignores its interruption.
    Move.RETRY: frozenset(set(Ending) - {Ending.RETURNED} | {None}),
    Move.EXHAUST: frozenset(set(Ending) - {Ending.RETURNED} | {None}),
    Move.CANCEL: frozenset(set(Ending) - {Ending.RETURNED} | {None}),
    Move.INTERRUPT: frozenset(set(Ending) - {Ending.RETURNED} | {None}),
    Move.RELEASE: frozenset({None}),
}
_AFTER = {
    Move.SUCCEED: JobState.SUCCEEDED,
    Move.FAIL: JobState.FAILED,
    Move.EXHAUST: JobState.DEAD,
    Move.CANCEL: JobState.CANCELED,
    Move.RETRY: JobState.READY,
    Move.SNOOZE: JobState.READY,
    Move.INTERRUPT: JobState.READY,
    Move.RELEASE: JobState.READY,
}
_CANCEL_ANSWERED = {
    JobState.READY: Canceling.CANCELED,
    JobState.RUNNING: Canceling.REQUESTED,
    JobState.SUCCEEDED: Canceling.FINAL,
    JobState.CANCELED: Canceling.FINAL,
    # An operator gives up the dead letter.
    JobState.FAILED: Canceling.CANCELED,
    JobState.DEAD: Canceling.CANCELED,
}


@dataclass(frozen=True, slots=True)
class Violation:
    what: str
    job: str
    told: str

    def __str__(self) -> str:
        return f"{self.what}: {self.job or 'no job'}, {self.told}"


@dataclass(slots=True)
class Account:
    """Everything known about one job."""

    label: str
    id: UUID
    max_attempts: int
    is_killer: bool = False
    state: JobState = JobState.READY
    attempt: int = 0
    losses: int = 0
    suspicion: int = 0
    counted: set[Lease] = field(default_factory=set)
    """Lost leases that may be absolved."""
    held: Claimed | None = None
    final_claim: UUID | None = None
    """The claim that finished it."""
    cancel_requested: bool = False
    result: object = None
    errors: list[tuple[str, str, int]] = field(default_factory=list)
    """Code, message and attempt of each written error."""
    claims: dict[UUID, Claimed] = field(default_factory=dict)

    @property
    def is_suspect(self) -> bool:
        return self.suspicion >= SUSPECT


def _is_timeout(transition: Transition) -> bool:
    return transition.error is not None and transition.error.code == "TIMEOUT"


def _error(stored: Mapping[str, Any]) -> tuple[str, str, int]:
    return stored["code"], stored["message"], stored["attempt"]


class Oracle:
    def __init__(self, clock: Callable[[], float], lease: float) -> None:
        self.violations: list[Violation] = []
        self.trace: list[tuple[float, str, str, str]] = []
        """Time, process, job, what happened."""
        self.jobs: dict[UUID, Account] = {}
        self.witnesses: list[Witness] = []
        self.unfinished = 0
        self._clock = clock
        self._lease = lease
        self._rescued_within = 2 * max(lease * _RESCUE_EVERY, _RESCUE_SECONDS)
        self._longest_rest = max(lease, _LONGEST_REST_SECONDS) + _TURN_SECONDS
        self._occurrences: dict[str, list[datetime]] = {}
        self._keys: dict[str, Account] = {}

    def note(self, by: str, job: str, what: str) -> None:
        self.trace.append((self._clock(), by, job, what))

    def blame(self, what: str, job: str, told: str) -> None:
        self.violations.append(Violation(what, job, told))
        self.note("", job, f"VIOLATION {what}: {told}")

    def witness(self, name: str) -> Witness:
        """Return a witness for a process that starts now."""
        witness = Witness(name, self._clock(), self._lease)
        self.witnesses.append(witness)
        return witness

    def enqueued(self, new: NewJob, *, is_killer: bool = False, losses: int = 0, by: str = "producer") -> None:
        """Note that the store accepted a job, whether or not its producer knows."""
        account = Account(f"j{len(self.jobs)}", new.id, new.max_attempts or DEFAULT_ATTEMPTS, is_killer)
        account.attempt = account.losses = account.suspicion = losses
        if new.id in self.jobs or (new.key is not None and new.key in self._keys):
            self.blame("unexpected", account.label, "the same work was taken twice")
        if new.key is not None:
            self._keys[new.key] = account
        self.jobs[new.id] = account
        self.unfinished += 1
        self.note(by, account.label, f"enqueued as {new.kind}, priority {new.priority}")

    def occurrences_taken(self, schedule: str, occurrences: Sequence[datetime], by: str) -> None:
        known = self._occurrences.setdefault(schedule, [])
        for occurrence in occurrences:
            self.note(by, "", f"occurrence {occurrence.timestamp():.3f} of {schedule} taken")
            if occurrence in known:
                self.blame(
                    "unexplained duplicate", "", f"occurrence {occurrence.isoformat()} of {schedule} made two jobs"
                )
            known.append(occurrence)

    def check_occurrences(self, schedule: str, expected: Sequence[datetime]) -> None:
        """`expected`: all occurrences from the first to the last one that the schedule has passed."""
        missing = set(expected) - set(self._occurrences.get(schedule, ()))
        if missing:
            self.blame("lost", "", f"occurrence {min(missing).isoformat()} of {schedule} made no job")

    def claimed(
        self, jobs: Sequence[LeasedJob], by: Witness, lease_of: Callable[[str], float], *, suspects: bool
    ) -> None:
        now = self._clock()
        if suspects and jobs:
            self._check_one_worker_has_suspects(by)
        for job in jobs:
            account = self.jobs.get(job.lease.id)
            if account is None:
                self.blame("unexpected", "", f"{by.name} claimed {job.lease.id}, which was never enqueued")
                continue
            self.note(by.name, account.label, f"claimed, fence {job.lease.fence}, attempt {job.attempt}")
            if account.state is not JobState.READY:
                what = "final state changed" if account.state.is_final else "two at once"
                self.blame(what, account.label, f"claimed by {by.name} while {account.state}")
            account.attempt += 1
            if (job.attempt, job.losses) != (account.attempt, account.losses):
                self.blame(
                    "attempt not counted",
                    account.label,
                    f"claimed as attempt {job.attempt} with {job.losses} losses, "
                    f"but it is attempt {account.attempt} with {account.losses}",
                )
            if job.lease.claim in account.claims:
                self.blame("stale write accepted", account.label, f"claim {job.lease.claim} was issued twice")
            if any(job.lease.fence <= each.lease.fence for each in account.claims.values()):
                self.blame("stale write accepted", account.label, f"fence {job.lease.fence} is not higher than before")
            if account.is_suspect is not suspects:
                self.blame("unexpected", account.label, f"claimed by {by.name} with suspicion {account.suspicion}")
            account.held = Claimed(job.lease, by, now, now + lease_of(job.kind), is_suspect=suspects)
            account.claims[job.lease.claim] = account.held
            account.state = JobState.RUNNING

    def _check_one_worker_has_suspects(self, by: Witness) -> None:
        for account in self.jobs.values():
            held = account.held
            if held is not None and held.is_suspect and account.is_suspect and held.until > self._clock():
                told = f"{by.name} was given suspects while {held.by.name} holds this one"
                self.blame("two at once", account.label, told)

    def ran_alone(self, lease: Lease, crash_limit: int, answer: Fenced, by: Witness) -> None:
        account = self.jobs[lease.id]
        self.note(by.name, account.label, f"runs alone with fence {lease.fence}: {answer}")
        is_wrong = self._is_wrong(account, lease, answer, f"a note of {by.name}")
        if answer is Fenced.DONE and account.held is not None and not is_wrong:
            account.held.crash_limit = crash_limit

    def absolved(self, leases: Sequence[Lease], by: Witness) -> None:
        for lease in leases:
            account = self.jobs[lease.id]
            self.note(by.name, account.label, f"lost fence {lease.fence} and lives")
            if lease in account.counted:
                account.counted.remove(lease)
                if not account.state.is_final:
                    account.suspicion = max(0, account.suspicion - 1)

    def heard(self, jobs: Sequence[LeasedJob]) -> None:
        """Note that a process has read the answer to its claim."""
        for job in jobs:
            self.jobs[job.lease.id].claims[job.lease.claim].heard_at = self._clock()

    def started(self, lease: Lease, by: Witness, *, is_stubborn: bool) -> None:
        account = self.jobs.get(lease.id)
        claim = account.claims.get(lease.claim) if account else None
        if account is None or claim is None or claim.by is not by:
            self.blame("unexpected", account.label if account else "", f"{by.name} started an unclaimed job")
            return
        self.note(by.name, account.label, f"started, fence {lease.fence}")
        if claim.has_started:
            self.blame("unexplained duplicate", account.label, f"fence {lease.fence} started twice")
        if self._clock() > claim.until + _NO_TIME:
            told = f"fence {lease.fence} started {self._clock() - claim.until:.3f} s after the end of its lease"
            self.blame("unexpected", account.label, told)
        if claim.is_given_back:
            self.blame("unexpected", account.label, f"fence {lease.fence} started after it was released")
        claim.has_started = claim.is_active = True
        claim.is_stubborn = is_stubborn
        self._check_alone(account, claim)
        active = [each for each in account.claims.values() if each.is_active and each.by.died_at == math.inf]
        if len(active) > 1:
            self._check_overlap(account, active)

    def _check_alone(self, account: Account, claim: Claimed) -> None:
        """No other job may die with a suspect. Unstoppable handlers are excluded: they have lost their leases."""
        if claim.is_suspect and not claim.crash_limit:
            self.blame("unexpected", account.label, f"{claim.by.name} started a suspect without noting that")
        for other in self.jobs.values():
            held = other.held
            if held is None or held is claim or held.by is not claim.by or not held.is_active:
                continue
            if claim.is_suspect or held.is_suspect:
                told = f"started in {claim.by.name} next to {other.label}, although one of them is a suspect"
                self.blame("two at once", account.label, told)

    def _check_overlap(self, account: Account, active: Sequence[Claimed]) -> None:
        """A handler whose lease has ended must not keep running next to the new one, unless nothing could stop it."""
        now = self._clock()
        newest = max(active, key=lambda each: each.lease.fence)
        for each in active:
            if each is newest or each.is_stubborn or each.by.could_not_turn(each.since, now):
                continue
            self.blame(
                "two at once",
                account.label,
                f"fence {each.lease.fence} runs in {each.by.name}, and {newest.lease.fence} in {newest.by.name}",
            )

    def ended(self, lease: Lease, by: Witness, how: Ending, result: object = None) -> None:
        account = self.jobs[lease.id]
        claim = account.claims[lease.claim]
        claim.is_active, claim.ending, claim.result = False, how, result
        self.note(by.name, account.label, f"{how}, fence {lease.fence}")

    def finished(self, finish: Finish, answer: Fenced, by: Witness) -> None:
        lease, event = finish.lease, finish.transition.move
        account = self.jobs[lease.id]
        self.note(by.name, account.label, f"{event} with fence {lease.fence}: {answer}")
        held = account.held
        if self._is_wrong(account, lease, answer, f"{event} of {by.name}") or answer is not Fenced.DONE or held is None:
            return
        # A value that a handler returns after its timeout is dropped.
        is_late = (
            held.ending is Ending.RETURNED and event in (Move.RETRY, Move.EXHAUST) and _is_timeout(finish.transition)
        )
        if (held.ending not in _ENDED_BY[event] and not is_late) or (event is Move.RELEASE and held.has_started):
            ending = held.ending or ("still runs" if held.has_started else "never started")
            self.blame("unexpected", account.label, f"{event} was written, but its handler {ending}")
        failures = account.attempt - account.losses
        if event in (Move.RETRY, Move.EXHAUST) and (failures >= account.max_attempts) is (event is Move.RETRY):
            told = f"{event} after {failures} of {account.max_attempts} attempts"
            self.blame("attempt not counted", account.label, told)
        self._take_outcome(account, held, finish.transition)
        if event is Move.INTERRUPT and not self._was_troubled(held):
            self.blame("attempt not counted", account.label, f"{event} was written, although {by.name} had no trouble")
        held.is_given_back = event is Move.RELEASE
        if event in (Move.SNOOZE, Move.RELEASE, Move.INTERRUPT):
            account.attempt -= not account.cancel_requested
        self._move(account, _AFTER[event], lease.claim)

    def _was_troubled(self, held: Claimed) -> bool:
        """Whether its worker has had trouble since the claim, or must stop."""
        now = self._clock()
        return held.by.stops_at <= now or seconds_of(held.by.troubles(), held.claimed_at, now) > 0

    def _take_outcome(self, account: Account, held: Claimed, transition: Transition) -> None:
        result = None if transition.result is None else decode(transition.result)
        if transition.move is Move.SUCCEED and result != held.result:
            self.blame("unexpected", account.label, f"{result} was written, but its handler returned {held.result}")
        account.result = result
        error = transition.error
        if error is None and account.cancel_requested and _AFTER[transition.move] is JobState.READY:
            error = CANCEL_REQUESTED
        if error is not None:
            account.errors.append((error.code, error.message, account.attempt))

    def _is_wrong(self, account: Account, lease: Lease, answer: Fenced, what: str) -> bool:
        """Whether the store gave the wrong answer to a write under this lease."""
        is_held = account.held is not None and account.held.lease == lease
        if is_held and answer is not Fenced.DONE:
            self.blame("unexpected", account.label, f"{what} was answered {answer}, but fence {lease.fence} is held")
        elif not is_held and answer is Fenced.DONE:
            held = account.held.lease.fence if account.held else None
            told = f"{what} with fence {lease.fence} took effect, but the job is {account.state} with fence {held}"
            self.blame("stale write accepted", account.label, told)
        elif answer is Fenced.ALREADY and account.final_claim != lease.claim:
            self.blame(
                "unexpected", account.label, f"{what} was answered {answer}, but claim {account.final_claim} did"
            )
        else:
            return False
        return True

    def _move(self, account: Account, state: JobState, claim: UUID | None) -> None:
        """End the attempt and its lease."""
        self._check_rescue(account)
        if state is JobState.READY and account.cancel_requested:
            state = JobState.CANCELED
        account.held, account.cancel_requested = None, False
        account.state = state
        if state.is_final:
            account.final_claim = claim
            self.unfinished -= 1

    def _check_rescue(self, account: Account) -> None:
        """Whether a lease that ends or is renewed only now should have been rescued earlier.

        Not if all processes were down, stopping, paused, blocked or cut off, or still resting after such trouble.
        """
        held, now = account.held, self._clock()
        if held is None or now <= held.until + self._rescued_within:
            return
        for witness in self.witnesses:
            if witness.was_undisturbed(self._longest_rest, held.until + self._rescued_within, now):
                told = f"its lease ended {now - held.until:.3f} s ago, and {witness.name} was free to rescue it"
                self.blame("stuck", account.label, told)
                return

    def renewed(self, renewals: Sequence[Renewal], answers: Sequence[Renewed], by: Witness) -> None:
        now = self._clock()
        for renewal, answer in zip(renewals, answers, strict=True):
            account = self.jobs[renewal.lease.id]
            self.note(by.name, account.label, f"renewed, fence {renewal.lease.fence}: {answer.fenced}")
            is_wrong = self._is_wrong(account, renewal.lease, answer.fenced, f"renewal of {by.name}")
            if answer.fenced is Fenced.DONE and account.held is not None and not is_wrong:
                self._check_rescue(account)
                account.held.since, account.held.until = now, now + renewal.extend.total_seconds()

    def rescued(self, jobs: Sequence[Rescued], by: Witness) -> None:
        now = self._clock()
        for job in jobs:
            account = self.jobs[job.id]
            claim = account.held
            self.note(by.name, account.label, f"rescued: {job.state}")
            if claim is None:
                self.blame("final state changed", account.label, f"rescued while {account.state}")
                return
            if claim.until > now + _NO_TIME:
                told = f"rescued {claim.until - now:.6f} s before the lease of {claim.by.name} ends"
                self.blame("two at once", account.label, told)
            if not is_explained(claim):
                told = f"{claim.by.name} lost the lease with fence {claim.lease.fence} without enough trouble for that"
                self.blame("unexplained duplicate", account.label, told)
            account.losses += 1
            account.errors.append((LEASE_LOST.code, LEASE_LOST.message, account.attempt))
            is_buried = self._suspect(account, claim) and not account.cancel_requested
            if is_buried and not account.is_killer:
                self.blame("innocent death", account.label, f"its lease was lost {account.losses} times")
            self._move(account, JobState.DEAD if is_buried else JobState.READY, None)
            if account.state is not job.state:
                self.blame("unexpected", account.label, f"rescued as {job.state}, not as {account.state}")

    def _suspect(self, account: Account, lost: Claimed) -> bool:
        """Count the loss, and return whether it was one crash too many."""
        before = account.suspicion
        if lost.crash_limit or before < SUSPECT:
            account.suspicion += 1
        if account.suspicion > before:
            account.counted.add(lost.lease)
        return lost.crash_limit > 0 and account.suspicion - SUSPECT >= lost.crash_limit

    def canceled(self, id: UUID, answer: Canceling) -> None:
        account = self.jobs[id]
        self.note("person", account.label, f"cancel: {answer}")
        if answer is not _CANCEL_ANSWERED[account.state]:
            what = "final state changed" if account.state.is_final else "unexpected"
            self.blame(what, account.label, f"a cancel was answered {answer} while it was {account.state}")
        if answer is Canceling.REQUESTED:
            account.cancel_requested = True
        elif answer is Canceling.CANCELED:
            self.unfinished -= not account.state.is_final
            account.state, account.final_claim = JobState.CANCELED, None

    def revived(self, id: UUID, answer: Retrying) -> None:
        account = self.jobs[id]
        self.note("person", account.label, f"retry: {answer}")
        if answer is not (Retrying.READY if account.state.is_final else Retrying.LIVE):
            self.blame("unexpected", account.label, f"a retry was answered {answer} while it was {account.state}")
        if answer is Retrying.READY:
            self.unfinished += 1
            account.state, account.final_claim = JobState.READY, None
            account.attempt = account.losses = account.suspicion = 0
            account.counted.clear()
            account.result = None

    def holds(self, lease: Lease) -> bool:
        held = self.jobs[lease.id].held
        return held is not None and held.lease == lease and held.until > self._clock()

    def check_end(self, found: dict[UUID, Job], *, is_over: bool) -> None:
        """Compare the store's final state with the record. `is_over`: everything ended within the allowed time."""
        now = self._clock()
        for id, account in self.jobs.items():
            job = found.pop(id, None)
            if job is None:
                self.blame("lost", account.label, f"it was {account.state}, but is not in the store")
            elif job.state is not account.state:
                what = "final state changed" if account.state.is_final else "unexpected"
                self.blame(what, account.label, f"the store says {job.state}, but {account.state} was written last")
            elif (job.attempt, job.losses) != (account.attempt, account.losses):
                told = f"{job.attempt} attempts and {job.losses} losses, not {account.attempt} and {account.losses}"
                self.blame("attempt not counted", account.label, f"the store says {told}")
            elif not account.state.is_final and job.suspicion != account.suspicion:
                told = f"the store says a suspicion of {job.suspicion}, but it was {account.suspicion}"
                self.blame("unexpected", account.label, told)
            elif job.result != account.result:
                told = f"the store has the result {job.result}, but {account.result} was written last"
                self.blame("final state changed", account.label, told)
            elif (errors := [_error(each) for each in job.errors]) != account.errors[-KEPT_ERRORS:]:
                told = f"the store has the errors {errors}, but {account.errors[-KEPT_ERRORS:]} were written"
                self.blame("unexpected", account.label, told)
            elif not is_over and not account.state.is_final:
                held = account.held
                lease = f", its lease ended {now - held.until:.1f} s ago" if held else ""
                self.blame("stuck", account.label, f"still {account.state} long after the last fault{lease}")
        if found:
            self.blame("unexpected", "", f"{len(found)} jobs in the store were never enqueued")

    def history(self, job: str) -> list[str]:
        return [line for line, named in zip(self.lines(), self.trace, strict=True) if named[2] in (job, "")]

    def lines(self) -> list[str]:
        return [f"{at - 1000:10.5f}  {by:<9} {job:<5} {what}" for at, by, job, what in self.trace]
