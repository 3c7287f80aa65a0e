"""Slow jobs, inline runners and maintenance do not delay others. Checked through occurrences, not times."""

import signal
from datetime import datetime, timedelta
from pathlib import Path

from holdfast import Holdfast
from tests.runtime.processes import Command, Commands
from tests.worker.harness import Database, eventually

APP = "tests.runtime.apps.side_by_side"
SECOND = timedelta(seconds=1)


def worker(commands: Commands, app: str, *options: str, **settings: str) -> Command:
    return commands.start("worker", "--app", app, *options, **({"poll": "200ms", "shutdown": "200ms"} | settings))


def notes(database: Database) -> list[str]:
    """The recorded notes, in order."""
    return [str(note) for (note,) in database.query("SELECT note FROM effect ORDER BY number")]


def occurrences(found: list[str], what: str) -> list[datetime]:
    return [datetime.fromisoformat(note.removeprefix(f"{what} ")) for note in found if note.startswith(f"{what} ")]


def have_every_occurrence(found: list[str], number: int, *names: str) -> bool:
    """Whether each has run for at least `number` occurrences without leaving one out."""
    return all(_is_complete(occurrences(found, name), number) for name in names)


def _is_complete(found: list[datetime], number: int) -> bool:
    # Jobs of two occurrences may run at the same time and finish in any order.
    return len(found) >= number and sorted(found) == [min(found) + SECOND * index for index in range(len(found))]


async def enqueue(database: Database, **kinds: int) -> None:
    async with Holdfast(database.url) as app:
        await app.enqueue_many([app.job(kind, {}, queue=kind) for kind, number in kinds.items() for _ in range(number)])


def end(*commands: Command) -> None:
    for command in commands:
        command.send(signal.SIGTERM)
    for command in commands:
        assert command.exit_code() == 0, command.log


async def test_a_worker_without_a_free_slot_still_runs_its_schedules(
    database: Database, commands: Commands, tmp_path: Path
) -> None:
    await enqueue(database, slow=2)
    full = worker(commands, APP, "--queues", "slow", "--concurrency", "1", "--runners", "schedules,queue,beat")
    eventually(lambda: "slow started" in notes(database), "its only slot is taken")
    other = worker(commands, APP, "--queues", "quick", "--runners", "queue")
    eventually(lambda: have_every_occurrence(notes(database), 4, "job", "beat"), "schedules go on")
    await enqueue(database, quick=20)
    eventually(lambda: notes(database).count("quick") == 20, "new jobs are taken where slots are free")
    found = notes(database)
    assert "slow ended" not in found
    assert found.count("slow started") == 1
    (tmp_path / "gate").touch()
    eventually(lambda: notes(database).count("slow ended") == 2, "the slow jobs end")
    end(full, other)


async def test_a_kind_at_its_limit_leaves_the_other_slots_to_other_kinds(
    database: Database, commands: Commands
) -> None:
    await enqueue(database, slow=3)
    only = worker(commands, APP, "--concurrency", "2", "--runners", "queue")
    eventually(lambda: "slow started" in notes(database), "a slow job runs, and more of its kind are due")
    for number in range(1, 6):
        await enqueue(database, quick=1)
        eventually(lambda n=number: notes(database).count("quick") == n, "a new job is taken meanwhile")  # type: ignore[misc]
    assert notes(database).count("slow started") == 1
    end(only)


async def test_an_inline_runner_slower_than_its_timetable_skips_occurrences_and_delays_no_others(
    database: Database, commands: Commands
) -> None:
    first, second = (worker(commands, APP, "--runners", "schedules,queue,drag") for _ in range(2))
    eventually(lambda: any("drag started" in note for note in notes(database)), "it runs")
    await enqueue(database, quick=20)
    eventually(lambda: len(occurrences(notes(database), "drag started")) >= 2, "it runs again")
    found = notes(database)
    turns = [note.split()[1] for note in found if note.startswith("drag ")]
    assert turns == ["started", "ended", "started"]
    one, two = occurrences(found, "drag started")
    assert two - one >= 4 * SECOND
    meanwhile = found[: found.index("drag ended")]
    assert meanwhile.count("quick") == 20
    assert len(occurrences(meanwhile, "job")) >= 2
    logs = first.log + second.log
    assert "still running from its last occurrence  runner=drag occurrence=" in logs
    assert "occurrences came due while it ran and are skipped" in logs
    end(first, second)


async def test_slow_maintenance_delays_no_others(database: Database, commands: Commands) -> None:
    only = worker(commands, "tests.runtime.apps.slow_maintenance", "--runners", "maintenance,schedules,queue,beat")
    eventually(lambda: "maintenance started" in notes(database), "maintenance is at work")
    await enqueue(database, quick=20)
    eventually(lambda: notes(database).count("quick") == 20, "jobs are taken meanwhile")
    eventually(lambda: have_every_occurrence(notes(database), 3, "job", "beat"), "schedules go on")
    # Maintenance is still at its first step, and does not keep the process from ending.
    end(only)
