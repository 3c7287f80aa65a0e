"""Tables that look as if they fitted: what would go wrong silently is refused, or found by `rows check`."""

import pytest

from holdfast.errors import SchemaMismatch
from holdfast.store.rows.check import check_rows
from holdfast.store.rows.mapping import Rows, RowStates
from tests.rows.conftest import Place
from tests.rows.tables import migrate
from tests.store_contract.steps import wants

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
