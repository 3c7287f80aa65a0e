"""A claim, a rescue and the query for the next due row use an index, however many rows there are."""

import json
from datetime import timedelta
from uuid import uuid4

import pytest

from holdfast.domain.claim import new_claim
from holdfast.store.contract import Canceling
from holdfast.store.rows import rare_sql
from holdfast.store.rows.access import Choose, RowTable
from holdfast.store.rows.check import check_rows
from holdfast.store.rows.columns import read_columns
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.migration import migration_sql
from holdfast.store.rows.reader import _backlog, show_one
from tests.rows.conftest import Place
from tests.rows.tables import DISPATCH, OUTBOX
from tests.store_contract.steps import HOLDER, wants

pytestmark = [pytest.mark.long, pytest.mark.parametrize("server", ["embedded-18"], indirect=True)]

MANY = 50_000
# Ten rows, and the cost of changing them in six indexes. A scan of all ready rows would read thousands of blocks.
AT_MOST = 400

_FILL_DELIVERIES = """
INSERT INTO notification_deliveries (notification_event_id, installation_id, status, next_attempt_at, completed_at,
                                     locked_until, locked_by, claim, created_at)
SELECT number, 'device', kind.status, now() + kind.next_attempt, kind.completed_at, now() + kind.locked, 'somebody',
       gen_random_uuid(), now() - interval '1 day' + number * interval '1 millisecond'
FROM generate_series(1, $1::integer) AS number
CROSS JOIN LATERAL (
    SELECT * FROM (VALUES ('failed', NULL::interval, now(), NULL::interval), ('sent', NULL, NULL, NULL),
                          ('pending', NULL, NULL, interval '1 hour'), ('pending', NULL, NULL, NULL))
        AS kind (status, next_attempt, completed_at, locked) OFFSET number % 4 LIMIT 1
) AS kind
"""
_FILL_DELIVERIES_THAT_ARE_OVER = """
INSERT INTO notification_deliveries (status, completed_at) SELECT 'ok', now() FROM generate_series(1, $1::integer)
"""
_FILL_OUTBOX = """
INSERT INTO platform."OutboxEvent" (id, "eventType", payload, status, "availableAt", "lockedUntil", claim)
SELECT gen_random_uuid(), kind.type, '{}', kind.status::"OutboxStatus", now() + kind.later,
       now() + kind.locked, gen_random_uuid()
FROM generate_series(1, $1::integer) AS number
CROSS JOIN LATERAL (
    SELECT * FROM (VALUES ('work', 'SENT', interval '-1 day', NULL::interval), ('work', 'PENDING', '1 hour', NULL),
                          ('other', 'PENDING', '-1 day', NULL), ('work', 'PROCESSING', '-1 day', interval '1 hour'),
                          ('work', 'PENDING', '-1 day', NULL))
        AS kind (type, status, later, locked) OFFSET number % 5 LIMIT 1
) AS kind
"""


async def _read(place: Place, rows: Rows, choose: Choose, *arguments: object) -> tuple[str, int]:
    """Return the plan and the number of blocks it read."""
    table = RowTable(place.store, rows)
    explained = await table.fetch(
        lambda sql: f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {choose(sql)}", *arguments
    )
    (plan,) = json.loads(explained[0][0])
    return json.dumps(plan), plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]


@pytest.mark.parametrize("analyzed", ["with all rows", "never", "while nothing was ready"])
async def test_the_deliveries_are_read_by_index(deliveries: Place, analyzed: str) -> None:
    await deliveries.connection.execute("ALTER TABLE notification_deliveries SET (autovacuum_enabled = off)")
    if analyzed == "while nothing was ready":
        await deliveries.connection.execute(_FILL_DELIVERIES_THAT_ARE_OVER, MANY)
        await deliveries.connection.execute("VACUUM ANALYZE notification_deliveries")
        assert await check_rows(deliveries.store, DISPATCH) == []
    await deliveries.connection.execute(_FILL_DELIVERIES, MANY)
    if analyzed == "with all rows":
        await deliveries.connection.execute("VACUUM ANALYZE notification_deliveries")
    kinds = ["push.send"]
    claim = await _read(
        deliveries, DISPATCH, lambda sql: sql.claim(suspects=False),
        kinds, [10], [timedelta(minutes=1)], 10, new_claim(HOLDER), str(HOLDER), None, None,
    )  # fmt: skip
    due = await _read(deliveries, DISPATCH, lambda sql: sql.look(), kinds, None, None)
    rescue = await _read(deliveries, DISPATCH, lambda sql: sql.rescue, 10, [], None, None, None)
    backlog, _ = await _read(deliveries, DISPATCH, _backlog)
    assert "Seq Scan" not in backlog
    for (plan, blocks), index in zip(
        (claim, due, rescue), ("dispatch_claim", "dispatch_due", "deliveries_locks"), strict=True
    ):
        assert index in plan
        assert "Seq Scan" not in plan
        assert blocks < AT_MOST


async def test_the_outbox_is_read_by_index_and_skips_other_kinds(outbox: Place) -> None:
    await outbox.connection.execute(_FILL_OUTBOX, MANY)
    await outbox.connection.execute('VACUUM ANALYZE platform."OutboxEvent"')
    kinds = ["work", "unheard of"]
    for suspects, index in ((False, "outbox_claim"), (True, "outbox_suspect")):
        plan, blocks = await _read(
            outbox, OUTBOX, lambda sql, suspects=suspects: sql.claim(suspects=suspects),  # type: ignore[misc]
            kinds, [10, 10], [timedelta(minutes=1)] * 2, 10, new_claim(HOLDER), str(HOLDER), None, None,
        )  # fmt: skip
        assert index in plan
        assert "Seq Scan" not in plan
        assert blocks < AT_MOST
    due = await _read(outbox, OUTBOX, lambda sql: sql.look(), kinds, None, None)
    rescue = await _read(outbox, OUTBOX, lambda sql: sql.rescue, 10, [], None, None, None)
    backlog, _ = await _read(outbox, OUTBOX, _backlog)
    assert "Seq Scan" not in backlog
    for (plan, blocks), index in zip((due, rescue), ("outbox_due", "OutboxEvent_locks"), strict=True):
        assert index in plan
        assert blocks < AT_MOST


@pytest.mark.parametrize(
    ("key_type", "key"), [("integer", "number"), ("uuid", "gen_random_uuid()"), ("text", "'mail-' || number")]
)
async def test_a_row_is_found_by_the_id_of_its_job(place: Place, key_type: str, key: str) -> None:
    rows = Rows(name="letters", table="letter", kind="work", completed_at="done_at", error_code="code", attempts=3)
    columns = f"id {key_type} PRIMARY KEY, done_at timestamptz, code text, run_at timestamptz NOT NULL DEFAULT now()"
    await place.connection.execute(f"CREATE TABLE letter ({columns})")
    for statement in migration_sql(rows, await read_columns(place.connection, rows)).split(";")[:-1]:
        await place.connection.execute(statement)
    await place.connection.execute(f"INSERT INTO letter (id) SELECT {key} FROM generate_series(1, {MANY}) AS number")
    await place.connection.execute("VACUUM ANALYZE letter")
    store = place.rows(rows)
    claimed = await store.claim(wants(limit=10))
    leases = ([each.id for each in claimed], [each.lease.claim for each in claimed])
    renewal = await _read(place, rows, lambda sql: sql.renew, *leases, [timedelta(minutes=1)] * 10)
    cancel = await _read(place, rows, rare_sql.cancel, [each.id for each in claimed])
    shown = await _read(place, rows, lambda sql: show_one(sql, "'null'"), claimed[0].id)
    for plan, blocks in (renewal, cancel, shown):
        assert "Seq Scan" not in plan
        assert blocks < AT_MOST
    assert await store.cancel([uuid4()]) == [Canceling.UNKNOWN]
