"""The judge as a pure function: a correct history, and one history that breaks each rule."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from holdfast_lab.faults.app import EFFECT, EXIT, KILL, THREAD, WORK
from holdfast_lab.faults.judge import (
    CHANGED,
    DISAGREE,
    DUPLICATE,
    INNOCENT_DEATH,
    LOST,
    REISSUED,
    STALE_WRITE,
    UNCOUNTED,
    UNEXPECTED,
    WRONG_END,
    Evidence,
    Final,
    is_stuck,
    judge,
)
from holdfast_lab.faults.record import EVERYBODY, Note, What

JOB = UUID(int=1)
LEASE = 3.0
FIRST, SECOND = 100, 200
"""Process IDs."""


def enqueued(what: What = What.ACCEPTED, kind: str = WORK) -> list[Note]:
    return [Note(0.0, What.ENQUEUING, 1, JOB, more={"kind": kind}), Note(0.1, what, 1, JOB)]


def start(at: float, fence: int, pid: int = FIRST, attempt: int | None = None) -> Note:
    return Note(at, What.START, pid, JOB, fence, {"attempt": fence if attempt is None else attempt})


def end(at: float, fence: int, how: str = "done", pid: int = FIRST) -> Note:
    return Note(at, What.END, pid, JOB, fence, {"how": how})


def effect(at: float, fence: int, pid: int = FIRST) -> Note:
    return Note(at, What.EFFECT, pid, JOB, fence)


def fault(at: float, what: What, pid: int = FIRST) -> Note:
    return Note(at, what, pid)


def final(fence: int, state: str = "succeeded", kind: str = WORK, losses: int = 0, result: int | None = None) -> Final:
    return Final(JOB, kind, state, fence, fence, losses, result)


def kinds(notes: Sequence[Note], last: Final | None, noted: Sequence[Note] | None = None, **more: object) -> set[str]:
    """`noted`: the effects; by default, one effect for each attempt that ended well."""
    if noted is None:
        noted = [replace(note, what=What.EFFECT) for note in notes if note.more.get("how") == "done"]
    evidence = Evidence(
        notes=sorted([*noted, *notes], key=lambda note: note.at),
        final={} if last is None else {JOB: last},
        open=more.pop("open", frozenset()),  # type: ignore[arg-type]
        lease=LEASE,
        **more,  # type: ignore[arg-type]
    )
    return {violation.kind for violation in judge(evidence)}


@pytest.mark.parametrize(
    ("between", "second"),
    [
        ([], 1.5),
        ([end(1.2, 1, "RuntimeError")], 1.5),
        ([fault(1.2, What.KILL)], 4.5),
        ([fault(1.2, What.CUT_OFF), fault(5.0, What.BACK)], 4.5),
        ([fault(1.2, What.CUT_OFF, EVERYBODY), fault(4.0, What.BACK, EVERYBODY)], 4.5),
        ([fault(1.2, What.CUT_OFF)], 4.5),
    ],
    ids=["one attempt", "retried", "killed", "stopped", "outage", "never came back"],
)
def test_a_second_start_after_a_fault_or_a_retry_is_no_violation(between: list[Note], second: float) -> None:
    if not between:
        assert not kinds([*enqueued(), start(1, 1), end(1.1, 1)], final(1, result=1))
        return
    notes = [*enqueued(), start(1, 1), *between, start(second, 2, SECOND), end(second + 0.1, 2, pid=SECOND)]
    assert not kinds(notes, final(2, result=2))


@pytest.mark.parametrize(
    "between",
    [
        [],
        [end(1.2, 1)],
        [fault(1.2, What.TERMINATE)],
        [fault(1.2, What.KILL, SECOND)],
        [fault(0.5, What.KILL)],
        [fault(1.2, What.CUT_OFF), fault(2.0, What.BACK)],
    ],
    ids=["nothing", "it was done", "SIGTERM", "another was killed", "killed before", "stopped for less than a lease"],
)
def test_an_unexplained_second_start_is_a_duplicate(between: list[Note]) -> None:
    notes = [*enqueued(), start(1, 1), *between, start(4.5, 2, SECOND), end(4.6, 2, pid=SECOND)]
    assert kinds(notes, final(2)) == {DUPLICATE}


def test_a_lease_does_not_expire_early() -> None:
    stopped = [fault(1.2, What.CUT_OFF), fault(9.0, What.BACK)]
    notes = [*enqueued(), start(1, 1), *stopped, start(2.5, 2, SECOND), end(2.6, 2, pid=SECOND)]
    assert kinds(notes, final(2)) == {DUPLICATE}


def test_an_accepted_job_is_final_or_claimable() -> None:
    assert kinds(enqueued(), None) == {LOST}
    assert not kinds(enqueued(), None, open=frozenset({JOB}))
    assert not kinds(enqueued()[:1], None), "without a reply it may be there or not"


def test_a_job_succeeds_only_if_its_handler_did() -> None:
    assert kinds([*enqueued(), start(1, 1)], final(1)) == {LOST}
    assert kinds([*enqueued(), start(1, 1), end(1.1, 1, "RuntimeError")], final(1)) == {LOST}


def test_a_job_that_was_not_enqueued_is_unexpected() -> None:
    assert kinds([start(1, 1), end(1.1, 1)], final(1)) == {UNEXPECTED}
    assert UNEXPECTED in kinds([], final(1, "canceled"))
    assert UNEXPECTED in kinds([*enqueued(What.REFUSED), start(1, 1), end(1.1, 1)], final(1))


def test_an_old_fence_changes_nothing() -> None:
    killed = [*enqueued(), start(1, 1), fault(1.2, What.KILL), start(4.5, 2, SECOND), end(4.6, 2, pid=SECOND)]
    assert STALE_WRITE in kinds([*killed, end(4.55, 1)], final(1)), "the first one's end took effect"
    assert kinds(killed, final(2, result=1)) == {STALE_WRITE}, "the result is the first one's"


def test_every_start_counts_as_an_attempt() -> None:
    failed = [*enqueued(), start(1, 1, attempt=1), end(1.1, 1, "RuntimeError"), start(2, 2, attempt=1), end(2.1, 2)]
    assert kinds(failed, final(2)) == {UNCOUNTED}
    snoozed = [*enqueued(), start(1, 1, attempt=1), end(1.1, 1, "Snooze"), start(2, 2, attempt=1), end(2.1, 2)]
    assert kinds(snoozed, final(2)) == set()
    shutdown = fault(0.5, What.TERMINATE)
    stopped = [*enqueued(), shutdown, start(1, 1, attempt=1), end(1.1, 1, "CancelledError"), start(2, 2, attempt=1)]
    assert kinds([*stopped, end(2.1, 2)], final(2)) == set(), "what a shutdown stops is given back"
    timed_out = [*enqueued(), start(1, 1, attempt=1), end(1.1, 1, "CancelledError"), start(2, 2, attempt=1)]
    assert UNCOUNTED in kinds([*timed_out, end(2.1, 2)], final(2))


def test_a_kill_excuses_an_unwritten_end_only_if_it_came_soon() -> None:
    def killed(at: float) -> set[str]:
        first, second = [start(1, 1), end(1.1, 1)], [start(at + 4, 2, SECOND), end(at + 4.1, 2, pid=SECOND)]
        return kinds([*enqueued(), *first, fault(at, What.KILL), *second], final(2))

    assert not killed(1.5)
    assert killed(20.0) == {DUPLICATE}


def test_after_a_long_cut_a_thread_may_run_on_while_its_job_starts_again() -> None:
    """If a renewal was just due, the lease is released after five sixths of its time, once the server is back."""

    def cut_for(seconds: float) -> set[str]:
        cut = [fault(2.0, What.CUT_OFF, EVERYBODY), fault(2.0 + seconds, What.BACK, EVERYBODY)]
        started = [start(1, 1), start(2.6 + seconds, 2)]
        return kinds([*enqueued(kind=THREAD), *started, *cut, end(9, 1), end(10, 2)], final(2, kind=THREAD))

    assert not cut_for(0.52 * LEASE)
    assert cut_for(0.1) == {DUPLICATE}


def test_a_short_stop_is_no_reason_to_stop_a_handler() -> None:
    def stopped(seconds: float) -> set[str]:
        stop = [fault(1.1, What.CUT_OFF), fault(1.1 + seconds, What.BACK)]
        first, second = [start(1, 1), end(1 + 0.9 * LEASE, 1, "CancelledError")], [start(4, 2), end(4.1, 2)]
        return kinds([*enqueued(), *first, *stop, *second], final(2))

    assert not stopped(0.5 * LEASE)
    assert stopped(0.01) == {DUPLICATE}


def test_lost_leases_end_only_jobs_that_kill_workers() -> None:
    lost = [*enqueued(), start(1, 1), fault(1.1, What.KILL)]
    assert kinds(lost, final(1, "dead", losses=3)) == {INNOCENT_DEATH}
    assert not kinds(lost, final(1, "dead", EXIT, losses=3))
    assert kinds(lost, final(1, "dead", EXIT, losses=2)) == {WRONG_END}
    assert kinds(lost, final(1, "dead", KILL, losses=6)) == {WRONG_END}
    assert not kinds(lost, final(1, "dead", KILL, losses=7))


def test_a_final_state_does_not_change() -> None:
    once = [*enqueued(), start(1, 1), end(1.1, 1)]
    assert kinds(once, final(1), seen={JOB: final(1, "failed")}) == {CHANGED}
    assert not kinds(once, final(1), seen={JOB: final(1)})


@pytest.mark.parametrize(
    ("effects", "found"), [([], {DISAGREE}), ([1], set()), ([1, 1], {DISAGREE}), ([0], {DISAGREE})]
)
def test_a_job_and_the_effect_committed_with_it_agree(effects: list[int], found: set[str]) -> None:
    once = [*enqueued(), start(1, 1), end(1.1, 1)]
    assert kinds(once, final(1, kind=EFFECT), effects=[(JOB, fence) for fence in effects]) == found


def test_a_violation_shows_the_history_of_its_job_including_faults() -> None:
    second = [start(4.5, 2, SECOND), effect(4.55, 2, SECOND), end(4.6, 2, pid=SECOND)]
    notes = [*enqueued(), start(1, 1), fault(1.2, What.KILL, SECOND), *second]
    (violation,) = judge(Evidence(notes, {JOB: final(2)}, frozenset(), lease=LEASE))
    assert [line.split()[2] for line in violation.history[:-1]] == [
        "enqueuing", "accepted", "start", "kill", "start", "effect", "end",
    ]  # fmt: skip
    assert violation.history[-1] == "final state: succeeded by fence 2, attempt 2, losses 0"


# The store's final state


def tried(
    at: float, fence: int, how: str, attempt: int = 1, of: int = 4, losses: int = 0, pid: int = FIRST
) -> list[Note]:
    """An attempt of a handler that notes how many attempts are allowed."""
    numbers = {"attempt": attempt, "of": of, "losses": losses}
    return [Note(at, What.START, pid, JOB, fence, numbers), end(at + 0.1, fence, how, pid)]


@pytest.mark.parametrize("state", ["failed", "canceled", "dead"])
def test_a_job_whose_handler_succeeded_has_succeeded(state: str) -> None:
    asked = [Note(0.5, What.CANCEL, 1, JOB)]
    assert kinds([*enqueued(), *asked, *tried(1, 1, "done")], final(1, state)) == {WRONG_END}


def test_a_job_whose_handler_succeeded_is_not_left_open() -> None:
    done = [*enqueued(), *tried(1, 1, "done")]
    assert kinds(done, None, open=frozenset({JOB})) == {WRONG_END}
    assert not kinds([*done, fault(1.2, What.KILL)], None, open=frozenset({JOB})), "nobody could write its end"


@pytest.mark.parametrize("state", ["failed", "dead"])
def test_a_job_that_never_started_does_not_fail(state: str) -> None:
    assert kinds(enqueued(), final(1, state)) == {WRONG_END}


def test_a_job_is_dead_only_when_all_its_attempts_have_failed() -> None:
    first, second = tried(1, 1, "ValueError", 1, of=2), tried(2, 2, "ValueError", 2, of=2)
    assert not kinds([*enqueued(), *first, *second], final(2, "dead"))
    assert kinds([*enqueued(), *first], final(1, "dead")) == {WRONG_END}, "one was left"
    assert kinds([*enqueued(), *first, *second], final(2, "failed")) == {WRONG_END}, "no error is for good by itself"


def test_an_attempt_that_lost_its_lease_does_not_count_as_failed() -> None:
    lost = [*enqueued(), *tried(1, 1, "ValueError", 1, of=2), start(2, 2, SECOND), fault(2.1, What.KILL, SECOND)]
    assert kinds(lost, Final(JOB, WORK, "dead", 2, 2, losses=0)) == {WRONG_END}, "only one of two has failed"
    assert not kinds([*lost, *tried(6, 3, "ValueError", 3, of=2, losses=1)], Final(JOB, WORK, "dead", 3, 3, losses=1))


def test_there_are_no_more_attempts_than_allowed() -> None:
    failed = [*tried(1, 1, "ValueError", 1, of=1), *tried(2, 2, "done", 2, of=1)]
    assert kinds([*enqueued(), *failed], final(2)) == {WRONG_END}


def test_a_permanent_error_is_a_failure_and_the_last_attempt() -> None:
    failed = [*enqueued(), *tried(1, 1, "Permanent")]
    assert not kinds(failed, final(1, "failed"))
    assert kinds(failed, final(1, "dead")) == {WRONG_END}
    assert kinds([*failed, *tried(2, 2, "done", 2)], final(2)) == {DUPLICATE}


def test_an_unusable_payload_or_result_fails_the_job() -> None:
    unusable = Note(0.2, What.UNUSABLE, 1, JOB)
    assert not kinds([*enqueued(), unusable], final(1, "failed")), "its payload"
    assert not kinds([*enqueued(), unusable, *tried(1, 1, "done")], final(1, "failed")), "its result"


def test_no_job_is_canceled_without_a_request() -> None:
    asked = Note(0.5, What.CANCEL, 1, JOB)
    assert kinds(enqueued(), Final(JOB, WORK, "canceled", None, 0, 0)) == {WRONG_END}
    assert not kinds([*enqueued(), asked], Final(JOB, WORK, "canceled", None, 0, 0))
    stopped = [*enqueued(), *tried(1, 1, "CancelledError")]
    assert kinds(stopped, final(1, "canceled")) == {WRONG_END}
    assert not kinds([*stopped, asked], final(1, "canceled"))
    assert not kinds([*enqueued(), *tried(1, 1, "Cancel")], final(1, "canceled")), "its handler did"


def test_a_job_whose_end_could_not_be_written_may_be_canceled() -> None:
    killed = [*enqueued(), *tried(1, 1, "done"), fault(1.2, What.KILL), Note(2, What.CANCEL, 1, JOB)]
    assert not kinds(killed, Final(JOB, WORK, "canceled", None, 1, 1))


def test_an_abandoned_thread_may_succeed() -> None:
    thread = [*enqueued(), Note(1.05, What.CANCEL, 1, JOB), *tried(1, 1, "done")]
    assert not kinds(thread, final(1, "canceled", THREAD))
    assert kinds(thread, final(1, "failed", THREAD)) == {WRONG_END}


def test_the_way_a_peers_job_fails_is_not_judged() -> None:
    assert not kinds([*enqueued(), *tried(1, 1, "ValueError")], final(1, "failed"), is_ours=False)


# Where a job is at the end


def test_a_job_that_ran_was_stored_and_stays() -> None:
    undecided = enqueued()[:1]
    assert kinds([*undecided, start(1, 1), end(1.1, 1)], None) == {LOST}
    assert kinds(undecided, None, seen={JOB: final(1)}) == {LOST}
    prunable = [Note(0.0, What.ENQUEUING, 1, JOB, more={"kind": WORK, "is_prunable": True})]
    assert not kinds([*prunable, start(1, 1), end(1.1, 1)], None, seen={JOB: final(1)})


def test_a_final_job_does_not_become_open_again() -> None:
    once = [*enqueued(), start(1, 1), end(1.1, 1, "Permanent")]
    assert CHANGED in kinds(once, None, open=frozenset({JOB}), seen={JOB: final(1, "failed")})
    assert CHANGED in kinds(once, final(1, "failed"), open=frozenset({JOB})), "in two places"


def test_the_result_of_a_final_job_does_not_change() -> None:
    once = [*enqueued(), start(1, 1), end(1.1, 1)]
    before, after = replace(final(1), result_hash=7), replace(final(1), result_hash=8)
    assert kinds(once, after, seen={JOB: before}) == {CHANGED}
    assert not kinds(once, before, seen={JOB: before})


def test_a_person_may_give_up_a_dead_letter() -> None:
    failed = [*enqueued(), *tried(1, 1, "Permanent")]
    canceled = Final(JOB, WORK, "canceled", None, 1, 0)
    asked = Note(3, What.CANCEL, 1, JOB)
    assert CHANGED in kinds(failed, canceled, seen={JOB: final(1, "failed")})
    assert not kinds([*failed, asked], canceled, seen={JOB: final(1, "failed")})


def test_a_refused_job_is_not_claimable() -> None:
    assert kinds(enqueued(What.REFUSED), None, open=frozenset({JOB})) == {UNEXPECTED}
    assert not kinds(enqueued(What.REFUSED), None)


# Handlers that were stopped


@pytest.mark.parametrize(
    "reason",
    [
        [fault(0.5, What.TERMINATE)],
        [fault(0.2, What.CUT_OFF), fault(1.5, What.BACK)],
        [fault(0.2, What.CUT_OFF, EVERYBODY), fault(3.5, What.BACK, EVERYBODY)],
        [Note(2.0, What.CANCEL, 1, JOB)],
    ],
    ids=["shutdown", "paused", "outage", "canceled"],
)
def test_a_handler_is_stopped_only_for_a_reason(reason: list[Note]) -> None:
    stopped = [
        *enqueued(),
        start(0.15, 1),
        end(2.1, 1, "CancelledError"),
        start(2.2, 2, SECOND),
        end(2.3, 2, pid=SECOND),
    ]
    assert kinds(stopped, final(2)) == {DUPLICATE}
    assert not kinds([*stopped, *reason], final(2))


@pytest.mark.parametrize(
    "no_reason",
    [
        [fault(3.0, What.TERMINATE)],
        [fault(0.5, What.TERMINATE, SECOND)],
        [fault(1.8, What.CUT_OFF), fault(2.5, What.BACK)],
        [Note(2.15, What.CANCEL, 1, JOB)],
    ],
    ids=["shutdown afterwards", "of another process", "paused a moment before", "canceled afterwards"],
)
def test_not_everything_is_a_reason_to_stop_a_handler(no_reason: list[Note]) -> None:
    stopped = [
        *enqueued(),
        start(0.15, 1),
        end(2.1, 1, "CancelledError"),
        start(2.2, 2, SECOND),
        end(2.3, 2, pid=SECOND),
    ]
    assert kinds([*stopped, *no_reason], final(2)) == {DUPLICATE}


# Effects


def test_a_succeeded_job_has_had_its_effect() -> None:
    once = [*enqueued(), start(1, 1), end(1.1, 1)]
    assert kinds(once, final(1), noted=[]) == {DISAGREE}
    assert kinds(once, final(1), noted=[effect(1.05, 2)]) == {DISAGREE}, "of an attempt that never was"
    assert not kinds(once, final(1), noted=[effect(1.05, 1)])
    assert not kinds(once, final(1, kind="of another app"), noted=[])


def test_a_handler_is_stopped_before_its_lease_ends() -> None:
    outage = [fault(1.2, What.CUT_OFF, EVERYBODY), fault(6, What.BACK, EVERYBODY)]
    again = [start(4.5, 2, SECOND), end(5.0, 2, pid=SECOND)]
    noted = [effect(4.7, 1), effect(4.9, 2, SECOND)]
    assert kinds([*enqueued(), start(1, 1), *outage, *again], final(2), noted=noted) == {DISAGREE}
    assert not kinds([*enqueued(), start(1, 1), *outage, *again], final(2, kind=THREAD), noted=noted)
    paused = [fault(1.2, What.CUT_OFF), fault(4.6, What.BACK)]
    assert not kinds([*enqueued(), start(1, 1), *paused, *again], final(2), noted=noted), "nothing could stop it"


def test_a_committed_finish_is_the_end_of_the_job() -> None:
    twice = [*enqueued(kind=EFFECT), start(1, 1), end(1.1, 1), fault(1.2, What.KILL), start(5, 2, SECOND), end(5.1, 2)]
    assert kinds(twice, final(2, kind=EFFECT), effects=[(JOB, 2)]) == {DISAGREE}


def test_every_effect_belongs_to_a_job() -> None:
    assert kinds([], None, effects=[(JOB, 1)]) == {UNEXPECTED}


# Expired leases


def test_an_expired_lease_is_rescued_within_two_intervals() -> None:
    # Two rescue intervals of a second each, plus two seconds for a busy machine.
    assert is_stuck(4.1, calm=60, lease=3.0)
    assert not is_stuck(3.9, calm=60, lease=3.0)
    assert is_stuck(22.1, calm=60, lease=30.0)
    assert not is_stuck(21.9, calm=60, lease=30.0)


def test_no_job_is_stuck_while_workers_start_after_a_fault() -> None:
    assert not is_stuck(60, calm=9.0, lease=3.0)
    assert is_stuck(60, calm=9.1, lease=3.0)


def test_no_claim_is_issued_twice() -> None:
    def claimed(at: float, claim: str) -> Note:
        return Note(at, What.START, FIRST, JOB, int(at), {"attempt": int(at), "claim": claim})

    failed = [*enqueued(), claimed(1, "a"), end(1.1, 1, "RuntimeError")]
    assert not kinds([*failed, claimed(2, "b"), end(2.1, 2)], final(2))
    assert kinds([*failed, claimed(2, "a"), end(2.1, 2)], final(2)) == {REISSUED}


class TestAfterAnAsynchronousStandbyWasPromoted:
    """The standby lacks everything committed after 2.0 and takes over at 4.0."""

    forgotten = Note(4.0, What.FORGOTTEN, EVERYBODY, more={"since": 2.0})

    def accepted(self, at: float) -> list[Note]:
        before = Note(at - 0.1, What.ENQUEUING, 1, JOB, more={"kind": WORK})
        return [before, Note(at, What.ACCEPTED, 1, JOB), self.forgotten]

    def test_a_job_may_be_gone_if_accepted_in_that_period_and_not_run_before(self) -> None:
        assert not kinds(self.accepted(2.1), None)
        assert kinds(self.accepted(1.5), None) == {LOST}
        assert kinds(self.accepted(4.1), None) == {LOST}
        unanswered = [Note(1.4, What.ENQUEUING, 1, JOB, more={"kind": WORK}), start(1.5, 1), self.forgotten]
        assert kinds(unanswered, None) == {LOST}

    @pytest.mark.parametrize(
        ("first", "is_explained"),
        [
            ([start(2.5, 1)], True),
            ([start(1.0, 1), end(2.5, 1)], True),
            ([start(1.0, 1), end(1.9, 1)], True),
            ([start(4.2, 1)], True),
            ([start(1.0, 1)], False),
            ([start(8.0, 1)], False),
        ],
        ids=["claimed then", "ended then", "ended just before", "claimed ahead", "claimed before", "claimed after"],
    )
    def test_a_job_may_run_again_if_claimed_or_ended_in_that_period(
        self, first: list[Note], *, is_explained: bool
    ) -> None:
        notes = [*self.accepted(0.5), *first, start(9.0, 2, SECOND), end(9.1, 2, pid=SECOND)]
        assert kinds(notes, final(2)) == (set() if is_explained else {DUPLICATE})

    def test_a_forgotten_attempt_is_counted_again_but_must_have_a_lower_fence(self) -> None:
        again = [start(5.0, 2, SECOND, attempt=1), end(5.1, 2, pid=SECOND)]
        assert not kinds([*self.accepted(0.5), start(2.5, 1), *again], final(2))
        assert STALE_WRITE in kinds([*self.accepted(0.5), start(2.5, 3, attempt=1), *again], final(2))

    def test_a_final_job_may_be_open_again_if_it_ended_in_that_period(self) -> None:
        for at, found in ((2.5, set()), (6.0, {CHANGED, WRONG_END})):
            ended = [*self.accepted(0.5), start(at - 0.5, 1), end(at, 1)]
            assert kinds(ended, None, open=frozenset({JOB}), seen={JOB: final(1)}) == found

    def test_a_forgotten_claim_cannot_change_its_job(self) -> None:
        notes = [*self.accepted(0.5), start(2.5, 1), start(5.0, 2, SECOND), end(5.1, 1), end(5.2, 2, pid=SECOND)]
        assert STALE_WRITE in kinds(notes, final(1))
