"""`rows check`: it names everything that a table lacks, and nothing once the printed migration has run."""

from dataclasses import replace

import pytest

from holdfast.store.rows.check import check_rows
from holdfast.store.rows.mapping import Rows, RowStates
from tests.rows.conftest import Place
from tests.rows.tables import DELIVERIES_TABLE, DISPATCH, OUTBOX, OUTBOX_TABLE, RECEIPTS, migrate

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


async def lines(place: Place, rows: Rows) -> list[str]:
    return [finding.line for finding in await check_rows(place.store, rows)]


async def test_a_table_that_is_not_there_is_the_only_finding(place: Place) -> None:
    (finding,) = await check_rows(place.store, DISPATCH)
    assert finding.line == "there is no table 'notification_deliveries'"
    assert "create it" in finding.next_step


async def test_the_table_of_an_application_lacks_its_lock_and_after_the_printed_migration_nothing(place: Place) -> None:
    await place.connection.execute(DELIVERIES_TABLE)
    findings = await check_rows(place.store, DISPATCH)
    assert {finding.line for finding in findings} == {
        "column 'fence' (fence) is missing",
        "column 'locked_until' (locked_until) is missing",
    }
    assert all("holdfast rows migration" in finding.next_step for finding in findings)
    await migrate(place.connection, DISPATCH, RECEIPTS)
    assert await lines(place, DISPATCH) == await lines(place, RECEIPTS) == []
    await migrate(place.connection, DISPATCH, RECEIPTS)


async def test_each_index_is_missed(place: Place) -> None:
    await place.connection.execute(OUTBOX_TABLE)
    findings = await check_rows(place.store, OUTBOX)
    assert [finding.line.partition(":")[0] for finding in findings] == [
        "no index serves the claim",
        "no index tells when the next row is due",
        "no index serves the rescue",
    ]
    for finding in findings:
        await place.connection.execute(finding.next_step.removeprefix("create one: "))
    assert await lines(place, OUTBOX) == []


async def test_an_index_that_has_the_finished_rows_too_does_not_serve_the_claim(place: Place) -> None:
    await place.connection.execute(OUTBOX_TABLE)
    await place.connection.execute(
        """
        CREATE INDEX every_row ON platform."OutboxEvent" ("eventType", priority, "availableAt", id);
        CREATE INDEX locks ON platform."OutboxEvent" ("lockedUntil")
        """
    )
    assert [line.partition(":")[0] for line in await lines(place, OUTBOX)] == [
        "no index serves the claim",
        "no index tells when the next row is due",
    ]


async def test_an_index_of_the_application_s_own_is_as_good_as_ours(deliveries: Place) -> None:
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
        ALTER TABLE notification_deliveries ALTER COLUMN fence TYPE integer, ALTER COLUMN attempt_count TYPE text,
            ALTER COLUMN locked_by SET NOT NULL, ALTER COLUMN next_attempt_at TYPE date
        """
    )
    found = await lines(deliveries, replace(DISPATCH, payload_query="", payload_columns=("nowhere",)))
    assert [line.partition(";")[0] for line in found] == [
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
async def test_sql_that_cannot_run_is_told_in_one_line(deliveries: Place, change: dict[str, str], said: str) -> None:
    (finding,) = await check_rows(deliveries.store, replace(DISPATCH, **change))  # type: ignore[arg-type]
    assert said in finding.line
    assert finding.next_step == "correct the mapping"


async def test_a_state_that_the_column_cannot_have_is_found(outbox: Place) -> None:
    states = RowStates(column="status", ready="PENDING", running="BUSY", succeeded="SENT", failed="FAILED")
    (finding,) = await check_rows(outbox.store, replace(OUTBOX, states=states))
    assert "BUSY" in finding.line


async def test_a_text_key_wants_an_index_on_the_id(place: Place) -> None:
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
