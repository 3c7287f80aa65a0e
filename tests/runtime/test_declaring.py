"""Schedules as an application writes them: in code, and at run time through `app.schedules`."""

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput, RunningJob
from holdfast.domain.cron import Missed, parse_timetable
from holdfast.domain.json_text import decode
from holdfast.schedules import Occurrence
from holdfast.scheduling.schedules import Declared
from holdfast.store.schedules import Origin, Schedule
from tests.worker.harness import Database

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
OCCURRENCE = Occurrence("remind", NOON, 1, "here")


@dataclass
class Report:
    month: int
    of: str = "sales"


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("memory:")


@pytest.fixture(params=["memory", "postgres"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory:"
    database: Database = request.getfixturevalue("database")
    return database.url


@pytest.fixture
async def open_app(address: str) -> AsyncIterator[Holdfast]:
    """An open app at noon, with a handler for `report.build`."""
    app = Holdfast(address)

    @app.handler("report.build", queue="reports")
    async def build(job: RunningJob[Report]) -> None: ...

    async with app:
        await app.clock.freeze(NOON)
        yield app


def only(app: Holdfast) -> Declared:
    (declared,) = app.declarations
    return declared


def test_a_plain_function_becomes_the_handler_of_a_kind_with_its_name(app: Holdfast) -> None:
    @app.schedule("03:17 daily", tz="America/Santiago", queue="nightly", attempts=2)
    async def clean_up(job: RunningJob[dict[str, int]]) -> None: ...

    handler = app.handlers["clean_up"]
    assert handler.function is clean_up
    assert (handler.queue, handler.attempts) == ("nightly", 2)
    declared = only(app)
    assert declared.timetable == parse_timetable("17 3 * * *", "America/Santiago")
    assert (declared.name, declared.missed, declared.missed_limit) == ("clean_up", Missed.ONCE, 100)
    assert declared.inline is None
    assert declared.job is not None
    assert (declared.job.kind, declared.job.payload, declared.job.queue) == ("clean_up", "{}", "nightly")


def test_the_name_is_used_for_the_schedule_and_the_kind(app: Holdfast) -> None:
    @app.schedule("hourly", name="report.hourly", payload={"month": 7}, priority=0, missed="all", missed_limit=3)
    def build(job: RunningJob[Report]) -> None: ...

    declared = only(app)
    assert app.handlers["report.hourly"].function is build
    assert declared.job is not None
    assert (declared.name, declared.job.kind) == ("report.hourly", "report.hourly")
    assert decode(declared.job.payload) == {"month": 7}
    assert (declared.missed, declared.missed_limit, declared.job.priority) == (Missed.ALL, 3, 0)


def test_a_handler_can_have_several_schedules(app: Holdfast) -> None:
    @app.schedule("08:00 monday", name="weekly", payload={"month": 7, "of": "costs"})
    @app.schedule("03:17 daily", payload={"month": 7})
    @app.handler("report.build", queue="reports")
    async def build(job: RunningJob[Report]) -> None: ...

    daily, weekly = app.declarations
    assert [handler.kind for handler in app.handlers] == ["report.build"]
    assert (daily.name, weekly.name) == ("report.build", "weekly")
    for declared, payload in ((daily, {"month": 7}), (weekly, {"month": 7, "of": "costs"})):
        assert declared.job is not None
        assert (declared.job.kind, declared.job.queue) == ("report.build", "reports")
        assert decode(declared.job.payload) == payload


def test_an_inline_runner_has_a_documented_lock(app: Holdfast) -> None:
    @app.runner("invoiceReminders", "every 1m", missed="skip")
    async def remind() -> None: ...

    @app.runner("cleanup", "03:17 daily", tz="America/Santiago", lock="shop:cleanup")
    def clean_up(occurrence: Occurrence) -> dict[str, int]:
        return {"removed": 3}

    first, second = app.declarations
    assert first.job is second.job is None
    assert first.inline is not None
    assert second.inline is not None
    assert first.inline.lock_of("holdfast", first.name) == "holdfast:runner:invoiceReminders"
    assert first.inline.lock_of("shop", first.name) == "shop:runner:invoiceReminders"
    assert second.inline.lock_of("shop", second.name) == "shop:cleanup"
    assert second.inline.function is clean_up
    assert len(app.handlers) == 0


async def test_the_function_of_a_runner_takes_the_occurrence_or_nothing(app: Holdfast) -> None:
    seen: list[Occurrence | None] = []

    @app.runner("a", "every 1m")
    async def with_occurrence(occurrence: Occurrence) -> None:
        seen.append(occurrence)

    @app.runner("b", "every 1m")
    async def without() -> dict[str, int]:
        seen.append(None)
        return {"sent": 2}

    @app.runner("c", "every 1m")
    def plain() -> dict[str, int]:
        return {"sent": 3}

    @app.runner("d", "every 1m")
    def optional(occurrence: Occurrence | None = None) -> None:
        seen.append(occurrence)

    results = []
    for declared in app.declarations:
        assert declared.inline is not None
        result: Any = declared.inline.function(OCCURRENCE)
        assert inspect.isawaitable(result) == inspect.iscoroutinefunction(declared.inline.function)
        results.append(await result if inspect.isawaitable(result) else result)
    assert results == [None, {"sent": 2}, {"sent": 3}, None]
    assert seen == [OCCURRENCE, None, OCCURRENCE]


def handled(app: Holdfast) -> Callable[[Any], None]:
    app.handler("one")(build_nothing)
    return build_nothing


def build_nothing(job: Any) -> None: ...  # noqa: ANN401


def nothing() -> None: ...


REFUSED: dict[str, tuple[Callable[[Holdfast], object], str]] = {
    "timetable": (lambda app: app.schedule("someday"), "timetable: 'someday' does not have the five fields"),
    "no parentheses": (lambda app: app.schedule(nothing), "is not text; write it like"),  # type: ignore[arg-type]
    "option": (
        lambda app: app.schedule("hourly", priorty=3),  # type: ignore[call-arg]
        "a schedule has no option 'priorty'; did you mean priority?",
    ),
    "zone": (lambda app: app.runner("a", "hourly", tz="Mars"), "tz: 'Mars' is not the name of a time zone"),
    "missed": (lambda app: app.schedule("hourly", missed="never"), "missed: 'never' is not known; use skip, once, all"),
    "limit": (
        lambda app: app.runner("a", "hourly", missed_limit=0),
        "missed_limit: 0 is not a number from 1 to 10,000",
    ),
    "name": (lambda app: app.runner("", "hourly")(nothing), "schedule: is empty"),
    "long name": (lambda app: app.runner("n" * 201, "hourly")(nothing), "schedule: 201 characters are over the limit"),
    "name is no text": (lambda app: app.runner(5, "hourly")(nothing), "schedule: 5 is not text"),  # type: ignore[arg-type]
    "reserved": (
        lambda app: app.runner("maintenance", "hourly")(nothing),
        "schedule: 'maintenance' is the name of one of Holdfast's own runners",
    ),
    "reserved job": (lambda app: app.schedule("hourly", name="queue")(build_nothing), "'queue' is the name of one"),
    "comma": (lambda app: app.runner("a,b", "hourly")(nothing), "runner: 'a,b' contains a comma"),
    "lock": (lambda app: app.runner("a", "hourly", lock="")(nothing), "lock: is empty"),
    "two arguments": (
        lambda app: app.runner("a", "hourly")(lambda one, two: None),
        "runner 'a': its function must take the occurrence as its one argument, or nothing",
    ),
    "no function": (lambda app: app.runner("a", "hourly")(5), "runner 'a': 5 is not a function"),  # type: ignore[type-var]
    "no job argument": (
        lambda app: app.schedule("hourly")(nothing),  # type: ignore[type-var]
        "handler of 'nothing': must take the job as its one argument",
    ),
    "no name": (lambda app: app.schedule("hourly")(partial(build_nothing)), "kind: is empty"),
    "payload": (
        lambda app: app.schedule("hourly", payload={"month": "May"})(build_report),
        "payload of 'build_report': month:",
    ),
    "missing payload": (lambda app: app.schedule("hourly")(build_report), "payload of 'build_report': month:"),
    "policy of a handler": (
        lambda app: app.schedule("hourly", queue="x", attempts=3)(handled(app)),
        "queue, attempts: set this on the handler of 'one'",
    ),
    "two kinds": (
        lambda app: app.schedule("hourly")(app.handler("two")(handled(app))),
        "one, two have the same function; give each schedule its own function",
    ),
}


def build_report(job: RunningJob[Report]) -> None: ...


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_in_a_declaration_is_refused_when_the_program_starts(app: Holdfast, case: str) -> None:
    declare, line = REFUSED[case]
    with pytest.raises(InvalidInput) as refused:
        declare(app)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(app.declarations) == []


def test_each_name_can_be_declared_only_once(app: Holdfast) -> None:
    app.runner("remind", "every 1m")(nothing)
    app.schedule("hourly")(build_nothing)
    for name, declare in (
        ("remind", lambda: app.runner("remind", "every 2m")(nothing)),
        ("build_nothing", lambda: app.schedule("03:17 daily")(build_nothing)),
        ("remind", lambda: app.schedule("03:17 daily", name="remind")(build_nothing)),
    ):
        with pytest.raises(InvalidInput, match=rf"^schedule '{name}' is already declared; give each one its own name"):
            declare()
    assert [declared.name for declared in app.declarations] == ["remind", "build_nothing"]


async def shown(app: Holdfast, name: str) -> Schedule:
    (found,) = [schedule for schedule in await app.schedules.list() if schedule.name == name]
    return found


async def test_schedules_declared_in_code_can_be_written_to_the_store(open_app: Holdfast) -> None:
    open_app.runner("remind", "every 1m", missed="all", missed_limit=5)(nothing)
    open_app.schedule("03:17 daily", name="nightly", tz="America/Santiago")(build_nothing)
    await open_app.opened.schedules.declare([declared.as_new(NOON) for declared in open_app.declarations])

    remind, nightly = await shown(open_app, "remind"), await shown(open_app, "nightly")
    assert (remind.timetable, remind.missed, remind.missed_limit) == ("every 1m", Missed.ALL, 5)
    assert (remind.origin, remind.job, remind.next_occurrence) == (Origin.CODE, None, NOON + timedelta(minutes=1))
    assert nightly.job is not None
    assert (nightly.timetable, nightly.zone, nightly.job.kind) == ("17 3 * * *", "America/Santiago", "nightly")
    assert nightly.next_occurrence == datetime(2026, 3, 5, 6, 17, tzinfo=UTC)


async def test_a_schedule_can_be_saved_changed_paused_and_removed_at_run_time(open_app: Holdfast) -> None:
    schedules = open_app.schedules
    await schedules.save("monthly", "03:17 daily", kind="report.build", payload=Report(7), tz="America/Santiago")
    saved = await shown(open_app, "monthly")
    assert saved.job is not None
    assert (saved.origin, saved.timetable, saved.zone) == (Origin.STORED, "17 3 * * *", "America/Santiago")
    assert (saved.job.queue, saved.job.priority, saved.job.tenant, saved.job.max_attempts) == ("reports", 5, "", None)
    assert decode(saved.job.payload) == {"month": 7, "of": "sales"}
    assert saved.next_occurrence == datetime(2026, 3, 5, 6, 17, tzinfo=UTC)

    # The same timetable in other words: the next occurrence stays the same.
    await open_app.clock.freeze(NOON + timedelta(days=1))
    await schedules.save(
        "monthly",
        "17 3 * * *",
        kind="other",
        tz="America/Santiago",
        queue="slow",
        priority=1,
        tenant="acme",
        attempts=2,
    )
    changed = await shown(open_app, "monthly")
    assert changed.job is not None
    assert (changed.job.kind, changed.job.queue, changed.job.priority) == ("other", "slow", 1)
    assert (changed.job.tenant, changed.job.max_attempts) == ("acme", 2)
    assert changed.next_occurrence == saved.next_occurrence

    await schedules.pause("monthly")
    assert (await shown(open_app, "monthly")).paused
    await schedules.resume("monthly")
    resumed = await shown(open_app, "monthly")
    assert not resumed.paused
    assert resumed.next_occurrence == datetime(2026, 3, 6, 6, 17, tzinfo=UTC)

    await schedules.run_now("monthly")
    assert (await shown(open_app, "monthly")).run_now == 1
    await schedules.remove("monthly")
    assert await schedules.list() == []


async def test_an_unknown_name_is_refused(open_app: Holdfast) -> None:
    schedules = open_app.schedules
    for change in (schedules.remove, schedules.pause, schedules.resume, schedules.run_now):
        with pytest.raises(InvalidInput, match=r"^schedule 'nowhere' is not known; `holdfast schedules list` shows"):
            await change("nowhere")


async def test_a_schedule_declared_in_code_can_be_changed_only_there(open_app: Holdfast) -> None:
    open_app.schedule("hourly", name="nightly")(build_nothing)
    with pytest.raises(InvalidInput, match=r"^schedule 'nightly' is declared in the app's code; change it there$"):
        await open_app.schedules.save("nightly", "hourly", kind="nightly")
    with pytest.raises(InvalidInput, match=r"^schedule 'nightly' is declared in the app's code; remove it there$"):
        await open_app.schedules.remove("nightly")

    (declared,) = open_app.declarations
    await open_app.opened.schedules.declare([declared.as_new(NOON)])
    await open_app.schedules.pause("nightly")
    assert (await shown(open_app, "nightly")).paused


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"name": ""}, "schedule: is empty"),
        ({"name": "schedules"}, "schedule: 'schedules' is the name of one of Holdfast's own runners"),
        ({"timetable": "0 0 30 2 *"}, "timetable: '0 0 30 2 *' never occurs"),
        ({"tz": "Mars"}, "tz: 'Mars' is not the name"),
        ({"missed": "never"}, "missed: 'never' is not known"),
        ({"missed_limit": 10_001}, "missed_limit: 10001 is not a number"),
        ({"kind": ""}, "kind: is empty"),
        ({"payload": {"month": "May"}}, "payload of 'report.build': month:"),
        ({"payload": float("nan"), "kind": "other"}, "payload: cannot be written as JSON"),
        ({"queue": ""}, "queue: is empty"),
        ({"priority": 10}, "priority: 10 is not a number"),
        ({"tenant": "a\tb"}, "tenant:"),
        ({"attempts": 0}, "attempts: 0 is not a number"),
    ],
)
async def test_a_mistake_in_a_stored_schedule_is_refused_when_it_is_saved(changes: dict[str, Any], line: str) -> None:
    app = Holdfast("memory:")
    app.handler("report.build")(build_report)
    given: dict[str, Any] = {
        "name": "monthly", "timetable": "hourly", "kind": "report.build", "payload": {"month": 7}, **changes,
    }  # fmt: skip
    async with app:
        with pytest.raises(InvalidInput) as refused:
            await app.schedules.save(**given)
        assert str(refused.value).startswith(line)
        assert await app.schedules.list() == []


def test_a_closed_app_has_no_schedules_to_show(app: Holdfast) -> None:
    with pytest.raises(InvalidInput, match="the app is not open"):
        _ = app.schedules


async def test_a_schedule_changed_while_it_is_resumed_follows_its_new_timetable(
    open_app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules, store = open_app.schedules, open_app.opened.schedules
    await schedules.save("report", "03:17 daily", kind="report.build", payload=Report(7))
    await schedules.pause("report")
    read = store.now

    async def changed_meanwhile() -> datetime:
        monkeypatch.setattr(store, "now", read)
        await schedules.save("report", "23:00 daily", kind="report.build", payload=Report(7))
        return await read()

    monkeypatch.setattr(store, "now", changed_meanwhile)
    await schedules.resume("report")
    found = await shown(open_app, "report")
    assert (found.paused, found.next_occurrence) == (False, NOON.replace(hour=23))
