"""docs/events.md is true: its code, its SQL, its commands and its table of patterns."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, JobState
from holdfast.domain.event import patterns_of
from tests.databases import Database, connected

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_code_and_the_sql_of_the_page(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    page: dict[str, Any] = {"__name__": "page"}
    exec("\n".join(blocks("python")), page)  # noqa: S102
    app: Holdfast = page["app"]
    app.settings = app.settings.changed(store=database.url, rabbitmq_url="amqp://guest:guest@127.0.0.1:1/")
    async with app, connected(database.url) as connection:
        await app.declare()
        await connection.execute("CREATE TABLE invoice AS SELECT 17 AS number, false AS paid")
        await page["pay"](connection, 17)
        assert capsys.readouterr().out == "['book_invoice', 'relay.events', 'send_receipt']\n"
        assert await connection.fetchval("SELECT paid FROM invoice")
        again = await app.publish("invoice.paid", page["Paid"](17), key="invoice-17")
        assert again.new_ids == []
        assert (await app.tick()).is_fine
        counts = await app.jobs.count()
        assert (counts[JobState.SUCCEEDED], counts[JobState.READY]) == (2, 1), "the relay's waits for its broker"
        assert re.fullmatch(r"[0-9a-f-]{36} invoice\.paid 20\d\d-\S+ \S+ 17\n", capsys.readouterr().out)
        (sql,) = blocks("sql")
        assert len(await connection.fetch(sql)) == 3
        parameters = await connection.fetchval(
            "SELECT proargnames[1:pronargs] FROM pg_proc WHERE oid = 'holdfast.publish'::regproc"
        )
    said = re.search(r"^Its parameters are (.*?)\.\s+Later", PAGE, re.MULTILINE | re.DOTALL)
    assert said is not None
    assert re.findall(r"`(\w+)`", said[1]) == parameters


def test_the_table_of_patterns_is_true() -> None:
    (meaning,) = re.findall(r"^\| `invoice\.\*` \| .*: (.*) \|$", PAGE, re.MULTILINE)
    types = [re.findall(r"`(\S+)`", part) for part in meaning.split(", not ")]
    assert types == [["invoice.paid", "invoice.paid.late"], ["invoice", "invoices.paid"]]
    assert [["invoice.*" in patterns_of(type) for type in part] for part in types] == [[True, True], [False, False]]


@pytest.mark.long
@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_commands_of_the_page(database: Database) -> None:
    async with connected(database.url) as connection:
        await connection.execute(
            "INSERT INTO holdfast.subscription VALUES ('book_order', 'order.*', 'default', 5, NULL, now(), now())"
        )
        await connection.execute("SELECT holdfast.publish('order.paid', '{}')")
    environment = {**os.environ, "HOLDFAST_STORE": database.url}
    for line in blocks("console")[0].strip().splitlines():
        command = shlex.split(line.removeprefix("$ "))
        done = subprocess.run(  # noqa: ASYNC221 - nothing else happens in this test
            [sys.executable, "-m", "holdfast", *command[1:]], env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, ""), line
        assert re.search(r"book_order|archive\.store|^1 canceled$", done.stdout), line
    async with connected(database.url) as connection:
        rows = await connection.fetch("SELECT name, pattern, queue FROM holdfast.subscription")
    assert [tuple(row) for row in rows] == [("archive.store", "*", "slow")]
