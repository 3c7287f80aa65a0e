"""The state machine: its table, its page, and the effect of each outcome."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.job import ATTEMPTS, JobError, JobState
from holdfast.domain.json_text import Json
from holdfast.domain.lifecycle import (
    CANCEL_REQUESTED,
    LEASE_LOST,
    MOST_LOSSES,
    RULES,
    SUSPECT,
    Move,
    Rule,
    Transition,
    after_cancel_request,
    after_loss,
    after_outcome,
    allows,
    suspicion_after_loss,
)
from holdfast.domain.outcome import Canceled, Failed, Interrupted, Outcome, Retried, Snoozed, Succeeded
from holdfast.domain.retry import steps

PAGE = Path(__file__).parents[2] / "docs" / "lifecycle.md"
HEADER = "| from | move | to | attempt | losses | when |"
BROKEN = JobError(code="BROKEN")
BACKOFF = steps("1s", "2s", "3s", "4s")
AT = datetime(2030, 1, 1, tzinfo=UTC)


def _row(rule: Rule) -> list[str]:
    before = f"`{rule.before}`" if rule.before else "-"
    return [before, rule.move, f"`{rule.after}`", rule.attempt, rule.losses, rule.why]


def test_the_page_shows_the_table_in_the_code() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index(HEADER) + 2
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start : start + len(RULES) + 1]]
    assert rows[: len(RULES)] == [_row(rule) for rule in RULES]
    assert rows[len(RULES)] == [""], "the page has more rows than the code"
    assert re.fullmatch(r"\|(-+\|){6}", lines[start - 1])


def test_no_state_has_two_rules_for_one_event() -> None:
    assert len({(rule.before, rule.move) for rule in RULES}) == len(RULES)


def test_only_transitions_in_the_table_are_allowed() -> None:
    allowed = {(before, event) for before in (None, *JobState) for event in Move if allows(before, event)}
    assert allowed == {(rule.before, rule.move) for rule in RULES}


def test_only_a_person_can_move_a_job_out_of_a_final_state() -> None:
    assert {rule.move for rule in RULES if rule.before and rule.before.is_final} == {Move.REVIVE, Move.CANCEL}
    assert {state for state in JobState if allows(state, Move.REVIVE)} == {
        state for state in JobState if state.is_final
    }


def test_every_state_is_reachable_and_no_live_state_is_a_dead_end() -> None:
    assert {rule.after for rule in RULES} == set(JobState)
    assert {rule.before for rule in RULES} == {None, *JobState}


def _after(outcome: Outcome, *, attempt: int = 1, losses: int = 0, max_attempts: int = 4) -> Transition:
    return after_outcome(
        outcome, attempt=attempt, losses=losses, max_attempts=max_attempts, backoff=BACKOFF, random=Random(1)
    )


@pytest.mark.parametrize(
    ("outcome", "transition"),
    [
        (Succeeded(), Transition(Move.SUCCEED)),
        (Succeeded(Json("[1]")), Transition(Move.SUCCEED, result=Json("[1]"))),
        (Retried(BROKEN), Transition(Move.RETRY, delay=timedelta(seconds=1), error=BROKEN)),
        (
            Retried(BROKEN, after=timedelta(minutes=1)),
            Transition(Move.RETRY, delay=timedelta(minutes=1), error=BROKEN),
        ),
        (Retried(BROKEN, after=timedelta(0)), Transition(Move.RETRY, error=BROKEN)),
        (Retried(BROKEN, at=AT), Transition(Move.RETRY, at=AT, error=BROKEN)),
        (Snoozed(after=timedelta(minutes=1)), Transition(Move.SNOOZE, delay=timedelta(minutes=1))),
        (Snoozed(until=AT), Transition(Move.SNOOZE, at=AT)),
        (Failed(BROKEN), Transition(Move.FAIL, error=BROKEN)),
        (Canceled(BROKEN), Transition(Move.CANCEL, error=BROKEN)),
        (Interrupted(BROKEN), Transition(Move.INTERRUPT, error=BROKEN)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, Transition) else value.move,
)
def test_each_outcome_has_its_transition(outcome: Outcome, transition: Transition) -> None:
    assert _after(outcome) == transition


@given(attempt=st.integers(1, 1000), losses=st.integers(0, 10), max_attempts=st.integers(1, 1000))
def test_a_failure_is_retried_until_the_allowed_attempts_have_failed(
    attempt: int, losses: int, max_attempts: int
) -> None:
    losses = min(losses, attempt - 1)
    failures = attempt - losses
    found = _after(Retried(BROKEN), attempt=attempt, losses=losses, max_attempts=max_attempts)
    if failures >= max_attempts:
        assert found == Transition(Move.EXHAUST, error=BROKEN)
    else:
        assert found == Transition(Move.RETRY, delay=BACKOFF.delay(failures, Random(1)), error=BROKEN)


@pytest.mark.parametrize("retried", [Retried(BROKEN, at=AT), Retried(BROKEN, after=timedelta(0)), Retried(BROKEN)])
def test_a_requested_retry_time_does_not_grant_an_extra_attempt(retried: Retried) -> None:
    assert _after(retried, attempt=4) == Transition(Move.EXHAUST, error=BROKEN)


def test_a_lost_lease_does_not_use_up_an_attempt() -> None:
    assert _after(Retried(BROKEN), attempt=4, losses=1).move is Move.RETRY
    assert _after(Retried(BROKEN), attempt=5, losses=1).move is Move.EXHAUST
    # The backoff does not count it either.
    assert _after(Retried(BROKEN), attempt=3, losses=2).delay == timedelta(seconds=1)


def test_other_outcomes_ignore_the_number_of_attempts() -> None:
    for outcome in (Succeeded(), Snoozed(after=timedelta(0)), Failed(BROKEN), Canceled(BROKEN), Interrupted(BROKEN)):
        assert _after(outcome, attempt=1000) == _after(outcome, attempt=1)


def test_losses_in_company_make_a_job_a_suspect_but_never_bury_it() -> None:
    assert [suspicion_after_loss(before, 0) for before in range(5)] == [1, SUSPECT, SUSPECT, 3, 4]
    assert {after_loss(suspicion, 0) for suspicion in range(100)} == {Transition(Move.RESCUE, error=LEASE_LOST)}


def test_every_loss_of_a_job_that_ran_alone_counts_until_it_is_buried() -> None:
    assert [suspicion_after_loss(before, 3) for before in range(5)] == [1, 2, 3, 4, 5]
    moves = [after_loss(suspicion, 3).move for suspicion in range(7)]
    assert moves == [Move.RESCUE] * 5 + [Move.BURY] * 2


def test_the_delay_after_each_crash_doubles_up_to_a_minute() -> None:
    rests = [after_loss(SUSPECT + crashes, 1000).delay.total_seconds() for crashes in (0, 1, 2, 3, 6, 7, 900)]
    assert rests == [0, 1, 2, 4, 32, 60, 60]


def test_no_count_exceeds_its_column() -> None:
    assert suspicion_after_loss(MOST_LOSSES, 1000) == MOST_LOSSES
    assert MOST_LOSSES + 1 + ATTEMPTS[-1] < 2**15


@pytest.mark.parametrize(
    "rule", [rule for rule in RULES if rule.before is JobState.RUNNING], ids=lambda rule: rule.move
)
def test_a_cancel_request_applies_where_the_job_would_run_again_or_be_buried(rule: Rule) -> None:
    for error in (None, BROKEN):
        transition = Transition(rule.move, delay=timedelta(seconds=1), error=error)
        assert transition.state is rule.after
        assert transition.gives_attempt_back is (rule.attempt == "-1")
        found = after_cancel_request(transition)
        if rule.after is JobState.READY or rule.move is Move.BURY:
            assert found == Transition(Move.CANCEL, error=error or CANCEL_REQUESTED)
        else:
            assert found is transition
