"""`holdfast tick` started repeatedly on three machines at once, as by cron: everything happens exactly once."""

import asyncio
import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from tests.runtime.processes import Command, Commands
from tests.worker.harness import Database, until

KINDS = {"plain": 800, "flaky": 100, "patient": 100}
SECONDS = timedelta(seconds=1)
STEPS, STEP = 6, timedelta(seconds=25)
"""How far the store's clock moves while the ticks run: over two full minutes."""
MOST = "100"
"""Items per runner and tick, few enough that many ticks have to share the jobs."""


def tick(commands: Commands) -> Command:
    # The clock moves by minutes, and a lease that expired on the way would rightly be given to another worker.
    return commands.start(
        "tick", "--app", "tests.runtime.apps.ticking", "--json", "--runner-max-items", MOST, lease="1h"
    )


async def ended(command: Command) -> dict[str, Any]:
    """The report of the tick, once it has ended without an error."""
    await until(lambda: not command.is_running, "the tick ends", 60)
    assert command.exit_code() == 0, command.out + command.log
    report: dict[str, Any] = json.loads(command.out)
    assert report["ok"]
    return report


async def keep_ticking(commands: Commands, stop: asyncio.Event, reports: list[dict[str, Any]]) -> None:
    while not stop.is_set():
        reports.append(await ended(tick(commands)))


async def move_the_clock(app: Holdfast, reports: list[dict[str, Any]]) -> None:
    """Move the clock one step after each ended tick, so that ticks are running all the time."""
    for step in range(STEPS):
        await until(lambda done=step: len(reports) > done, "another tick ends", 60)  # type: ignore[misc]
        await app.clock.advance(STEP)


@pytest.mark.long
async def test_everything_happens_exactly_once(database: Database, commands: Commands) -> None:
    reports: list[dict[str, Any]] = []
    stop = asyncio.Event()
    async with Holdfast(database.url) as app:
        for kind, number in KINDS.items():
            queue = "other" if kind == "flaky" else "default"
            await app.enqueue_many([app.job(kind, {}, queue=queue) for _ in range(number)])
        async with asyncio.TaskGroup() as loops:
            for _ in range(3):
                loops.create_task(keep_ticking(commands, stop, reports))
            await move_the_clock(app, reports)
            await until(lambda: jobs_done(database) == sum(KINDS.values()), "the jobs are done", 90)
            stop.set()
        # The clock now stands still, so nothing is due after this tick.
        await app.clock.freeze(await app.clock.now())
        reports.append(await ended(tick(commands)))
    check_jobs(database)
    check_occurrences(database)
    check_inline_runs(database)
    check_reports(database, reports)


def jobs_done(database: Database) -> object:
    """The number of finished jobs that no schedule made."""
    return count(database, "holdfast.finished JOIN holdfast.job USING (id) WHERE headers IS NULL")


def count(database: Database, what: str) -> object:
    ((number,),) = database.query(f"SELECT count(*) FROM {what}")
    return number


def check_jobs(database: Database) -> None:
    assert [count(database, f"holdfast.{table}") for table in ("ready", "lease", "dead_letter")] == [0, 0, 0]
    done = Counter(job for (job,) in database.query("SELECT job FROM effect WHERE note = 'done'"))
    assert done == Counter(id for (id,) in database.query("SELECT id FROM holdfast.finished WHERE state = 'succeeded'"))
    assert jobs_done(database) == sum(KINDS.values())


def check_occurrences(database: Database) -> None:
    for name, apart, least in (("each second", SECONDS, 150), ("each minute", 60 * SECONDS, 2)):
        rows = database.query(
            "SELECT (headers->>'holdfast.occurrence')::timestamptz FROM holdfast.job"
            " WHERE headers->>'holdfast.schedule' = %s ORDER BY 1",
            name,
        )
        occurrences = [occurrence for (occurrence,) in rows if isinstance(occurrence, datetime)]
        assert occurrences == every(apart, occurrences)
        assert len(occurrences) >= least
        assert database.query(
            "SELECT last_occurrence, next_occurrence FROM holdfast.schedule WHERE name = %s", name
        ) == [(occurrences[-1], occurrences[-1] + apart)]
        assert database.query(
            "SELECT next_occurrence > holdfast.now() FROM holdfast.schedule WHERE name = %s", name
        ) == [(True,)]


def every(apart: timedelta, occurrences: list[datetime]) -> list[datetime]:
    """All occurrences from the first to the last, with none left out."""
    return [occurrences[0] + apart * number for number in range((occurrences[-1] - occurrences[0]) // apart + 1)]


def check_inline_runs(database: Database) -> None:
    notes = database.query("SELECT note FROM effect WHERE note ^@ 'start ' OR note ^@ 'end ' ORDER BY number")
    # Rows are numbered as they are written, so two runs at once would show as two starts in a row.
    pairs = [str(note).split() for (note,) in notes]
    starts = [occurrence for what, occurrence in pairs if what == "start"]
    assert pairs == [[what, occurrence] for occurrence in starts for what in ("start", "end")]
    occurrences = [datetime.fromisoformat(occurrence) for occurrence in starts]
    assert occurrences == every(5 * SECONDS, occurrences)
    assert len(occurrences) >= 30
    runs = database.query(
        "SELECT occurrence, finished_at IS NULL, error FROM holdfast.run WHERE name = 'cycle' ORDER BY id"
    )
    assert runs == [(occurrence, False, None) for occurrence in occurrences]


def check_reports(database: Database, reports: list[dict[str, Any]]) -> None:
    """The reports of the ticks add up to the contents of the store."""
    processed: Counter[str] = Counter()
    queue: Counter[str] = Counter()
    for part in (part for report in reports for part in report["runners"]):
        processed[part["runner"]] += part["processed"]
        assert part["failed"] == 0
        if part["runner"] == "queue":
            queue.update(part["counts"])
    succeeded = count(database, "holdfast.finished")
    assert queue == {"succeed": succeeded, "retry": KINDS["flaky"], "snooze": KINDS["patient"]}
    assert processed["queue"] == queue.total()
    assert processed["schedules"] == count(database, "holdfast.job WHERE headers IS NOT NULL")
    assert processed["cycle"] == count(database, "effect WHERE note ^@ 'start '")
    recorded: Counter[str] = Counter()
    for (result,) in database.query("SELECT result FROM holdfast.run WHERE name = 'queue'"):
        assert isinstance(result, dict)
        recorded.update(result)
    assert recorded == queue
