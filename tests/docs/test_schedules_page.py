"""docs/schedules.md is true: its code, its commands, its table of clock jumps and its lock."""

import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast import Holdfast
from holdfast.domain.cron import parse_timetable
from holdfast.domain.json_text import decode
from holdfast.store.contract import JobFilter
from tests.databases import Database, connected

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")
BERLIN = ZoneInfo("Europe/Berlin")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table after the heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


@pytest.mark.parametrize("row", rows("Where the clock jumps"), ids=lambda row: row[0])
def test_the_table_of_clock_jumps_is_true(row: list[str]) -> None:
    timetable = parse_timetable(row[0].strip("`"), "Europe/Berlin")
    for day, said in zip(("2025-03-30", "2025-10-26"), row[1:], strict=True):
        occurrence, found = datetime.fromisoformat(f"{day} 01:15").replace(tzinfo=BERLIN), []
        end = datetime.fromisoformat(f"{day} 04:15").replace(tzinfo=BERLIN).astimezone(UTC)
        while (occurrence := timetable.next_after(occurrence)) <= end:
            found.append(occurrence.astimezone(BERLIN).isoformat(timespec="minutes").partition("T")[2])
        assert (", ".join(found) or "none") == said


def test_every_timetable_of_the_page_is_valid() -> None:
    written = [text for cell, _ in rows("Timetables") for text in re.findall(r"`([^`]+)`", cell)]
    assert len(written) == 8
    for text in written:
        parse_timetable(text, "America/Santiago")


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_code_of_the_page_runs_at_its_occurrences(database: Database) -> None:
    module: dict[str, Any] = {}
    exec(compile(block("python"), "docs/schedules.md", "exec"), module)  # noqa: S102
    app: Holdfast = module["app"]
    app.settings = app.settings.model_copy(update={"store": database.url})
    # A Monday, 07:59 in Santiago.
    start = datetime(2026, 3, 2, 10, 59, tzinfo=UTC)
    async with app:
        await app.clock.freeze(start)
        assert (await app.tick()).is_fine
        assert [schedule.name for schedule in await app.schedules.list()] == [
            "close_the_day", "costs", "invoiceReminders", "sales",
        ]  # fmt: skip
        assert await app.runs.list(None, 10) == []

        # `sales` runs at 08:00 UTC on weekdays and `costs` at 09:30 UTC on Thursdays; the nightly run is in between.
        await app.clock.freeze(datetime(2026, 3, 5, 9, 30, tzinfo=UTC))
        report = await app.tick()
        assert report.is_fine, report
        runs = {run.name: run for run in await app.runs.list(None, 10)}
        enqueued = {name: decode(run.result or "{}").get("enqueued") for name, run in runs.items()}
        assert {name: enqueued[name] for name in ("close_the_day", "sales", "costs")} == {
            "close_the_day": 1, "sales": 3, "costs": 1,
        }  # fmt: skip
        assert decode(runs["invoiceReminders"].result or "") == {"sent": 0}
        jobs = [job.as_dict() for job in await app.jobs.list(JobFilter(), 10)]
        assert {job["state"] for job in jobs} == {"succeeded"}
        (night,) = [job["headers"] for job in jobs if job["kind"] == "close_the_day"]
        assert night == {"holdfast.schedule": "close_the_day", "holdfast.occurrence": "2026-03-05T06:17:00+00:00"}


@pytest.mark.long
@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_commands_and_the_lock_of_the_page(database: Database) -> None:
    environment = {**os.environ, "HOLDFAST_STORE": database.url}
    for line in block("console").strip().splitlines():
        command = shlex.split(line.removeprefix("$ "))
        done = subprocess.run(  # noqa: ASYNC221 - nothing else happens in this test
            [sys.executable, "-m", "holdfast", *command[1:]], env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, ""), line
        assert "monthly" in done.stdout
    (key,) = re.findall(r"has the key (-?\d+)", PAGE)
    (lock,) = re.findall(r"SELECT holdfast.lock_key\('([^']+)'\)", PAGE)
    async with connected(database.url) as connection:
        assert await connection.fetchval("SELECT holdfast.lock_key($1)", lock) == int(key)
