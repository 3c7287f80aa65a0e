"""Tables that only seem to fit: anything that would go wrong silently is refused, or found by `rows check`."""

from dataclasses import replace

import pytest

from holdfast.domain.errors import InvalidInput, SchemaMismatch
from holdfast.domain.job import JobState
from holdfast.domain.json_text import decode
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Finish, Renewal
from holdfast.store.rows.check import check_rows
from holdfast.store.rows.mapping import Rows, RowStates
from holdfast.store.rows.migration import index_name
from tests.rows.conftest import Place
from tests.rows.tables import migrate
from tests.store_contract.steps import LEASE, wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

STATES = RowStates(column="status", ready="new", succeeded="succeeded", failed="failed")
TASKS = Rows(name="tasks", table="task", kind="work", states=STATES, attempts=3, payload_columns=("id",))


async def tasks(place: Place, columns: str, rows: Rows = TASKS) -> list[str]:
    """Create a table of tasks with these extra columns and return the findings of the check."""
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


async def test_a_nullable_key_is_found(place: Place) -> None:
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
async def test_fixed_length_columns_keep_leases_and_states(place: Place, columns: str) -> None:
    await tasks(place, columns)
    await place.connection.execute("INSERT INTO task (id) VALUES ('12')")
    store = place.rows(TASKS)
    (leased,) = await store.claim(wants())
    (renewed,) = await store.renew([Renewal(leased.lease, LEASE)])
    assert renewed.fenced is Fenced.DONE
    assert await store.finish([Finish(leased.lease, Transition(Move.SUCCEED))]) == [Fenced.DONE]
    found = await store.jobs.get(leased.id)
    assert found is not None
    assert found.state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("locked_by varchar(20)", "column 'locked_by' (locked_by) has room for 20 characters"),
        (
            "status varchar(6) DEFAULT 'new'",
            "column 'status' (states) is character varying(6) and would store 'succee' instead of 'succeeded'",
        ),
        (
            "status char(6) DEFAULT 'new'",
            "column 'status' (states) is character(6) and would store 'succee' instead of 'succeeded'",
        ),
    ],
)
async def test_a_column_that_is_too_short_is_found_and_nothing_is_truncated(
    place: Place, columns: str, said: str
) -> None:
    assert await tasks(place, columns) == [said]
    await place.connection.execute("INSERT INTO task (id) VALUES (1)")
    store = place.rows(TASKS)
    with pytest.raises(InvalidInput, match="value too long"):
        await store.finish([Finish(each.lease, Transition(Move.SUCCEED)) for each in await store.claim(wants())])


async def test_a_nullable_time_is_found_unless_another_column_replaces_it(place: Place) -> None:
    found = await tasks(place, "run_at timestamptz; created_at timestamptz NOT NULL DEFAULT now()")
    assert found == ["column 'run_at' (run_at) may be null, and such a row is never claimed"]
    rows = replace(TASKS, run_at=("run_at", "created_at"))
    await place.connection.execute("DROP INDEX holdfast_tasks_claim")
    await migrate(place.connection, rows)
    assert await check_rows(place.store, rows) == []


@pytest.mark.parametrize(
    "due",
    [
        "item.expires_at > now()",
        "EXISTS (SELECT FROM generate_series(1, 9) AS known (id) WHERE known.id = item.id)",
        "item.expires_at::date > CURRENT_DATE",
        "item.expires_at IS NULL OR NOT (lower(item.status) IN ('old', 'it''s'))",
    ],
)
async def test_the_printed_indexes_can_be_created_for_any_due_condition(place: Place, due: str) -> None:
    rows = replace(TASKS, due=due)
    assert await tasks(place, "expires_at timestamptz DEFAULT now() + interval '1 day'", rows) == []
    await place.connection.execute("INSERT INTO task (id) VALUES (1)")
    assert len(await place.rows(rows).claim(wants())) == 1


async def test_the_printed_index_serves_an_enum_kind(place: Place) -> None:
    rows = replace(TASKS, kind=None, kind_column="kind")
    await place.connection.execute("CREATE TYPE kind AS ENUM ('work', 'other')")
    assert await tasks(place, "kind kind NOT NULL DEFAULT 'work'", rows) == []
    await place.connection.execute("INSERT INTO task (id, kind) VALUES (1, 'work'), (2, 'other'), (3, 'work')")
    store = place.rows(rows)
    (plan,) = await store.table.fetch(
        lambda sql: f"EXPLAIN (FORMAT JSON) {sql.claim(suspects=False)}",
        ["work", "unheard of"], [9, 9], [LEASE, LEASE], 9, None, "", None, None,
    )  # fmt: skip
    assert "(kind = " in plan[0]
    assert (await store.look(["default"], ["unheard of"])).due_in is None
    assert [decode(each.payload)["id"] for each in await store.claim(wants("work", "unheard of"))] == [1, 3]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("CREATE VIEW task AS SELECT 1 AS id", "'task' is a view, which is not supported"),
        (
            "CREATE TABLE task (id bigint) PARTITION BY RANGE (id)",
            "'task' is a partitioned table, which is not supported",
        ),
    ],
)
async def test_views_and_partitioned_tables_are_reported_as_unsupported(place: Place, made: str, said: str) -> None:
    await place.connection.execute(made)
    assert [finding.line for finding in await check_rows(place.store, TASKS)] == [said]


def test_mappings_with_the_same_long_prefix_get_different_indexes(server: object) -> None:
    names = [index_name(replace(TASKS, name="ä" * 60 + end), "suspect") for end in "ab"]
    assert len(set(names)) == 2
    assert max(len(name.encode()) for name in names) <= 63
