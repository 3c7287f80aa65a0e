"""Lanes, as plain values: when a claim looks at everything, and what it asks for when it does not."""

from uuid import UUID

import pytest

from holdfast.store.contract import ClaimRequest
from holdfast.store.postgres import lanes
from holdfast.store.postgres.lanes import Ask, Floor, Lane, Lanes
from tests.postgres.looks import BEGAN, BOTH, DEAR, FLOOR, OTHER, WORK, answered, looked, settled, starts
from tests.store_contract.steps import wants


def test_the_first_claim_is_a_full_look() -> None:
    ask = Lanes().first_ask(wants("work", "other", queues=("default", "mail")), 0.0)
    assert ask.is_full_look
    assert len(ask.probes) == len(starts(ask)) == 2 * 2 * 10
    assert [probe.lane.priority for probe in ask.probes] == sorted(probe.lane.priority for probe in ask.probes)


def test_every_claim_is_a_full_look_without_floors_while_that_is_cheap() -> None:
    memory = looked(WORK, cost=lanes._CHEAP_SECONDS / 2)
    ask = memory.first_ask(wants(), 1000.0)
    assert ask.is_full_look
    assert set(starts(ask).values()) == {lanes._BEGINNING}


def test_when_looking_is_dear_claims_look_at_everything_until_a_survey_has_put_floors() -> None:
    memory = looked(WORK, cost=DEAR)
    for _ in range(3):
        look = memory.first_ask(BOTH, 1000.0)
        assert look.is_full_look
        memory.learn(look, {WORK: FLOOR}, 1, 1000.0, 1000.0 + DEAR, memory.generation)
    quick = settled(WORK).first_ask(BOTH, BEGAN + 2 * DEAR)
    assert not quick.is_full_look
    # All lanes of a priority, so that its kinds stay in order among each other.
    assert starts(quick)[WORK] == FLOOR
    assert lanes._BEGINNING < starts(quick)[OTHER] < FLOOR


def test_floors_are_not_read_before_looking_is_dear() -> None:
    memory = Lanes()
    for _ in range(lanes._LOOKS_COMPARED):
        ask = memory.first_ask(wants(), 1000.0)
        assert not ask.learns_floors
        memory.learn(ask, {WORK: FLOOR}, 1, 1000.0 - DEAR - lanes._SECONDS_PER_CLAIMED_JOB, 1000.0, memory.generation)
    assert memory.first_ask(wants(), 1000.0).learns_floors


def test_looking_is_dear_after_a_few_dear_looks_in_a_row() -> None:
    memory = looked(WORK, cost=DEAR, times=lanes._LOOKS_COMPARED - 1)
    look = memory.all_lanes(BOTH)
    memory.learn(look, {}, 0, 1001.0, 1001.0 + lanes._CHEAP_SECONDS / 2, memory.generation)
    for number in range(lanes._LOOKS_COMPARED):
        assert not memory.is_dear
        memory.learn(look, {}, 0, 1002.0 + number, 1002.0 + number + 2 * DEAR, memory.generation)
    assert memory.is_dear


def test_jobs_that_came_back_make_the_next_claim_a_full_look() -> None:
    memory = settled(WORK)
    memory.forget()
    ask = memory.first_ask(BOTH, BEGAN + 2 * DEAR)
    assert ask.is_full_look


@pytest.mark.parametrize("request_elsewhere", [wants("third"), wants(queues=("mail",))], ids=["kind", "queue"])
def test_a_claim_of_what_was_never_asked_for_is_a_full_look_however_dear(request_elsewhere: ClaimRequest) -> None:
    assert settled(WORK).first_ask(request_elsewhere, BEGAN + 2 * DEAR).is_full_look


def test_a_quick_ask_that_ran_into_its_share_asks_for_the_whole() -> None:
    memory = settled(WORK, OTHER)
    request = wants("work", "other", limit=1000)
    ask = Ask(
        [lanes.Probe(WORK, FLOOR, 100, is_share=True), lanes.Probe(OTHER, FLOOR, 100, is_share=True)],
        1000,
        is_full_look=False,
    )
    whole = memory.next_ask(request, ask, [WORK] * 100 + [OTHER] * 50)
    assert whole is not None
    assert not whole.is_full_look
    assert set(whole.fetches) == {1000}
    assert memory.next_ask(request, ask, [WORK] * 99) is None


def test_nothing_more_is_asked_after_a_full_look_or_when_nothing_more_is_wanted() -> None:
    memory = settled(WORK)
    full, quick = memory.all_lanes(wants()), memory.first_ask(wants(), BEGAN + 2 * DEAR)
    assert not quick.is_full_look
    assert memory.next_ask(wants(), full, [WORK] * 100) is None
    assert memory.next_ask(wants(limit=0), quick, [WORK] * 100) is None


def test_no_probe_reads_more_than_the_kind_s_limit() -> None:
    request = wants("work", "other", limit=50, limits={"work": 3})
    for ask in (Lanes().first_ask(request, 0.0), settled(WORK, OTHER).first_ask(request, BEGAN + 2 * DEAR)):
        assert {(probe.lane.kind, probe.fetch) for probe in ask.probes} == {("work", 3), ("other", 50)}


def test_floors_move_with_what_was_claimed_last_in_their_lane() -> None:
    memory = settled(WORK)
    later = Floor(FLOOR.run_at, UUID(int=9))
    quick = memory.first_ask(BOTH, BEGAN + 2 * DEAR)
    memory.learn(quick, {WORK: later}, 2, BEGAN + 2 * DEAR, BEGAN + 3 * DEAR, memory.generation)
    assert starts(memory.first_ask(BOTH, BEGAN + 4 * DEAR))[WORK] == later


def test_a_kind_that_was_at_its_limit_since_jobs_came_back_is_looked_for_when_it_has_room() -> None:
    memory = settled(WORK, OTHER)
    memory.forget()
    at = BEGAN + 2 * DEAR
    # A full look of another kind alone: this one had no room.
    memory.learn(memory.first_ask(wants("work"), at), {WORK: FLOOR}, 1, at, at, memory.generation)
    assert memory.first_ask(BOTH, at + 0.1).is_full_look
    survey = memory.start_survey(at + 0.1, is_idle=True)
    assert survey is not None
    answered(memory, survey, at + 0.2)
    assert not memory.first_ask(BOTH, at + 0.3).is_full_look, "a survey is of all kinds"


def test_an_ask_from_before_jobs_came_back_tells_nothing_about_them() -> None:
    memory = settled(WORK)
    look, generation = memory.all_lanes(wants()), memory.generation
    memory.forget()
    memory.learn(look, {WORK: FLOOR}, 1, 1000.0, 1000.0 + DEAR, generation)
    again = memory.first_ask(wants(), 1000.0 + DEAR)
    assert again.is_full_look
    assert starts(again)[WORK] == lanes._BEGINNING


def test_the_same_request_has_the_same_look() -> None:
    memory = Lanes()
    assert memory.all_lanes(wants()) is memory.all_lanes(wants())
    assert memory.all_lanes(wants(limit=7)) is not memory.all_lanes(wants())


CHEAP = lanes._CHEAP_SECONDS / 2


def glanced(memory: Lanes, request: ClaimRequest, claimed: int) -> Ask | None:
    """A glance that found so many, if there is one."""
    ask = memory.glance(request)
    if ask is not None:
        memory.learn(ask, {}, claimed, 1000.0, 1000.0, memory.generation)
    return ask


def test_a_glance_is_for_the_priorities_that_had_jobs_lately() -> None:
    request = wants("work", "other")
    assert Lanes().glance(request) is None, "nothing is known yet"
    memory = looked(WORK, cost=CHEAP)
    glance = memory.glance(request)
    assert glance is not None
    assert starts(glance) == {WORK: lanes._BEGINNING, OTHER: lanes._BEGINNING}
    assert not glance.is_full_look
    assert memory.glance(request) is glance, "the same question is put together once"
    assert memory.glance(wants("elsewhere")) is None


def test_a_glance_that_found_nothing_is_the_last_until_jobs_come_where_they_came_from_before() -> None:
    request, urgent = wants("work", "other"), Lane("default", 0, "work")
    memory = looked(WORK, cost=CHEAP)
    assert glanced(memory, request, 1) is not None
    assert glanced(memory, request, 0) is not None
    assert memory.glance(request) is None
    look = memory.first_ask(request, 1000.0)
    assert look.is_full_look
    memory.learn(look, {urgent: FLOOR}, 1, 1000.0, 1000.0, memory.generation)
    assert memory.glance(request) is None, "who guessed wrong does not guess at once again"
    memory.learn(look, {urgent: FLOOR}, 1, 1000.0, 1000.0, memory.generation)
    glance = memory.glance(request)
    assert glance is not None
    assert {lane.priority for lane in starts(glance)} == {0}


def test_while_looking_is_dear_a_glance_starts_from_the_floors() -> None:
    glance = looked(WORK, cost=DEAR).glance(wants())
    assert glance is not None
    assert starts(glance)[WORK] == FLOOR
