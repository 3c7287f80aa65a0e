"""The chain and the chord of docs/celery.md run, each step in the transaction of the previous one."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import asyncpg
import pytest

from holdfast import JobState, Permanent
from holdfast.domain.outcome import Failed, Retried
from holdfast.types import JobFilter
from tests.databases import Database, connected
from tests.docs.pages import module_of
from tests.worker.harness import until, working

PAGE = (Path(__file__).parents[2] / "docs" / "celery.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)


@pytest.fixture
def page(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    monkeypatch.setenv("HOLDFAST_STORE", database.url)
    return module_of("celery.md", tmp_path)


async def make_tables(connection: asyncpg.Connection) -> None:
    for block in re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        await connection.execute(block)


async def test_the_chain_of_the_page_runs(database: Database, page: Any) -> None:  # noqa: ANN401
    async def shipped() -> list[object]:
        found = await page.app.jobs.list(JobFilter(kind="order.ship", state=JobState.SUCCEEDED), 10)
        return [job.result for job in found]

    async with connected(database.url) as connection, page.app:
        await connection.execute("CREATE TABLE orders (number integer, charged boolean DEFAULT false)")
        await connection.execute("INSERT INTO orders (number) VALUES (7)")
        async with working(page.app):
            await page.charge.enqueue(page.Order(7))
            await until(shipped, "the order is shipped")
        assert await shipped() == ["order 7 is on its way"]
        assert await connection.fetchval("SELECT charged FROM orders")


async def test_the_chord_of_the_page_hands_all_results_to_its_last_job(database: Database, page: Any) -> None:  # noqa: ANN401
    async with connected(database.url) as connection, page.app, working(page.app):
        await make_tables(connection)
        await page.start_report(connection, 1, 3)
        report = await page.app.wait_for("report.finish", "1")
        assert report.result == "600 lines; missing: nothing"
        assert report.payload == [{"number": n, "lines": 100 * n, "error": None} for n in (1, 2, 3)]


async def test_the_report_names_a_part_that_died(
    database: Database,
    page: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def count_lines(part: Any) -> int:  # noqa: ANN401
        if part.number == 2:
            raise Permanent("NO_DATA", "there is nothing to count")
        return 100 * int(part.number)

    monkeypatch.setattr(page, "count_lines", count_lines)
    async with connected(database.url) as connection, page.app, working(page.app):
        await make_tables(connection)
        await page.start_report(connection, 1, 3)
        report = await page.app.wait_for("report.finish", "1")
        assert report.result == "400 lines; missing: part 2 (NO_DATA)"

        dead = await page.app.jobs.list(JobFilter(kind="report.part", state=JobState.FAILED), 10)
        monkeypatch.undo()
        await page.app.retry([job.id for job in dead])
        await page.app.wait(dead[0].id)
        assert len(await page.app.jobs.list(JobFilter(kind="report.finish"), 10)) == 1


async def test_only_the_errors_that_the_page_names_are_retried(page: ModuleType) -> None:
    assert isinstance(page.app.failures.outcome_of(KeyError("number")), Failed)
    retried = page.app.failures.outcome_of(ConnectionResetError())
    assert isinstance(retried, Retried)
    assert retried.error.code == "NET"
