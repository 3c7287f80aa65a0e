"""Lanes, as plain values: when a claim looks at everything, and what it asks for when it does not."""

from dataclasses import replace
from uuid import UUID

import pytest

from holdfast.store.contract import ClaimRequest
from holdfast.store.postgres import lanes
from holdfast.store.postgres.lanes import Ask, Floor, Lane, Lanes
from tests.postgres.looks import DEAR, DUTY, FLOOR, OTHER, WORK, looked, starts
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


def test_a_dear_look_is_followed_by_quick_asks_from_the_floors() -> None:
    memory = looked(WORK, cost=DEAR)
    ask = memory.first_ask(wants("work", "other"), 1000.0 + 0.99 * DUTY)
    assert not ask.is_full_look
    # All lanes of that priority, so that its kinds stay in order among each other.
    assert starts(ask) == {WORK: FLOOR, OTHER: lanes._BEGINNING}


def test_floors_are_not_read_before_looking_is_dear() -> None:
    memory = Lanes()
    for _ in range(lanes._LOOKS_COMPARED):
        ask = memory.first_ask(wants(), 1000.0)
        assert not ask.learns_floors
        memory.learn(ask, {WORK: FLOOR}, 1, 1000.0 - DEAR - lanes._SECONDS_PER_CLAIMED_JOB, 1000.0, memory.generation)
    first = memory.first_ask(wants(), 1000.0)
    assert (first.learns_floors, starts(first)) == (True, {WORK: lanes._BEGINNING})
    memory.learn(first, {WORK: FLOOR}, 1, 1000.0, 1000.0, memory.generation)
    assert starts(memory.first_ask(wants(), 1000.0)) == {WORK: FLOOR}


def test_the_first_looks_do_not_count_and_then_the_cheapest_of_the_last_does() -> None:
    memory = looked(WORK, cost=DEAR, times=lanes._LOOKS_COMPARED - 1)
    assert memory.first_ask(wants(), 1000.0).is_full_look
    ask = replace(memory.all_lanes(wants()), learns_floors=True)
    memory.learn(ask, {}, 0, 1001.0, 1001.0 + lanes._CHEAP_SECONDS / 2, memory.generation)
    for number in range(lanes._LOOKS_COMPARED):
        assert memory.first_ask(wants(), 1002.0 + number).is_full_look
        memory.learn(ask, {}, 0, 1002.0 + number, 1002.0 + number + 2 * DEAR, memory.generation)
    assert not memory.first_ask(wants(), 1002.0 + number + 2 * DEAR).is_full_look


def test_jobs_that_came_back_make_the_next_claim_a_full_look() -> None:
    memory = looked(WORK, cost=DEAR)
    memory.forget()
    ask = memory.first_ask(wants(), 1000.0)
    assert ask.is_full_look


@pytest.mark.parametrize("request_elsewhere", [wants("other"), wants(queues=("mail",))], ids=["kind", "queue"])
def test_a_claim_without_a_known_lane_is_a_full_look_however_dear(request_elsewhere: ClaimRequest) -> None:
    memory = looked(WORK, cost=DEAR)
    assert memory.first_ask(request_elsewhere, 1000.0).is_full_look


def test_a_look_that_found_nothing_keeps_the_lanes_that_are_known() -> None:
    memory = looked(WORK, OTHER, cost=DEAR)
    memory.learn(memory.all_lanes(wants("work", "other")), {}, 0, 1000.0, 1000.0 + DEAR, memory.generation)
    assert set(starts(memory.first_ask(wants("work", "other"), 1000.0 + DEAR))) == {WORK, OTHER}


def test_a_quick_ask_that_ran_into_its_share_asks_for_the_whole() -> None:
    memory = looked(WORK, OTHER, cost=DEAR)
    request = wants("work", "other", limit=1000)
    ask = Ask(
        [lanes.Probe(WORK, FLOOR, 100, is_share=True), lanes.Probe(OTHER, FLOOR, 100, is_share=True)],
        1000,
        is_full_look=False,
    )
    whole = memory.next_ask(request, ask, [WORK] * 100 + [OTHER] * 50)
    assert whole is not None
    assert [probe.fetch for probe in whole.probes] == [1000, 1000]
    assert memory.next_ask(request, ask, [WORK] * 99) is None


def test_nothing_more_is_asked_after_a_full_look_or_when_nothing_more_is_wanted() -> None:
    memory = looked(WORK, cost=DEAR)
    full, quick = memory.all_lanes(wants()), memory.first_ask(wants(), 1000.0)
    assert memory.next_ask(wants(), full, [WORK] * 100) is None
    assert memory.next_ask(wants(limit=0), quick, [WORK] * 100) is None


def test_no_probe_reads_more_than_the_kind_s_limit() -> None:
    request = wants("work", "other", limit=50, limits={"work": 3})
    for ask in (Lanes().first_ask(request, 0.0), looked(WORK, OTHER, cost=DEAR).first_ask(request, 1000.0)):
        assert {(probe.lane.kind, probe.fetch) for probe in ask.probes} == {("work", 3), ("other", 50)}


def test_floors_move_with_what_was_claimed_last_in_their_lane() -> None:
    memory = looked(WORK, cost=DEAR)
    later = Floor(FLOOR.run_at, UUID(int=9))
    quick = memory.first_ask(wants(), 1000.0)
    memory.learn(quick, {WORK: later}, 2, 1000.0, 1000.001, memory.generation)
    assert starts(memory.first_ask(wants(), 1000.0)) == {WORK: later}


def test_a_kind_that_was_at_its_limit_since_everything_was_looked_at_is_looked_for_when_it_has_room() -> None:
    memory = looked(WORK, OTHER, cost=DEAR)
    memory.forget()
    # A full look of another kind alone: this one had no room.
    memory.learn(memory.all_lanes(wants("work")), {WORK: FLOOR, OTHER: FLOOR}, 1, 1000.0, 1000.1, memory.generation)
    assert not memory.first_ask(wants("work"), 1000.2).is_full_look
    assert memory.first_ask(wants("work", "other"), 1000.2).is_full_look


def test_an_ask_from_before_jobs_came_back_tells_nothing_about_them() -> None:
    memory = looked(WORK, cost=DEAR)
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
