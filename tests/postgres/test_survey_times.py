"""Surveys, as plain values: when one is made, and where claims start after it."""

from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.store.contract import ClaimRequest
from holdfast.store.postgres import lanes
from holdfast.store.postgres.lanes import Floor, Lane, Lanes, Starts, Survey
from tests.postgres.looks import (
    BEGAN,
    BOTH,
    DEAR,
    DUTY,
    FLOOR,
    MOMENT,
    OTHER,
    WORK,
    answered,
    claimed,
    lanes_of,
    looked,
    settled,
    starts,
)
from tests.store_contract.steps import wants

URGENT = Lane("default", 0, "work")
EARLIER = Floor(FLOOR.run_at - timedelta(hours=1), UUID(int=7))
LATER = Floor(FLOOR.run_at + timedelta(hours=1), UUID(int=3))
DUE = BEGAN + 1.01 * DUTY
LONGEST = lanes._LONGEST_HIDDEN_SECONDS
KINDS = lanes._kinds(BOTH)


def started(memory: Lanes, at: float = DUE) -> Starts:
    survey = memory.start_survey(at, is_idle=False)
    assert survey is not None, "no survey is due"
    return survey


def surveyed(memory: Lanes, firsts: dict[Lane, Floor] | None = None, *, at: float = DUE, cost: float = DEAR) -> None:
    answered(memory, started(memory, at), at + cost, firsts, cost=cost)


def quick(memory: Lanes, at: float, request: ClaimRequest = BOTH) -> dict[Lane, Floor]:
    ask = memory.first_ask(request, at)
    assert not ask.is_full_look
    return starts(ask)


def test_the_first_survey_is_due_as_soon_as_looking_is_dear() -> None:
    memory = looked(WORK, cost=DEAR)
    survey = started(memory, 1000.0)
    assert set(lanes_of(survey)) == {Lane("default", priority, kind) for priority in range(10) for _, kind in KINDS}
    assert {*survey.floor_times, *survey.floor_ids} == {*lanes._BEGINNING}


def test_the_next_one_is_due_when_a_twentieth_of_the_time_allows_it() -> None:
    memory = settled(WORK)
    assert memory.start_survey(BEGAN + 0.99 * DUTY, is_idle=False) is None
    assert memory.start_survey(DUE, is_idle=False) is not None


def test_whoever_is_idle_surveys_as_seldom_as_a_job_may_be_hidden() -> None:
    memory = settled(WORK)
    assert memory.start_survey(BEGAN + 0.99 * LONGEST, is_idle=True) is None
    assert memory.start_survey(BEGAN + LONGEST, is_idle=True) is not None


@pytest.mark.parametrize(("cost", "pause"), [(LONGEST / 3, LONGEST), (5 * LONGEST, 10 * LONGEST)])
def test_the_longest_that_a_job_may_be_hidden(cost: float, pause: float) -> None:
    memory = looked(WORK, cost=cost, ended=BEGAN - cost)
    surveyed(memory, at=BEGAN, cost=cost)
    assert memory.start_survey(BEGAN + 0.99 * pause, is_idle=False) is None
    assert memory.start_survey(BEGAN + 1.01 * pause, is_idle=False) is not None


def test_there_is_no_survey_while_looking_is_cheap() -> None:
    assert looked(WORK, cost=lanes._CHEAP_SECONDS / 2).start_survey(2000.0, is_idle=False) is None


def test_one_survey_at_a_time() -> None:
    memory = settled(WORK)
    started(memory)
    assert memory.start_survey(DUE + 100.0, is_idle=False) is None


def test_claims_start_from_the_floors_while_a_survey_takes_its_time() -> None:
    memory = settled(WORK)
    started(memory)
    for seconds in range(60):
        assert quick(memory, DUE + seconds)[WORK] == FLOOR


def test_a_job_behind_a_floor_is_where_the_next_claim_starts() -> None:
    memory = settled(WORK)
    surveyed(memory, {WORK: EARLIER})
    start = quick(memory, DUE + 0.1)[WORK]
    assert start < EARLIER
    assert EARLIER.run_at - start.run_at <= timedelta.resolution


def test_a_claim_that_began_before_the_survey_ended_does_not_move_the_floor_past_what_it_found() -> None:
    memory = settled(WORK)
    survey = started(memory)
    under_way = memory.first_ask(BOTH, DUE)
    answered(memory, survey, DUE + DEAR, {WORK: EARLIER})
    memory.learn(under_way, {WORK: LATER}, 1, DUE, DUE + 2 * DEAR, memory.generation)
    assert quick(memory, DUE + 3 * DEAR)[WORK] < EARLIER
    claimed(memory, LATER, DUE + 3 * DEAR)
    assert quick(memory, DUE + 4 * DEAR)[WORK] == LATER


def test_a_floor_that_others_have_claimed_past_moves_on() -> None:
    memory = settled(WORK)
    surveyed(memory, {WORK: LATER})
    assert FLOOR < quick(memory, DUE + 0.1)[WORK] < LATER


def test_a_lane_with_nothing_due_starts_shortly_before_the_survey() -> None:
    memory = settled(WORK)
    surveyed(memory)
    assert quick(memory, DUE + 0.1)[WORK].run_at == MOMENT - timedelta(seconds=LONGEST)


def test_a_survey_takes_no_floor_back_that_is_as_recent() -> None:
    memory = settled(WORK)
    recent = Floor(MOMENT, UUID(int=1))
    claimed(memory, recent, DUE)
    surveyed(memory)
    assert quick(memory, DUE + 0.1)[WORK] == recent


def test_a_floor_of_a_clock_that_has_been_set_back_does_not_stay() -> None:
    memory = settled(WORK)
    claimed(memory, Floor(MOMENT + timedelta(hours=1), UUID(int=1)), DUE)
    surveyed(memory)
    assert quick(memory, DUE + 0.1)[WORK].run_at < MOMENT


def test_after_a_survey_all_priorities_are_asked_for() -> None:
    memory = settled(WORK)
    assert {lane.priority for lane in quick(memory, DUE)} == set(range(10))
    memory.forget()
    claimed(memory, FLOOR, DUE + 0.1)
    assert memory.first_ask(BOTH, DUE + 0.2).is_full_look, "most have no floor now"


def test_lanes_without_a_floor_are_reason_enough_for_a_survey() -> None:
    memory = settled(WORK)
    assert memory.start_survey(BEGAN + 5 * DEAR, is_idle=True) is None
    memory.forget()
    assert memory.start_survey(BEGAN + 5 * DEAR, is_idle=True) is not None


def test_surveys_do_not_follow_each_other_without_a_pause() -> None:
    memory = settled(WORK)
    memory.forget()
    assert memory.start_survey(BEGAN + 1.9 * DEAR, is_idle=False) is None
    assert memory.start_survey(BEGAN + 2.1 * DEAR, is_idle=False) is not None


def test_whoever_has_never_claimed_starts_from_the_floors_after_a_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    for few in (lanes._FEW_LANES, 9):
        monkeypatch.setattr(lanes, "_FEW_LANES", few)
        memory = looked(cost=DEAR)
        assert memory.first_ask(BOTH, 1000.0).is_full_look
        surveyed(memory, at=1000.0)
        assert not memory.first_ask(BOTH, 1000.1).is_full_look


def test_of_very_many_lanes_those_are_asked_for_that_had_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_FEW_LANES", 9)
    memory = settled(WORK)
    assert set(quick(memory, DUE)) == {WORK, OTHER}
    surveyed(memory, {URGENT: EARLIER})
    # What was claimed since the survey before is not forgotten because this one saw nothing there.
    assert {lane.priority for lane in quick(memory, DUE + 0.1)} == {WORK.priority, URGENT.priority}
    surveyed(memory, {URGENT: EARLIER}, at=DUE + 2 * DUTY)
    assert {lane.priority for lane in quick(memory, DUE + 2.1 * DUTY)} == {URGENT.priority}
    surveyed(memory, at=DUE + 4 * DUTY)
    assert {lane.priority for lane in quick(memory, DUE + 4.1 * DUTY)} == {URGENT.priority}, "nothing else is known"


def test_what_a_survey_saw_before_jobs_came_back_does_not_count() -> None:
    memory = settled(WORK)
    survey, generation = started(memory), memory.generation
    memory.forget()
    memory.surveyed(Survey(dict.fromkeys(lanes_of(survey)), MOMENT, DEAR), DUE + DEAR, generation)
    assert memory.first_ask(BOTH, DUE + DEAR).is_full_look
    surveyed(memory, at=DUE + 3 * DEAR)
    assert not memory.first_ask(BOTH, DUE + 5 * DEAR).is_full_look


def test_a_survey_that_failed_leaves_the_floors_and_is_made_again() -> None:
    memory = settled(WORK)
    started(memory)
    assert memory.not_surveyed(DUE + DEAR), "this is news"
    assert quick(memory, DUE + DEAR)[WORK] == FLOOR
    assert memory.start_survey(DUE + 2 * DEAR, is_idle=False) is None, "not without a pause"
    again = DUE + 1.01 * DUTY
    started(memory, again)
    assert not memory.not_surveyed(again + DEAR), "this is not"
    surveyed(memory, {WORK: EARLIER}, at=again + 1.01 * DUTY)
    assert quick(memory, again + 1.5 * DUTY)[WORK] < EARLIER


def test_surveys_that_fail_do_not_make_looking_cheap() -> None:
    memory, at = settled(WORK), DUE
    for _ in range(lanes._LOOKS_COMPARED):
        started(memory, at)
        memory.not_surveyed(at)
        at += 1.01 * DUTY
    assert memory.is_dear


def test_while_surveys_fail_no_claim_tries_the_same() -> None:
    memory = settled(WORK)
    started(memory)
    memory.not_surveyed(DUE + DEAR)
    assert not memory.first_ask(BOTH, DUE + 2 * lanes._ASLEEP_SECONDS).is_full_look


def test_whoever_has_not_asked_for_long_looks_at_everything() -> None:
    memory, at = settled(WORK), BEGAN + DEAR
    for _ in range(10):
        at += 0.99 * lanes._ASLEEP_SECONDS
        assert not memory.first_ask(BOTH, at).is_full_look
    at += lanes._ASLEEP_SECONDS
    assert memory.idle_ask(BOTH, at) is None
    assert memory.first_ask(BOTH, at).is_full_look, "to ask for what is next is not to claim"
    assert memory.first_ask(BOTH, at).is_full_look, "the first may have been full with other jobs"
    surveyed(memory, at=at)
    assert not memory.first_ask(BOTH, at + 0.1).is_full_look


def test_a_survey_from_before_somebody_slept_is_not_enough() -> None:
    memory = settled(WORK)
    survey = started(memory)
    at = DUE + 2 * lanes._ASLEEP_SECONDS
    assert memory.first_ask(BOTH, at).is_full_look
    answered(memory, survey, at)
    assert memory.first_ask(BOTH, at).is_full_look
    surveyed(memory, at=at + 2 * DEAR)
    assert not memory.first_ask(BOTH, at + 4 * DEAR).is_full_look


def test_whoever_asks_what_is_next_is_not_asleep() -> None:
    memory, at = settled(WORK), BEGAN + DEAR
    for _ in range(10):
        at += 0.99 * lanes._ASLEEP_SECONDS
        assert memory.idle_ask(BOTH, at) is not None
    assert not memory.first_ask(BOTH, at).is_full_look


def test_one_worker_of_a_process_does_not_keep_another_awake() -> None:
    memory, at = settled(WORK), BEGAN + DEAR
    for _ in range(3):
        at += 0.99 * lanes._ASLEEP_SECONDS
        assert not memory.first_ask(wants("work"), at).is_full_look
    assert memory.first_ask(wants("other"), at).is_full_look


def test_a_look_for_some_kinds_does_not_put_off_the_survey_of_others() -> None:
    """Two workers of one process, or a kind at its limit: what one looks for tells nothing about the other."""
    memory = settled(WORK)
    memory.learn(memory.all_lanes(wants("other")), {}, 0, DUE - DEAR, DUE, memory.generation)
    started(memory)


def test_a_look_for_some_kinds_that_was_cheap_does_not_make_all_of_them_cheap() -> None:
    memory = settled(WORK)
    for _ in range(lanes._LOOKS_COMPARED):
        memory.learn(memory.all_lanes(wants("other")), {}, 0, DUE, DUE, memory.generation)
    assert memory.is_dear


def test_looking_is_cheap_again_when_most_surveys_are() -> None:
    memory, at = settled(WORK), DUE
    for number in range(lanes._LOOKS_COMPARED // 2 + 1):
        assert memory.is_dear, f"{number} cheap surveys are luck"
        surveyed(memory, at=at, cost=lanes._CHEAP_SECONDS / 5)
        at += 2 * DUTY
    assert not memory.is_dear
    assert memory.first_ask(BOTH, at).is_full_look


def test_the_way_to_the_store_is_no_part_of_what_a_look_costs() -> None:
    memory = Lanes(round_trip=DEAR)
    for _ in range(lanes._LOOKS_COMPARED):
        look = memory.first_ask(BOTH, 1000.0)
        memory.learn(look, {WORK: FLOOR}, 0, 1000.0, 1000.0 + DEAR + lanes._CHEAP_SECONDS / 2, memory.generation)
    assert not memory.is_dear


def test_whoever_is_idle_asks_again_when_the_next_survey_is_due_and_when_it_should_have_ended() -> None:
    memory = settled(WORK)
    assert memory.until_survey(BEGAN + 0.25 * LONGEST) == pytest.approx(0.75 * LONGEST)
    assert memory.until_survey(BEGAN + 2 * LONGEST) == 0
    started(memory, BEGAN + 2 * LONGEST)
    assert 0 < memory.until_survey(BEGAN + 2 * LONGEST) <= 2 * DEAR
    assert memory.until_survey(BEGAN + 3 * LONGEST) >= LONGEST, "less and less often, should it hang"


def test_a_look_that_leaves_out_the_dear_kinds_does_not_make_them_cheap() -> None:
    """With a kind at its limit, every other look is short: the others are to be counted all the same."""
    memory = Lanes()
    for _ in range(lanes._LOOKS_COMPARED):
        assert not memory.is_dear
        memory.learn(memory.all_lanes(BOTH), {}, 0, 1000.0, 1000.0 + DEAR, memory.generation)
        memory.learn(memory.all_lanes(wants("other")), {}, 0, 1000.0, 1000.0, memory.generation)
    assert memory.is_dear


def test_glances_pay_again_when_jobs_come_where_they_came_from_before() -> None:
    memory = settled(WORK)
    glance = memory.glance(BOTH)
    assert glance is not None
    memory.learn(glance, {}, 0, DUE, DUE, memory.generation)
    assert memory.glance(BOTH) is None
    claimed(memory, LATER, DUE)
    assert memory.glance(BOTH) is not None
