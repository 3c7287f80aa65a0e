"""Tables that look as if they fitted: what would go wrong silently is refused, or found by `rows check`."""

from dataclasses import replace

import pytest

from holdfast.errors import InvalidInput, SchemaMismatch
from holdfast.job import JobState
from holdfast.lifecycle import Event, Transition
from holdfast.store.contract import Fenced, Finish, Renewal
from holdfast.store.rows.check import check_rows
from holdfast.store.rows.mapping import Rows, RowStates
from tests.rows.conftest import Place
from tests.rows.tables import migrate
from tests.store_contract.steps import LEASE, wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

STATES = RowStates(column="status", ready="new", succeeded="succeeded", failed="failed")
TASKS = Rows(name="tasks", table="task", kind="work", states=STATES, attempts=3, payload_columns=("id",))


async def tasks(place: Place, columns: str, rows: Rows = TASKS) -> list[str]:
    """A table of tasks with these columns besides; what the check finds wrong with it."""
    given = [column.strip() for column in columns.split(";")]
    own = {
        "id": "id bigint PRIMARY KEY",
        "status": "status text NOT NULL DEFAULT 'new'",
        "run_at": "run_at timestamptz NOT NULL DEFAULT now() - interval '1 minute'",
    }
    named = {column.split()[0] for column in given}
    columns = ", ".join([*(text for name, text in own.items() if name not in named), *given])
    await place.connection.execute(f"CREATE TABLE task ({columns})")
    await migrate(place.connection, rows)
    return [finding.line for finding in await check_rows(place.store, rows)]


@pytest.mark.parametrize(
    "unique",
    ["PRIMARY KEY (shop, id)", "UNIQUE (id, shop)", "EXCLUDE (id WITH =) WHERE (shop = 1)"],
)
async def test_a_key_that_is_not_unique_is_refused_before_any_row_is_claimed(place: Place, unique: str) -> None:
    found = await tasks(place, f"shop integer; id bigint NOT NULL; {unique}")
    assert found == ["column 'id' (key) is not unique by itself"]
    with pytest.raises(SchemaMismatch, match="the key 'id' is not unique"):
        await place.rows(TASKS).claim(wants())


async def test_a_key_that_may_be_null_is_found(place: Place) -> None:
    assert await tasks(place, "id bigint UNIQUE") == ["column 'id' (key) may be null, and such a row is never claimed"]


@pytest.mark.parametrize(
    "columns",
    [
        "id char(26) PRIMARY KEY",
        "locked_by char(36)",
        "locked_by char(40)",
        "locked_by uuid",
        "status char(12) DEFAULT 'new'",
    ],
)
async def test_columns_of_fixed_length_keep_leases_and_states(place: Place, columns: str) -> None:
    await tasks(place, columns)
    await place.connection.execute("INSERT INTO task (id) VALUES ('12')")
    store = place.rows(TASKS)
    (leased,) = await store.claim(wants())
    (renewed,) = await store.renew([Renewal(leased.lease, LEASE)])
    assert renewed.fenced is Fenced.DONE
    assert await store.finish([Finish(leased.lease, Transition(Event.SUCCEED))]) == [Fenced.DONE]
    found = await store.jobs.get(leased.id)
    assert found is not None
    assert found.state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("locked_by varchar(20)", "column 'locked_by' (locked_by) has room for 20 characters"),
        (
            "status varchar(6) DEFAULT 'new'",
            "column 'status' (states) is character varying(6) and would keep 'succee' of 'succeeded'",
        ),
        (
            "status char(6) DEFAULT 'new'",
            "column 'status' (states) is character(6) and would keep 'succee' of 'succeeded'",
        ),
    ],
)
async def test_a_column_without_room_is_found_and_nothing_is_cut(place: Place, columns: str, said: str) -> None:
    assert await tasks(place, columns) == [said]
    await place.connection.execute("INSERT INTO task (id) VALUES (1)")
    store = place.rows(TASKS)
    with pytest.raises(InvalidInput, match="value too long"):
        await store.finish([Finish(each.lease, Transition(Event.SUCCEED)) for each in await store.claim(wants())])


async def test_a_time_that_may_be_null_is_found_unless_another_column_steps_in(place: Place) -> None:
    found = await tasks(place, "run_at timestamptz; created_at timestamptz NOT NULL DEFAULT now()")
    assert found == ["column 'run_at' (run_at) may be null, and such a row is never claimed"]
    rows = replace(TASKS, run_at=("run_at", "created_at"))
    await place.connection.execute("DROP INDEX holdfast_tasks_claim")
    await migrate(place.connection, rows)
    assert await check_rows(place.store, rows) == []
