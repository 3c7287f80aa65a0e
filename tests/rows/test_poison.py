"""A row that cannot be claimed, or whose payload cannot be read, does not delay other rows."""

from dataclasses import replace

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import JobState
from holdfast.domain.json_text import decode
from holdfast.store.contract import JobFilter
from holdfast.store.rows.mapping import Rows, RowStates
from tests.rows.conftest import Place
from tests.rows.tables import migrate
from tests.store_contract.steps import wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

TASKS = Rows(
    name="tasks",
    table="task",
    kind="work",
    payload_query="SELECT item.number::integer AS number",
    states=RowStates(column="status", ready="new", running="busy", succeeded="done", failed="failed"),
    attempts=3,
    error_code="code",
    error_message="message",
)
UNREADABLE = (2, 3, 17)


@pytest.fixture
async def tasks(place: Place) -> Place:
    """A table of twenty tasks, some of them without a number."""
    await place.connection.execute(
        """
        CREATE TABLE task (id bigint PRIMARY KEY, number text NOT NULL, status text NOT NULL DEFAULT 'new',
                           run_at timestamptz NOT NULL)
        """
    )
    await migrate(place.connection, TASKS)
    await place.connection.execute(
        """
        INSERT INTO task (id, number, run_at)
        SELECT id, CASE WHEN id = ANY ($1) THEN 'none' ELSE id::text END, holdfast.now() - interval '1 hour'
        FROM generate_series(1, 20) AS id
        """,
        UNREADABLE,
    )
    return place


async def drained(place: Place, rows: Rows, limit: int) -> list[int]:
    store, numbers = place.rows(rows), []
    while leased := await store.claim(wants(limit=limit)):
        numbers += [decode(each.payload)["number"] for each in leased]
    return numbers


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_an_unreadable_payload_fails_only_its_own_row(tasks: Place, limit: int) -> None:
    expected = [number for number in range(1, 21) if number not in UNREADABLE]
    assert await drained(tasks, TASKS, limit) == expected
    failed = await tasks.connection.fetch("SELECT id, code, message, locked_by FROM task WHERE status = 'failed'")
    assert {row["id"] for row in failed} == set(UNREADABLE)
    assert {row["code"] for row in failed} == {"PAYLOAD_UNREADABLE"}
    assert all("invalid input syntax for type integer" in row["message"] for row in failed)
    assert not any(row["locked_by"] for row in failed)


async def test_a_row_with_an_unreadable_payload_can_still_be_shown(tasks: Place) -> None:
    reader = tasks.rows(TASKS).jobs
    shown = await reader.list(JobFilter(), 100)
    assert len(shown) == 20
    assert {(job := await reader.get(each.id)) and job.state for each in shown} == {JobState.READY}


@pytest.mark.parametrize(
    "refusal",
    [
        "ALTER TABLE task ADD CHECK (id NOT IN (1, 2, 3, 9) OR attempt < 1)",
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = 'P0001'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON task FOR EACH ROW WHEN (OLD.id IN (1, 2, 3, 9))
            EXECUTE FUNCTION refuse()
        """,
    ],
    ids=["check", "trigger"],
)
@pytest.mark.parametrize("limit", [2, 100])
async def test_a_row_that_cannot_be_claimed_is_skipped(tasks: Place, refusal: str, limit: int) -> None:
    rows = replace(TASKS, payload_query="", payload_columns=("id",))
    await tasks.connection.execute(refusal)
    store, claimed = tasks.rows(rows), []
    while leased := await store.claim(wants(limit=limit)):
        claimed += [decode(each.payload)["id"] for each in leased]
    assert claimed == [number for number in range(1, 21) if number not in (1, 2, 3, 9)]
    assert (await store.look(["default"], ["work"])).due_in is None


async def test_a_table_that_refuses_every_claim_raises_an_error(tasks: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.rows.claim._MOST_REFUSALS", 5)
    await tasks.connection.execute("ALTER TABLE task ADD CHECK (attempt < 1)")
    with pytest.raises(InvalidInput, match="the table refused the change"):
        await tasks.rows(TASKS).claim(wants(limit=3))


async def test_a_skipped_row_gets_another_chance(tasks: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.rows.claim._LEFT_ALONE_SECONDS", 0)
    await tasks.connection.execute("ALTER TABLE task ADD CONSTRAINT untouched CHECK (id <> 1 OR attempt < 1)")
    store = tasks.rows(TASKS)
    assert len(await store.claim(wants(limit=4))) == 1
    await tasks.connection.execute("ALTER TABLE task DROP CONSTRAINT untouched")
    (leased,) = await store.claim(wants(limit=1))
    assert decode(leased.payload) == {"number": 1}
