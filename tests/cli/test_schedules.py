"""`holdfast schedules …` and `holdfast runs list`, run directly on the store, without an app."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.domain.json_text import Json
from holdfast.store.schedules import NewRun
from tests.cli.conftest import Cli

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture
def at_noon(cli: Cli) -> Cli:
    in_store(cli, lambda app: app.clock.freeze(NOON))
    return cli


def in_store(cli: Cli, change: Any) -> None:  # noqa: ANN401
    """Make a change in the store, as processes of an app would."""

    async def run() -> None:
        async with Holdfast(cli.url) as app:
            await change(app)

    asyncio.run(run())


def listed(cli: Cli) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cli.run("schedules", "list", "--json").out)
    return found


def add(cli: Cli, *options: str) -> str:
    done = cli.run("schedules", "add", "report", "03:17 daily", "report.build", '{"month": 7}', *options)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_an_empty_store_says_so(cli: Cli) -> None:
    assert cli.run("schedules", "list").out == f"The store has no schedules yet: {cli.url}\n"
    assert cli.run("runs", "list").out == f"The store has no runs yet: {cli.url}\n"
    assert cli.run("runs", "list", "--name", "report").out == "No runs of report.\n"
    assert listed(cli) == json.loads(cli.run("runs", "list", "--json").out) == []


def test_a_schedule_is_added_and_listed_in_its_time_zone(at_noon: Cli) -> None:
    said = add(at_noon, "--tz", "America/Santiago", "--missed", "all", "--missed-limit", "5", "--attempts", "2")
    assert said == "report  saved; next 2026-03-05 03:17:00-03:00 (in 18h)\n"
    at_noon.run(
        "schedules", "add", "often", "every 90s", "tidy", "--queue", "slow", "--priority", "9", "--tenant", "acme"
    )

    table = at_noon.run("schedules", "list").out
    report = next(line for line in table.splitlines() if "report.build" in line)
    for shown in ("17 3 * * *", "America/Santiago", "stored", "2026-03-05 03:17:00-03:00 (in 18h)"):
        assert shown in report
    often, found = listed(at_noon)
    assert found == {
        "name": "report",
        "timetable": "17 3 * * *",
        "tz": "America/Santiago",
        "missed": "all",
        "missed_limit": 5,
        "origin": "stored",
        "job": {
            "kind": "report.build",
            "payload": {"month": 7},
            "queue": "default",
            "priority": 5,
            "tenant": "",
            "attempts": 2,
        },
        "next_occurrence": "2026-03-05T06:17:00+00:00",
        "last_occurrence": None,
        "paused": False,
        "run_now": False,
    }
    assert (often["timetable"], often["next_occurrence"]) == ("every 1m30s", "2026-03-04T12:01:30+00:00")
    assert [often["job"][name] for name in ("queue", "priority", "tenant", "payload")] == ["slow", 9, "acme", {}]


def test_adding_again_changes_it(at_noon: Cli) -> None:
    add(at_noon)
    done = at_noon.run("schedules", "add", "report", "08:00 weekdays", "other", "--json")
    assert json.loads(done.out)["next_occurrence"] == "2026-03-05T08:00:00+00:00"
    (found,) = listed(at_noon)
    assert (found["timetable"], found["job"]["kind"]) == ("0 8 * * 1-5", "other")


def test_it_is_paused_run_now_resumed_and_removed(at_noon: Cli) -> None:
    add(at_noon)
    assert at_noon.run("schedules", "pause", "report").out == "report  paused\n"
    assert listed(at_noon)[0]["paused"] is True
    assert "paused" in at_noon.run("schedules", "list").out

    ran = at_noon.run("schedules", "run", "report").out
    said = "will run once, when a worker or tick picks it up"
    assert ran == f"report  {said}; asked to run now, paused\n"
    assert listed(at_noon)[0]["run_now"] is True

    in_store(at_noon, lambda app: app.clock.freeze(NOON + timedelta(days=2)))
    resumed = at_noon.run("schedules", "resume", "report").out
    assert resumed == "report  resumed; asked to run now, next 2026-03-07 03:17:00+00:00 (in 15h)\n"
    assert json.loads(at_noon.run("schedules", "pause", "report", "--json").out)["paused"] is True

    assert at_noon.run("schedules", "remove", "report").out == "report  removed\n"
    assert listed(at_noon) == []


@pytest.mark.parametrize("verb", ["remove", "pause", "resume", "run"])
def test_an_unknown_schedule_is_one_line(cli: Cli, verb: str) -> None:
    done = cli.run("schedules", verb, "nowhere")
    assert "schedule 'nowhere' is not known; `holdfast schedules list` shows" in done.one_error_line()
    assert done.code == 2


def test_a_schedule_declared_in_code_is_shown_and_cannot_be_changed(at_noon: Cli) -> None:
    async def declare(app: Holdfast) -> None:
        app.runner("remind", "every 1m")(lambda: None)
        await app.opened.schedules.declare([declared.as_new(NOON) for declared in app.declarations])

    in_store(at_noon, declare)
    (found,) = listed(at_noon)
    assert (found["origin"], found["job"]) == ("code", None)
    assert "a function" in at_noon.run("schedules", "list").out
    refused = at_noon.run("schedules", "add", "remind", "hourly", "other")
    assert "schedule 'remind' is declared in code" in refused.one_error_line()


def test_runs_are_listed_with_their_results(at_noon: Cli) -> None:
    async def work(app: Holdfast) -> None:
        await app.schedules.save("report", "03:17 daily", kind="report.build", tz="America/Santiago")
        occurrence = NOON - timedelta(hours=1)
        await app.runs.record(NewRun("report", "web-1", occurrence), timedelta(seconds=5), Json('{"enqueued":1}'), None)
        error = Json('{"code":"LOST","type":"Lost","message":"went\\naway","traceback":""}')
        await app.runs.record(NewRun("remind", "web-2"), timedelta(0), None, error)
        await app.runs.start(NewRun("remind", "web-3"))

    in_store(at_noon, work)
    table = at_noon.run("runs", "list").out.splitlines()
    unfinished, failed, fine = table[-3:]
    assert "still running" in unfinished
    assert "LOST: went away" in failed
    for shown in ("report", "2026-03-04 08:59:55-03:00 (5.0s ago)", "5.0s", "2026-03-04 08:00:00-03:00", "web-1"):
        assert shown in fine
    assert '{"enqueued": 1}' in fine

    (shown_run,) = json.loads(at_noon.run("runs", "list", "--name", "report", "--json").out)
    assert shown_run.pop("id") > 0
    assert shown_run == {
        "name": "report",
        "replica": "web-1",
        "occurrence": "2026-03-04T11:00:00+00:00",
        "started_at": "2026-03-04T11:59:55+00:00",
        "finished_at": "2026-03-04T12:00:00+00:00",
        "result": {"enqueued": 1},
        "error": None,
    }
    assert len(json.loads(at_noon.run("runs", "list", "--limit", "1", "--json").out)) == 1


async def _many_things(app: Holdfast) -> None:
    names = ("report", "a-schedule-whose-name-tells-all-that-it-does-in-many-words")
    for name in names:
        await app.schedules.save(name, "5,20,35,50 8-18 * * 1-5", kind="report.build", tz="America/Santiago")
    await app.schedules.save("asked", "03:17 daily", kind="report.build")
    await app.schedules.save("halted", "03:17 daily", kind="report.build")
    await app.schedules.run_now("asked")
    await app.schedules.pause("halted")
    jobs = ", ".join(f'"0197{number:032}"' for number in range(30))
    occurrence = NOON - timedelta(hours=1)
    for name, number in ((names[0], 1), (names[1], 30)):
        result = Json(f'{{"enqueued": {number}, "dropped": {number // 2}, "jobs": [{jobs}]}}')
        await app.runs.record(NewRun(name, "web-1", occurrence), timedelta(seconds=5), result, None)
    error = Json(f'{{"code":"LOST","type":"Lost","message":"{"went away " * 30}","traceback":""}}')
    await app.runs.record(NewRun("remind", "web-2"), timedelta(minutes=3), None, error)
    await app.runs.record(NewRun("queue", "web-2"), timedelta(minutes=4), Json('{"claimed": 12}'), None)


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


def test_a_narrow_terminal_shows_one_line_per_schedule(at_noon: Cli) -> None:
    in_store(at_noon, _many_things)
    for columns in (60, 80, 100):
        lines = at_noon.in_terminal(columns, "schedules", "list")
        assert max(len(line) for line in lines) <= columns
        assert len(lines) == 2 + 4
    heading, _, long, asked, halted, report = at_noon.in_terminal(80, "schedules", "list")
    assert heading.split() == ["name", "timetable", "next", "state"]
    assert long.startswith("a-schedule-whose-name-te")
    assert "…" in long
    assert cells(report) == ["report", "5,20,35,50 8-18 * *…", "in 5m", "waiting"]
    assert cells(asked) == ["asked", "17 3 * * *", "in 15h", "asked to run"]
    assert cells(halted) == ["halted", "17 3 * * *", "paused"]


def test_a_narrow_terminal_shows_one_line_per_run(at_noon: Cli) -> None:
    in_store(at_noon, _many_things)
    for columns in (60, 80, 100, 180):
        lines = at_noon.in_terminal(columns, "runs", "list")
        assert max(len(line) for line in lines) <= columns
        assert len(lines) == 2 + 4
    heading, _, many, one, failed, queue = at_noon.in_terminal(80, "runs", "list")
    assert heading.split() == ["name", "started", "took", "result"]
    assert cells(many)[1:] == ["5.0s ago", "5.0s", "30 jobs, 15 skipped"]
    assert cells(one) == ["report", "5.0s ago", "5.0s", "1 job"]
    assert cells(failed)[3].startswith("LOST: went away went")
    assert failed.endswith("…")
    assert cells(queue) == ["queue", "4m ago", "4m", '{"claimed": 12}']


def test_a_wide_terminal_and_a_pipe_get_all_columns(at_noon: Cli) -> None:
    in_store(at_noon, _many_things)
    for lines in (at_noon.in_terminal(250, "schedules", "list"), at_noon.run("schedules", "list").out.splitlines()):
        assert lines[0].split() == ["name", "timetable", "time", "zone", "runs", "from", "state", "next", "last"]
        assert "2026-03-04 09:05:00-03:00 (in 5m)" in lines[-1]
    heading, _, *runs = at_noon.in_terminal(220, "runs", "list")
    assert heading.split() == ["name", "started", "took", "occurrence", "replica", "result"]
    assert runs[0].endswith("…")
    assert len(runs) == 4
    # Without a width, nothing is cut off.
    assert "…" not in at_noon.run("runs", "list").out
    assert len(at_noon.run("runs", "list").out.splitlines()) == 2 + 4
