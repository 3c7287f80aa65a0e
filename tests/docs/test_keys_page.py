"""docs/keys.md is true: its code, its SQL, and every cell of its table."""

import asyncio
import os
import re
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.domain.enqueued import Enqueued
from holdfast.domain.job import IfExists, JobState
from holdfast.store.memory.maintenance import MemoryMaintenance
from holdfast.store.memory.schedules import MemoryRuns, MemorySchedules
from holdfast.store.memory.store import MemoryStore
from tests.databases import Database, StoreCase, connected
from tests.store_contract.steps import START, Options, in_state, job

PAGE = (Path(__file__).parents[2] / "docs" / "keys.md").read_text(encoding="utf-8")
WINDOW = timedelta(days=30)
RETENTION = timedelta(days=7)
# The options of the existing job, the options of the call, and the time between the two.
COLUMNS: list[tuple[Options, Options, timedelta]] = [
    ({}, {}, timedelta(days=8)),
    ({}, {"if_exists": IfExists.KEEP_LIVE}, timedelta(days=8)),
    ({}, {"if_exists": IfExists.REPLACE}, timedelta(days=8)),
    ({"window": WINDOW}, {"window": WINDOW}, timedelta(days=8)),
    ({"window": WINDOW}, {"window": WINDOW}, WINDOW),
]


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def table() -> list[list[str]]:
    section = PAGE.split("\n## What happens\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_has_a_row_for_every_state() -> None:
    assert [row[0].strip("`") for row in table()[1:-1]] == list(JobState)


@pytest.mark.parametrize("row", table(), ids=lambda row: row[0])
async def test_every_cell_of_the_table_is_true(row: list[str]) -> None:
    for (first, options, passed), said in zip(COLUMNS, row[1:], strict=True):
        assert await _what_happens(row[0], first, options, passed) == said


async def _what_happens(there: str, first: Options, options: Options, passed: timedelta) -> str:
    """What the memory store does; tests/store_contract shows that the other stores do the same."""
    memory = MemoryStore()
    await memory.clock.freeze(START)
    runs = MemoryRuns(memory)
    case = StoreCase("memory", memory, memory, memory.clock, MemorySchedules(memory, runs), runs)
    removed = there == "removed by retention"
    states = [state for state in JobState if f"`{state}`" == there] + [JobState.SUCCEEDED] * removed
    keyed: Options = {"key": "report", **first}
    ids = [await in_state(case, state, **keyed) for state in states]
    await memory.clock.advance(passed)
    if removed:
        pruning = MemoryMaintenance(memory, runs).prune_jobs(RETENTION)
        assert [batch.counts["jobs_pruned"] async for batch in pruning] == [1]
    asked: Options = {"key": "report", **options}
    new = job(**asked)
    (answer,) = await memory.enqueue([new])
    answers = {new.id: {Enqueued(new.id, is_new=True): "new job"}} | {
        id: {
            Enqueued(id, is_new=False): "kept",
            Enqueued(id, is_new=False, replaced=True): "replaced",
        }
        for id in ids
    }
    return answers[answer.id][answer]


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_code_of_the_page_runs(database: Database) -> None:
    environment = {**os.environ, "HOLDFAST_STORE": database.url}
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", block("python"), env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await done.communicate()
    assert (done.returncode, errors.decode()) == (0, "")
    async with connected(database.url) as connection:
        replacing, throttled = block("sql").strip().splitlines()
        row = await connection.fetchrow(replacing)
        assert row is not None
        assert (row["is_new"], row["replaced"]) == (False, True)
        row = await connection.fetchrow(throttled)
        assert row is not None
        assert row["is_new"] is False
