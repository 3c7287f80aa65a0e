"""`holdfast schedules …` and `holdfast runs list`, straight on the store, without an app."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.json_text import Json
from holdfast.store.schedules import NewRun
from tests.cli.conftest import Cli

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture
def at_noon(cli: Cli) -> Cli:
    in_store(cli, lambda app: app.clock.freeze(NOON))
    return cli


def in_store(cli: Cli, change: Any) -> None:  # noqa: ANN401
    """What processes of an app would do."""

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
    assert cli.run("schedules", "list").out == "The store has no schedules yet.\n"
    assert cli.run("runs", "list").out == "No runs yet.\n"
    assert cli.run("runs", "list", "--name", "report").out == "No runs of report.\n"
    assert listed(cli) == json.loads(cli.run("runs", "list", "--json").out) == []


def test_a_schedule_is_added_and_listed_in_its_own_zone(at_noon: Cli) -> None:
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
        "next_slot": "2026-03-05T06:17:00+00:00",
        "last_slot": None,
        "paused": False,
        "run_now": False,
    }
    assert (often["timetable"], often["next_slot"]) == ("every 1m30s", "2026-03-04T12:01:30+00:00")
    assert [often["job"][name] for name in ("queue", "priority", "tenant", "payload")] == ["slow", 9, "acme", {}]


def test_adding_again_changes_it(at_noon: Cli) -> None:
    add(at_noon)
    done = at_noon.run("schedules", "add", "report", "08:00 weekdays", "other", "--json")
    assert json.loads(done.out)["next_slot"] == "2026-03-05T08:00:00+00:00"
    (found,) = listed(at_noon)
    assert (found["timetable"], found["job"]["kind"]) == ("0 8 * * 1-5", "other")


def test_it_is_paused_run_now_resumed_and_removed(at_noon: Cli) -> None:
    add(at_noon)
    assert at_noon.run("schedules", "pause", "report").out == "report  paused\n"
    assert listed(at_noon)[0]["paused"] is True
    assert "paused" in at_noon.run("schedules", "list").out

    ran = at_noon.run("schedules", "run", "report").out
    said = "will run once as soon as a process looks, however often it is asked until then"
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


def test_what_code_declares_is_shown_and_cannot_be_changed(at_noon: Cli) -> None:
    async def declare(app: Holdfast) -> None:
        app.runner("remind", "every 1m")(lambda: None)
        await app.opened.schedules.declare([declared.as_new(NOON) for declared in app.declarations])

    in_store(at_noon, declare)
    (found,) = listed(at_noon)
    assert (found["origin"], found["job"]) == ("code", None)
    assert "a function" in at_noon.run("schedules", "list").out
    refused = at_noon.run("schedules", "add", "remind", "hourly", "other")
    assert "schedule 'remind' is declared in code" in refused.one_error_line()


def test_runs_are_listed_with_what_came_of_them(at_noon: Cli) -> None:
    async def work(app: Holdfast) -> None:
        await app.schedules.save("report", "03:17 daily", kind="report.build", tz="America/Santiago")
        slot = NOON - timedelta(hours=1)
        await app.runs.record(NewRun("report", "web-1", slot), timedelta(seconds=5), Json('{"enqueued":1}'), None)
        error = Json('{"code":"LOST","type":"Lost","message":"went\\naway","traceback":""}')
        await app.runs.record(NewRun("remind", "web-2"), timedelta(0), None, error)
        await app.runs.start(NewRun("remind", "web-3"))

    in_store(at_noon, work)
    table = at_noon.run("runs", "list").out.splitlines()
    unfinished, failed, fine = table[-3:]
    assert "still runs" in unfinished
    assert "LOST: went away" in failed
    for shown in ("report", "2026-03-04 08:59:55-03:00 (5.0s ago)", "5.0s", "2026-03-04 08:00:00-03:00", "web-1"):
        assert shown in fine
    assert '{"enqueued": 1}' in fine

    (shown_run,) = json.loads(at_noon.run("runs", "list", "--name", "report", "--json").out)
    assert shown_run.pop("id") > 0
    assert shown_run == {
        "name": "report",
        "replica": "web-1",
        "slot": "2026-03-04T11:00:00+00:00",
        "started_at": "2026-03-04T11:59:55+00:00",
        "finished_at": "2026-03-04T12:00:00+00:00",
        "result": {"enqueued": 1},
        "error": None,
    }
    assert len(json.loads(at_noon.run("runs", "list", "--limit", "1", "--json").out)) == 1
