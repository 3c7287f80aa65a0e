"""`rows check` names everything that a table lacks, and finds nothing after the printed migration has run."""

from dataclasses import replace

import pytest

from holdfast.store.rows.check import check_rows
from holdfast.store.rows.columns import read_columns
from holdfast.store.rows.mapping import Rows, RowStates
from holdfast.store.rows.migration import migration_sql
from tests.rows.conftest import Place
from tests.rows.tables import DELIVERIES_TABLE, DISPATCH, OUTBOX, OUTBOX_TABLE, RECEIPTS, migrate
from tests.store_contract.steps import wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


async def lines(place: Place, rows: Rows) -> list[str]:
    return [finding.line for finding in await check_rows(place.store, rows)]


async def test_a_missing_table_is_the_only_finding(place: Place) -> None:
    (finding,) = await check_rows(place.store, DISPATCH)
    assert finding.line == "there is no table 'notification_deliveries'"
    assert "create it" in finding.next_step


async def test_an_applications_table_lacks_lock_columns_until_the_printed_migration_has_run(place: Place) -> None:
    await place.connection.execute(DELIVERIES_TABLE)
    findings = await check_rows(place.store, DISPATCH)
    assert {finding.line for finding in findings} == {
        "column 'claim' (claim) is missing",
        "column 'fence' (fence) is missing",
        "column 'locked_until' (locked_until) is missing",
    }
    assert all("holdfast rows migration" in finding.next_step for finding in findings)
    await migrate(place.connection, DISPATCH, RECEIPTS)
    assert await lines(place, DISPATCH) == await lines(place, RECEIPTS) == []
    await migrate(place.connection, DISPATCH, RECEIPTS)


async def test_each_missing_index_is_reported(place: Place) -> None:
    await place.connection.execute(OUTBOX_TABLE)
    findings = await check_rows(place.store, OUTBOX)
    assert [finding.line.partition(":")[0] for finding in findings] == [
        "no index serves the claim",
        "no index finds when the next row is due",
        "no index serves the rescue",
    ]
    for finding in findings:
        await place.connection.execute(finding.next_step.removeprefix("create one: "))
    assert await lines(place, OUTBOX) == []


async def test_an_index_that_includes_finished_rows_does_not_serve_the_claim(place: Place) -> None:
    await place.connection.execute(OUTBOX_TABLE)
    await place.connection.execute(
        """
        CREATE INDEX every_row ON platform."OutboxEvent" ("eventType", priority, "availableAt", id);
        CREATE INDEX locks ON platform."OutboxEvent" ("lockedUntil")
        """
    )
    assert [line.partition(":")[0] for line in await lines(place, OUTBOX)] == [
        "no index serves the claim",
        "no index finds when the next row is due",
    ]


async def test_an_equivalent_index_of_the_application_is_accepted(deliveries: Place) -> None:
    await deliveries.connection.execute(
        """
        DROP INDEX holdfast_dispatch_claim;
        CREATE INDEX own ON notification_deliveries (created_at, id)
            WHERE status IN ('pending', 'retryable') AND completed_at IS NULL AND locked_until IS NULL
        """
    )
    assert await lines(deliveries, DISPATCH) == []


async def test_wrong_types_and_columns_that_refuse_null_are_found(deliveries: Place) -> None:
    await deliveries.connection.execute(
        """
        DROP INDEX holdfast_dispatch_due, holdfast_receipts_due;
        ALTER TABLE notification_deliveries ALTER COLUMN fence TYPE integer,
            ALTER COLUMN claim TYPE text, ALTER COLUMN attempt_count TYPE text,
            ALTER COLUMN locked_by SET NOT NULL, ALTER COLUMN next_attempt_at TYPE date
        """
    )
    found = await lines(deliveries, replace(DISPATCH, payload_query="", payload_columns=("nowhere",)))
    assert [line.partition(";")[0] for line in found] == [
        "column 'claim' (claim) is text",
        "column 'fence' (fence) is integer",
        "column 'attempt_count' (attempt) is text",
        "column 'next_attempt_at' (run_at) is date",
        "column 'nowhere' (payload_columns) is missing",
        "column 'locked_by' must allow null",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"due": "item.no_such_column"}, "no_such_column"),
        ({"due": "item.completed_at IS"}, "syntax error"),
        ({"payload_query": "SELECT 1 AS number FROM nowhere"}, "nowhere"),
    ],
)
async def test_sql_that_cannot_run_is_reported_in_one_line(
    deliveries: Place, change: dict[str, str], said: str
) -> None:
    (finding,) = await check_rows(deliveries.store, replace(DISPATCH, **change))  # type: ignore[arg-type]
    assert said in finding.line
    assert finding.next_step == "correct the mapping"


async def test_a_state_that_the_column_cannot_hold_is_found(outbox: Place) -> None:
    states = RowStates(column="status", ready="PENDING", running="BUSY", succeeded="SENT", failed="FAILED")
    (finding,) = await check_rows(outbox.store, replace(OUTBOX, states=states))
    assert "column 'status' (states) cannot be 'BUSY': invalid input value for enum" in finding.line
    assert "allow 'BUSY' in column 'status'" in finding.next_step


async def test_states_refused_by_constraints_or_column_lengths_are_found(deliveries: Place) -> None:
    await deliveries.connection.execute(
        """
        ALTER TABLE notification_deliveries ADD CONSTRAINT known CHECK (status <> 'invalid') NOT VALID,
            ADD CHECK (status <> 'sent' OR completed_at IS NULL), ADD CHECK (attempt_count < 9)
        """
    )
    assert await lines(deliveries, DISPATCH) == [
        "constraint 'known' does not allow 'invalid' in column 'status' (states)"
    ]
    await deliveries.connection.execute(
        """
        DROP INDEX holdfast_dispatch_claim, holdfast_dispatch_due, holdfast_receipts_claim, holdfast_receipts_due;
        ALTER TABLE notification_deliveries ALTER COLUMN status TYPE varchar(7), ALTER COLUMN locked_by TYPE varchar(20)
        """
    )
    assert await lines(deliveries, DISPATCH) == ["column 'locked_by' (locked_by) has room for 20 characters"]
    await deliveries.connection.execute("ALTER TABLE notification_deliveries ALTER COLUMN locked_by TYPE varchar(36)")
    assert await lines(deliveries, DISPATCH) == [
        "column 'status' (states) is character varying(7) and would store 'retryab' instead of 'retryable'",
        "constraint 'known' does not allow 'invalid' in column 'status' (states)",
    ]


async def test_a_column_that_may_be_misspelled_is_reported_with_the_existing_columns(place: Place) -> None:
    await place.connection.execute(DELIVERIES_TABLE)
    misspelt = replace(DISPATCH, attempt="attempts", error_message="reason", key="delivery")
    steps = {finding.line: finding.next_step for finding in await check_rows(place.store, misspelt)}
    assert steps["column 'fence' (fence) is missing"] == "run what `holdfast rows migration` prints"
    assert steps["column 'attempts' (attempt) is missing"] == (
        "correct `attempt` in the mapping (the table has: notification_event_id, attempt_count, "
        "receipt_attempt_count), or run what `holdfast rows migration` prints"
    )
    assert "last_error_message" in steps["column 'reason' (error_message) is missing"]
    assert steps["column 'delivery' (key) is missing"].endswith("or add the column in a migration of your own")


async def test_a_missing_run_at_column_is_added_and_existing_rows_are_due(place: Place) -> None:
    rows = Rows(name="mails", table="mail", kind="work", completed_at="done_at", error_code="code", attempts=3)
    await place.connection.execute(
        "CREATE TABLE mail (id bigint PRIMARY KEY, added timestamp); INSERT INTO mail VALUES (1)"
    )
    assert [line for line in await lines(place, rows) if "run_at" in line] == ["column 'run_at' (run_at) is missing"]
    async with place.store.acquired() as connection:
        printed = migration_sql(rows, await read_columns(connection, rows))
    for statement in printed.split(";")[:-1]:
        await place.connection.execute(statement)
    await place.connection.execute("INSERT INTO mail VALUES (2)")
    assert await lines(place, rows) == []
    assert len(await place.rows(rows).claim(wants())) == 2


async def test_the_rescue_uses_the_index_on_locks_despite_an_index_on_the_state(place: Place) -> None:
    """The index on the state contains every ready row too, because a row in any live state may have an old lock."""
    await place.connection.execute(DELIVERIES_TABLE)
    await place.connection.execute(
        """
        CREATE INDEX ON notification_deliveries (status, next_attempt_at);
        INSERT INTO notification_deliveries (notification_event_id) SELECT generate_series(1, 200);
        ANALYZE notification_deliveries
        """
    )
    states = RowStates(column="status", ready="pending", running="sending", succeeded="sent", failed="failed")
    rows = replace(DISPATCH, states=states, due="", order=())
    *unanalyzed, analyze, _ = rows.migration_sql().split(";")
    for statement in unanalyzed:
        await place.connection.execute(statement)
    assert await lines(place, rows) == []
    await place.connection.execute(analyze)
    assert await lines(place, rows) == []


async def test_an_existing_index_that_is_not_used_needs_statistics(deliveries: Place) -> None:
    await deliveries.connection.execute(
        """
        DROP INDEX holdfast_dispatch_claim;
        CREATE INDEX holdfast_dispatch_claim ON notification_deliveries (provider_ticket_id)
        """
    )
    (finding,) = await check_rows(deliveries.store, DISPATCH)
    said = 'holdfast_dispatch_claim exists, but PostgreSQL does not use it: run ANALYZE "notification_deliveries"'
    assert finding.next_step.startswith(said)


async def test_an_incomplete_index_must_be_rebuilt(deliveries: Place) -> None:
    await deliveries.connection.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'holdfast_dispatch_claim'::regclass"
    )
    (finding,) = await check_rows(deliveries.store, DISPATCH)
    assert finding.next_step.startswith("holdfast_dispatch_claim was not built completely: drop it, then create it")


async def test_rows_left_behind_by_another_worker_are_counted(outbox: Place) -> None:
    await outbox.connection.execute(
        """
        INSERT INTO platform."OutboxEvent" (id, "eventType", payload, status, "availableAt", "lockedUntil")
        SELECT gen_random_uuid(), 'work', '{}', 'PROCESSING', now(), until
        FROM unnest(ARRAY[NULL, NULL, now()]) AS until
        """
    )
    (finding,) = await check_rows(outbox.store, OUTBOX)
    assert finding.line.startswith("2 rows are 'PROCESSING' without a lock")
    await outbox.connection.execute(finding.next_step.partition("set them back: ")[2])
    assert await lines(outbox, OUTBOX) == []


async def test_a_text_key_needs_an_index_on_the_id(place: Place) -> None:
    rows = Rows(name="mails", table="mail", key="address", kind="mail.send", completed_at="done_at", error_code="code",
                attempts=3)  # fmt: skip
    await place.connection.execute(
        "CREATE TABLE mail (address text PRIMARY KEY, run_at timestamptz NOT NULL DEFAULT now())"
    )
    await migrate(place.connection, rows)
    (finding,) = await check_rows(place.store, rows)
    assert "job id" in finding.line
    await place.connection.execute(finding.next_step.removeprefix("create one: "))
    assert await lines(place, rows) == []
