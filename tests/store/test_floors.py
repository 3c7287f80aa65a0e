"""Floors as plain values: which lanes a claim reads, where it starts in each, and what moves a floor."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from holdfast.store.floors import MARGIN, First, Floors, Lane, Position, looked
from tests.store_contract.steps import wants

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
WORK = Lane("default", False, 5, "work")
OTHER = Lane("default", False, 5, "other")
URGENT = Lane("default", False, 0, "work")
SUSPECT = Lane("default", True, 5, "work")
ELSEWHERE = Lane("mail", False, 5, "work")
BOTH = wants("work", "other")


def at(ago: timedelta, number: int = 1) -> Position:
    return Position(NOW - ago, UUID(int=number))


def having(*firsts: First, queues: tuple[str, ...] = ("default",)) -> Floors:
    floors = Floors()
    floors.looked(queues, firsts, NOW, floors.generation)
    return floors


def lane(number: int) -> Lane:
    return Lane("default", False, 5, f"kind {number:04}")


def test_floors_are_unknown_before_the_first_look_and_after_jobs_came_back() -> None:
    floors = Floors()
    assert not floors.has_looked(["default"])
    floors = having(First(WORK, at(HOUR)))
    assert floors.has_looked(["default"])
    assert not floors.has_looked(["default", "mail"])
    floors.forget()
    assert not floors.has_looked(["default"])
    assert floors.starts(wants()).lanes == []


def test_a_claim_reads_the_existing_wanted_lanes_most_urgent_first() -> None:
    firsts = [First(each, at(HOUR)) for each in (WORK, OTHER, SUSPECT, URGENT, ELSEWHERE)]
    floors = having(*firsts, queues=("default", "mail"))
    assert floors.starts(wants()).lanes == [URGENT, WORK]
    assert floors.starts(wants(suspects=True)).lanes == [SUSPECT]
    assert set(floors.starts(wants("work", "other", queues=("default", "mail"))).lanes) == {
        URGENT,
        WORK,
        OTHER,
        ELSEWHERE,
    }


def test_a_claim_starts_just_before_the_first_job_and_never_within_the_margin() -> None:
    floors = having(First(WORK, at(HOUR)), First(OTHER, at(-HOUR)))
    starts = dict(zip(floors.starts(BOTH).lanes, floors.starts(BOTH).floors, strict=True))
    assert at(2 * HOUR) < starts[WORK] < at(HOUR)
    assert starts[OTHER] == Position(NOW - MARGIN, UUID(int=0)), "a job of the future hides nothing before it"


def test_a_claim_sets_the_floor_for_the_next_one() -> None:
    floors = having(First(WORK, at(HOUR)))
    starts = floors.starts(BOTH)
    floors.left(starts, {WORK: at(HOUR / 2)})
    assert floors.starts(BOTH).floors == [at(HOUR / 2)]


def test_a_claim_that_began_before_a_look_moves_no_floor() -> None:
    floors = having(First(WORK, at(HOUR)))
    starts = floors.starts(BOTH)
    floors.looked(["default"], [First(WORK, at(2 * HOUR))], NOW, floors.generation)
    floors.left(starts, {WORK: at(HOUR / 2)})
    assert floors.starts(BOTH).floors[0] < at(2 * HOUR)


def test_a_look_that_began_before_jobs_came_back_is_ignored() -> None:
    floors = having(First(WORK, at(HOUR)))
    generation = floors.generation
    floors.forget()
    floors.looked(["default"], [First(WORK, at(HOUR))], NOW, generation)
    assert not floors.has_looked(["default"])


def test_a_look_changes_nothing_in_queues_that_it_did_not_read() -> None:
    floors = having(First(WORK, at(HOUR)), First(ELSEWHERE, at(HOUR)), queues=("default", "mail"))
    floors.looked(["default"], [], NOW, floors.generation)
    starts = floors.starts(wants(queues=("mail",)))
    assert (starts.lanes, starts.floors[0] < at(HOUR)) == ([ELSEWHERE], True)


def test_an_empty_lane_is_still_read_because_the_next_job_may_appear_there() -> None:
    floors = having(First(WORK, at(HOUR)), First(OTHER, at(HOUR)))
    assert floors.claimed(floors.starts(BOTH), {}, BOTH) is False
    assert set(floors.starts(BOTH).lanes) == {WORK, OTHER}
    floors.looked(["default"], [], NOW, floors.generation)
    assert set(floors.starts(BOTH).lanes) == {WORK, OTHER}


def test_with_many_lanes_a_claim_reads_the_earliest_jobs_first_and_other_lanes_when_these_are_empty() -> None:
    request = wants(*(lane(number).kind for number in range(200)), limit=10)
    floors = having(*(First(lane(number), at(HOUR - timedelta(seconds=number))) for number in range(200)))
    seen: list[Lane] = []
    more = True
    while more:
        starts = floors.starts(request)
        new = [each for each in starts.lanes if each not in seen]
        assert new == [lane(number) for number in range(len(seen), len(seen) + 50)]
        seen += new
        more = floors.claimed(starts, {}, request)
    assert len(seen) == 200


def test_with_many_empty_lanes_a_claim_reads_the_most_recently_used() -> None:
    request = wants(*(lane(number).kind for number in range(300)))
    floors = having(*(First(lane(number), at(HOUR)) for number in range(300)))
    floors.looked(["default"], [First(lane(7), at(HOUR))], NOW, floors.generation)
    starts = floors.starts(request)
    assert lane(7) in starts.lanes
    assert len(starts.lanes) <= 101


def test_a_claim_does_not_read_its_full_limit_from_each_of_many_lanes() -> None:
    kinds = [lane(number).kind for number in range(40)]
    floors = having(*(First(lane(number), at(HOUR)) for number in range(40)))
    starts = floors.starts(wants(*kinds, limit=200))
    assert len(starts.lanes) == 40
    assert starts.share * 40 <= 512
    assert floors.starts(wants("kind 0001", limit=200)).share == 200


def test_a_lane_that_returned_its_full_share_is_read_again() -> None:
    floors = having(First(WORK, at(HOUR)), First(OTHER, at(HOUR)))
    request = wants("work", "other", limit=1000)
    starts = floors.starts(request)
    assert starts.share == 1000
    assert floors.claimed(starts, {WORK: 1000}, request) is False, "work has all of its limit, and other is empty"
    many = wants("work", "other", limit=2000, limits={"work": 2000, "other": 1})
    floors = having(First(WORK, at(HOUR)), First(OTHER, at(HOUR)), First(URGENT, at(HOUR)))
    starts = floors.starts(many)
    assert starts.share < 2000
    assert floors.claimed(starts, {WORK: starts.share}, many) is True


def test_a_look_returns_when_the_first_job_and_the_first_suspect_may_run() -> None:
    firsts = [First(WORK, at(-HOUR)), First(OTHER, at(HOUR)), First(SUSPECT, at(-2 * HOUR))]
    answer = looked(firsts, ["work"], NOW)
    assert (answer.due_in, answer.suspect_due_in) == (HOUR, 2 * HOUR)
    assert looked(firsts, ["work", "other"], NOW).due_in == timedelta(0)
    assert looked([], ["work"], NOW).due_in is None
