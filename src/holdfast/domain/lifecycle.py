"""The complete state machine of a job, as pure functions and one table.

Rules return durations, never times; the store turns them into times with its own clock. docs/lifecycle.md shows the
same table, and a test keeps the two equal.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from typing import assert_never

from holdfast.domain.job import JobError, JobState
from holdfast.domain.json_text import Json
from holdfast.domain.outcome import Canceled, Failed, Interrupted, Outcome, Retried, Snoozed, Succeeded, Unstarted
from holdfast.domain.retry import Backoff

DEFAULT_ATTEMPTS = 4
SUSPECT = 2
"""The suspicion at which a job starts to run alone. Losses alongside other jobs do not raise it further."""
DEFAULT_CRASHES = 5
"""See docs/decisions/0013-suspects.md for the calculation."""
MOST_LOSSES = 30_000
"""The highest count of lost leases. Together with the most attempts that may fail, it still fits in two bytes."""
MOST_LOSSES_IN_COMPANY = SUSPECT + DEFAULT_CRASHES
"""For stores that cannot keep a suspicion and therefore have no suspects: at this many losses, the job ends dead."""
LONGEST_REST = timedelta(minutes=1)
KEPT_ERRORS = 20
_SHOWN_CODE = 50

LEASE_LOST = JobError(
    code="LEASE_LOST", type="LeaseLost", message="the worker that held the lease crashed, was cut off or was paused"
)
CANCEL_REQUESTED = JobError(code="CANCELED", type="Cancel", message="canceled by request")


class Move(StrEnum):
    """A transition from one state to another; `RULES` lists them all."""

    ENQUEUE = "enqueue"
    REPLACE = "replace"
    CLAIM = "claim"
    SUCCEED = "succeed"
    RETRY = "retry"
    EXHAUST = "exhaust"
    FAIL = "fail"
    SNOOZE = "snooze"
    CANCEL = "cancel"
    RELEASE = "release"
    RESCUE = "rescue"
    BURY = "bury"
    INTERRUPT = "interrupt"
    REVIVE = "revive"


@dataclass(frozen=True, slots=True)
class Rule:
    before: JobState | None
    move: Move
    after: JobState
    attempt: str
    losses: str
    why: str


_READY, _RUNNING = JobState.READY, JobState.RUNNING

RULES: tuple[Rule, ...] = (
    Rule(None, Move.ENQUEUE, _READY, "0", "0", "a producer's transaction commits"),
    Rule(_READY, Move.REPLACE, _READY, "0", "0", "a producer enqueues newer work under the same key"),
    Rule(_READY, Move.CLAIM, _RUNNING, "+1", "same", "a worker takes the due job under a lease"),
    Rule(_READY, Move.CANCEL, JobState.CANCELED, "same", "same", "a person cancels it before it starts"),
    Rule(_RUNNING, Move.SUCCEED, JobState.SUCCEEDED, "same", "same", "the handler returns"),
    Rule(_RUNNING, Move.RETRY, _READY, "same", "same", "the attempt fails and attempts are left"),
    Rule(_RUNNING, Move.EXHAUST, JobState.DEAD, "same", "same", "the attempt fails and was the last one"),
    Rule(_RUNNING, Move.FAIL, JobState.FAILED, "same", "same", "a permanent error"),
    Rule(_RUNNING, Move.SNOOZE, _READY, "-1", "same", "the handler asks for a later time"),
    Rule(_RUNNING, Move.CANCEL, JobState.CANCELED, "same", "same", "the handler cancels it, or a person asked for it"),
    Rule(_RUNNING, Move.RELEASE, _READY, "-1", "same", "a worker gives back a job it did not or could not start"),
    Rule(_RUNNING, Move.INTERRUPT, _READY, "-1", "same", "its worker shut down or lost the store before it was done"),
    Rule(_RUNNING, Move.RESCUE, _READY, "same", "+1", "the lease ran out"),
    Rule(_RUNNING, Move.BURY, JobState.DEAD, "same", "+1", "the lease ran out once too often while the job ran alone"),
    Rule(JobState.SUCCEEDED, Move.REVIVE, _READY, "0", "0", "a person retries it"),
    Rule(JobState.FAILED, Move.REVIVE, _READY, "0", "0", "a person retries it"),
    Rule(JobState.DEAD, Move.REVIVE, _READY, "0", "0", "a person retries it"),
    Rule(JobState.CANCELED, Move.REVIVE, _READY, "0", "0", "a person retries it"),
    Rule(JobState.FAILED, Move.CANCEL, JobState.CANCELED, "same", "same", "a person discards the dead letter"),
    Rule(JobState.DEAD, Move.CANCEL, JobState.CANCELED, "same", "same", "a person discards the dead letter"),
)

_TABLE = {(rule.before, rule.move): rule for rule in RULES}


@dataclass(frozen=True, slots=True)
class Transition:
    """What a store writes for a running job, provided that its lease still belongs to the given claim."""

    move: Move
    delay: timedelta = timedelta(0)
    at: datetime | None = None
    error: JobError | None = None
    result: Json | None = None

    @property
    def state(self) -> JobState:
        return _TABLE[_RUNNING, self.move].after

    @property
    def has_data(self) -> bool:
        """Whether it contains values from the handler, which a store may reject."""
        return self.result is not None or self.error is not None

    @property
    def gives_attempt_back(self) -> bool:
        return _TABLE[_RUNNING, self.move].attempt == "-1"


PLAIN_SUCCESS = Transition(Move.SUCCEED)
"""How most attempts end. A single shared value, so that code can compare by identity."""


def allows(before: JobState | None, move: Move) -> bool:
    return (before, move) in _TABLE


def after_outcome(
    outcome: Outcome, *, attempt: int, losses: int, max_attempts: int, backoff: Backoff, random: Random
) -> Transition:
    """The transition that an attempt's outcome causes for its job."""
    match outcome:
        case Succeeded(result):
            return PLAIN_SUCCESS if result is None else Transition(Move.SUCCEED, result=result)
        case Retried(error, after, at):
            # A lost lease is counted in `losses` and does not use up one of the allowed attempts.
            failures = attempt - losses
            if failures >= max_attempts:
                return Transition(Move.EXHAUST, error=error)
            if at is not None:
                return Transition(Move.RETRY, at=at, error=error)
            delay = backoff.delay(failures, random) if after is None else after
            return Transition(Move.RETRY, delay=delay, error=error)
        case Snoozed(after, until):
            return Transition(Move.SNOOZE, delay=after or timedelta(0), at=until)
        case Failed(error):
            return Transition(Move.FAIL, error=error)
        case Canceled(error):
            return Transition(Move.CANCEL, error=error)
        case Interrupted(error):
            return Transition(Move.INTERRUPT, error=error)
        case Unstarted():
            return Transition(Move.RELEASE)
        case _:
            assert_never(outcome)


def without_data(transition: Transition, why: str) -> Transition:
    """The same move without the result or error text that the store rejected. A success stays a success."""
    said = f"the store refused the result: {why}"
    if transition.error is not None:
        said = f"the store refused the text of the error with the code {transition.error.code[:_SHOWN_CODE]!a}: {why}"
    return replace(transition, result=None, error=JobError(code="OUTCOME_UNWRITABLE", type="Unstorable", message=said))


def suspicion_after_loss(suspicion: int, crash_limit: int) -> int:
    """Alongside others, any of the jobs may have killed the worker, so no number of such losses proves anything."""
    return min(suspicion + 1, MOST_LOSSES) if crash_limit else max(suspicion, min(suspicion + 1, SUSPECT))


def after_loss(suspicion: int, crash_limit: int) -> Transition:
    """The transition for a running job whose lease expired.

    `suspicion` includes this loss; `crash_limit` is zero unless the job ran alone.
    """
    crashes = suspicion - SUSPECT if crash_limit else 0
    if crash_limit and crashes >= crash_limit:
        return Transition(Move.BURY, error=LEASE_LOST)
    return Transition(Move.RESCUE, delay=rest_after_crash(crashes), error=LEASE_LOST)


def rest_after_crash(crashes: int) -> timedelta:
    """The wait before a suspect's next run. By then, the cause of the crashes may be gone, and a worker that is
    still alive has reported its loss."""
    return min(timedelta(seconds=2 ** min(crashes - 1, 6)), LONGEST_REST) if crashes > 0 else timedelta(0)


def after_cancel_request(transition: Transition) -> Transition:
    """If cancellation was requested, the job is canceled instead of becoming ready again or being buried."""
    if transition.state is not JobState.READY and transition.move is not Move.BURY:
        return transition
    return Transition(Move.CANCEL, error=transition.error or CANCEL_REQUESTED)
