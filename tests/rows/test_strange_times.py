"""Times in an application's table that Python cannot represent: before year 1, after year 9999, or infinite."""

from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast.domain.json_text import decode
from holdfast.store.contract import JobFilter
from holdfast.store.rows.mapping import Rows
from tests.rows.conftest import Place
from tests.rows.tables import migrate
from tests.store_contract.steps import wants

TASKS = Rows(
    name="tasks",
    table="task",
    kind="work",
    payload_columns=("id",),
    attempts=3,
    created_at="made",
    completed_at="done",
    error_code="code",
)
PAST = ("-infinity", "0044-03-15 BC", "2020-01-01Z")
FUTURE = ("infinity", "10000-01-01Z", "9999-12-31 23:59:59.999999Z")


@pytest.fixture
async def tasks(place: Place) -> Place:
    await place.connection.execute(
        "CREATE TABLE task (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, made timestamptz, done timestamptz, "
        "code text, run_at timestamptz)"
    )
    await migrate(place.connection, TASKS)
    return place


async def test_a_row_created_at_a_strange_time_is_claimed_and_shown_normally(tasks: Place) -> None:
    for made in [*PAST, *FUTURE]:
        await tasks.connection.execute(
            "INSERT INTO task (made, run_at) VALUES ($1::text::timestamptz, '2020-01-01Z')", made
        )
    rows = tasks.rows(TASKS)
    assert len(await rows.jobs.list(JobFilter(), 10)) == 6
    claimed = await rows.claim(wants(limit=10))
    assert [decode(each.payload)["id"] for each in claimed] == [1, 2, 3, 4, 5, 6]


async def test_a_row_due_at_a_strange_time_disturbs_no_look_and_no_count(tasks: Place) -> None:
    for run_at in FUTURE:
        await tasks.connection.execute("INSERT INTO task (made, run_at) VALUES (now(), $1::text::timestamptz)", run_at)
    rows = tasks.rows(TASKS)
    due_in = (await rows.look(["default"], ["work"])).due_in
    assert due_in is not None
    assert due_in > timedelta(days=365 * 1000)
    assert [each.run_at and each.run_at.year for each in await rows.jobs.list(JobFilter(), 10)] == [9999] * 3

    for run_at in PAST:
        await tasks.connection.execute("INSERT INTO task (made, run_at) VALUES (now(), $1::text::timestamptz)", run_at)
    assert (await rows.look(["default"], ["work"])).due_in == timedelta(0)
    (backlog,) = await rows.jobs.backlog()
    assert backlog.due == 3
    assert [decode(each.payload)["id"] for each in await rows.claim(wants(limit=10))] == [4, 5, 6]


async def test_local_times_behave_the_same(tasks: Place) -> None:
    await tasks.connection.execute("ALTER TABLE task ALTER made TYPE timestamp, ALTER run_at TYPE timestamp")
    await tasks.connection.execute("INSERT INTO task (made, run_at) VALUES ('0044-03-15 BC', '0044-03-15 BC')")
    await tasks.connection.execute("INSERT INTO task (made, run_at) VALUES (now(), 'infinity')")
    rows = tasks.rows(replace(TASKS, name="local"))
    assert len(await rows.claim(wants(limit=10))) == 1
    assert (await rows.look(["default"], ["work"])).due_in is not None
    assert len(await rows.jobs.list(JobFilter(), 10)) == 2
