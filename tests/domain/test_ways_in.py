"""The number of jobs and the round-trip time decide whether they are inserted or copied into PostgreSQL."""

from datetime import timedelta

import pytest

from holdfast.domain.job import NewJob
from holdfast.domain.json_text import Json
from holdfast.store.postgres.enqueuing import Bulk, is_copy_faster


@pytest.mark.parametrize(
    ("jobs", "round_trip", "is_faster"),
    [
        (299, timedelta(0), False),
        (300, timedelta(0), True),
        (300, timedelta(microseconds=100), True),
        (300, timedelta(milliseconds=1), False),
        (1_000, timedelta(milliseconds=1), False),
        (3_000, timedelta(milliseconds=1), True),
        (10_000, timedelta(milliseconds=40), False),
        (100_000, timedelta(milliseconds=40), True),
    ],
)
def test_a_copy_is_faster_if_it_saves_more_than_its_round_trips_cost(
    jobs: int, round_trip: timedelta, is_faster: bool
) -> None:
    assert is_copy_faster(jobs, round_trip) is is_faster


def test_keys_are_never_copied() -> None:
    jobs = [NewJob(kind="work", payload=Json("{}"), key=str(number)) for number in range(1000)]
    assert not Bulk(jobs).is_worth_a_copy(timedelta(0))
