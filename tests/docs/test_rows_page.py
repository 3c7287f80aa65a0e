"""docs/rows.md is true: its tables and mappings can be checked, migrated and drained."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.store.rows.check import check_rows
from holdfast.store.rows.mapping import Rows
from tests.databases import Database, connected, opened_store
from tests.rows.tables import migrate

PAGE = (Path(__file__).parents[2] / "docs" / "rows.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_tables_and_mappings_of_the_page_work(database: Database) -> None:
    module: dict[str, Any] = {}
    exec(compile("\n".join(blocks("python")), "docs/rows.md", "exec"), module)  # noqa: S102
    app: Holdfast = module["app"]
    app.settings = app.settings.model_copy(update={"store": database.url})
    mappings: list[Rows] = [queue.rows for queue in app.row_queues]
    assert [rows.name for rows in mappings] == ["outbox", "dispatch", "receipts"]
    async with connected(database.url) as connection, opened_store(database.url) as store, app:
        for table in blocks("sql"):
            await connection.execute(table)
        said = [line.partition(": ")[2].partition(" →")[0] for line in blocks("console")[0].splitlines() if "→" in line]
        assert said == [finding.line for finding in await check_rows(store, module["DISPATCH"])]
        await migrate(connection, *mappings)
        assert [await check_rows(store, rows) for rows in mappings] == [[], [], []]
        await connection.execute(
            """
            INSERT INTO "OutboxEvent" ("id", "eventType", "payload", "availableAt", "createdAt")
            SELECT gen_random_uuid(), 'invoice.created', json_build_object('number', number),
                   now() - interval '1 day', now()
            FROM unnest(ARRAY[1, -1]) AS number;
            INSERT INTO device_installations VALUES ('a', 'token');
            INSERT INTO notification_events VALUES (1, 'tender');
            INSERT INTO notification_deliveries (notification_event_id, installation_id) VALUES (1, 'a')
            """
        )
        assert (await app.tick()).is_fine
        assert await _values(connection, 'SELECT "status"::text FROM "OutboxEvent" ORDER BY 1') == ["FAILED", "SENT"]
        assert await _values(connection, "SELECT status FROM notification_deliveries") == ["sent"]
        await connection.execute("UPDATE notification_deliveries SET provider_ticket_id = 'ticket'")
        await app.clock.advance(timedelta(minutes=1))
        assert (await app.tick()).is_fine
        assert await _values(connection, "SELECT status FROM notification_deliveries") == ["ok"]


async def _values(connection: "asyncpg.Connection[asyncpg.Record]", query: str) -> list[str]:
    return [row[0] for row in await connection.fetch(query)]
