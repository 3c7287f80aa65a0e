"""The schedulers: what they call, when they stop, and that each runs only once at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from apps.invoicing import runners
from apps.invoicing.reports import Turn, turns
from apps.invoicing.runners import ENDPOINTS
from apps.invoicing.settings import BILLING, LOCKS, OUTBOX, REMINDERS
from apps.invoicing.tools import Tools
from apps.invoicing.worker import build_app, runner_names
from tests.apps.invoicing.issuing import Bench, opened_bench, worker_settings
from tests.apps.invoicing.patience import PATIENCE
from tests.apps.invoicing.scheduler_api import TOKEN, SchedulerApi, scheduler_api
from tests.databases import Database, connected

pytestmark = pytest.mark.postgres


@pytest.fixture
async def api() -> AsyncIterator[SchedulerApi]:
    async with scheduler_api() as api:
        yield api


@asynccontextmanager
async def replica(database: Database, api: SchedulerApi | None, folder: Path, **given: object) -> AsyncIterator[Bench]:
    if api is not None:
        given = {"worker_api_base_url": api.url, "worker_api_service_token": TOKEN, **given}
    async with opened_bench(worker_settings(database.url, folder, **given)) as bench:
        # An occurrence of the timetable between requesting a scheduler and the tick would cause an additional run.
        await bench.app.clock.freeze(await bench.app.clock.now())
        yield bench


async def tick(bench: Bench) -> dict[str, Turn]:
    """Run a tick like the mode `tick`."""
    return {turn.runner: turn for turn in turns(await bench.app.tick(runners=runner_names(bench.settings)))}


async def test_each_scheduler_calls_its_endpoint_until_nothing_is_left(
    database: Database, api: SchedulerApi, tmp_path: Path
) -> None:
    reminders, billing = ENDPOINTS[REMINDERS], ENDPOINTS[BILLING]
    api.left = {reminders: 250, billing: 3}
    async with replica(database, api, tmp_path, worker_tick_runner_max_items=1000) as bench:
        made = await tick(bench)
    assert {name: made[name].processed for name in ENDPOINTS} == {REMINDERS: 250, BILLING: 3}
    assert api.calls == [reminders, reminders, billing]
    assert api.limits == [200, 200, 200]


async def test_a_scheduler_makes_no_more_than_its_share_of_items(
    database: Database, api: SchedulerApi, tmp_path: Path
) -> None:
    api.left = dict.fromkeys(ENDPOINTS.values(), 100)
    async with replica(database, api, tmp_path, worker_tick_runner_max_items=30) as bench:
        first = await tick(bench)
        second = await tick(bench)
    assert [turn.processed for made in (first, second) for turn in made.values() if turn.runner in ENDPOINTS] == [
        30
    ] * 4
    assert set(api.limits) == {30}


async def test_every_tick_runs_the_schedulers_regardless_of_their_timetable(
    database: Database, api: SchedulerApi, tmp_path: Path
) -> None:
    async with replica(database, api, tmp_path) as bench:
        for _ in range(3):
            await tick(bench)
    assert api.calls.count(ENDPOINTS[REMINDERS]) == 3


async def test_only_the_chosen_runners_run_and_in_order(database: Database, api: SchedulerApi, tmp_path: Path) -> None:
    async with replica(database, api, tmp_path, worker_tick_runners="classesBilling, outbox") as bench:
        made = await tick(bench)
    assert list(made) == [BILLING, OUTBOX, "maintenance"]
    assert set(api.calls) == {ENDPOINTS[BILLING]}


async def test_a_scheduler_runs_on_one_replica_at_a_time(database: Database, api: SchedulerApi, tmp_path: Path) -> None:
    only = {"worker_tick_runners": REMINDERS}
    api.hold.clear()
    async with (
        replica(database, api, tmp_path, **only) as one,
        replica(database, api, tmp_path, **only) as other,
    ):
        first = asyncio.create_task(tick(one))
        await api.waiting.wait()
        second = await tick(other)
        assert len(api.calls) == 1
        api.hold.set()
        assert (await first)[REMINDERS].skipped is None
    assert second[REMINDERS].skipped == "another replica is running it"
    assert second[REMINDERS].processed == 0


@pytest.mark.parametrize("name", ENDPOINTS)
async def test_a_scheduler_waits_for_the_holder_of_its_lock(
    database: Database, api: SchedulerApi, tmp_path: Path, name: str
) -> None:
    assert LOCKS[name] == f"worker:scheduler:{name}"
    async with (
        replica(database, api, tmp_path, worker_tick_runners=name) as bench,
        connected(database.url) as connection,
    ):
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(holdfast.lock_key($1))", LOCKS[name])
            assert (await tick(bench))[name].skipped == "another replica is running it"
        assert api.calls == []
        assert (await tick(bench))[name].skipped is None
    assert set(api.calls) == {ENDPOINTS[name]}


async def test_without_an_address_or_token_the_schedulers_fail_and_the_outbox_does_not(
    database: Database, tmp_path: Path
) -> None:
    async with replica(database, None, tmp_path) as bench:
        issued = await bench.issue()
        made = await tick(bench)
        for again in (made, await tick(bench)):
            for name in ENDPOINTS:
                error = again[name].error
                assert error is not None
                assert error.startswith("NOT_CONFIGURED: set WORKER_API_BASE_URL and WORKER_API_SERVICE_TOKEN")
        assert made[OUTBOX].error is None
        assert (await bench.document(issued))["state"] == "READY"


@pytest.mark.parametrize(("status", "token"), [(500, TOKEN), (401, "another-service-token")])
async def test_a_refusal_by_the_api_is_an_error_of_that_tick(
    database: Database, api: SchedulerApi, tmp_path: Path, status: int, token: str
) -> None:
    api.status = status
    async with replica(database, api, tmp_path, worker_api_service_token=token) as bench:
        failed = await tick(bench)
        api.status = 200
        error = failed[REMINDERS].error
        assert error is not None
        assert f"POST {api.url}{ENDPOINTS[REMINDERS]} was answered with {status}" in error
        assert ("WORKER_API_SERVICE_TOKEN" in error) == (status == 401)
        assert token not in error


async def test_the_log_of_a_worker_says_what_went_wrong_with_a_scheduler(
    database: Database, api: SchedulerApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.status = 500
    async with replica(database, api, tmp_path, worker_tick_runners=REMINDERS) as bench:
        await tick(bench)
    (told,) = [record.getMessage() for record in caplog.records if record.name == "invoicing.worker"]
    assert told == f"invoiceReminders did not succeed: POST {api.url}{ENDPOINTS[REMINDERS]} was answered with 500"
    assert TOKEN not in caplog.text


async def test_a_bug_in_a_scheduler_is_logged_with_its_traceback(
    database: Database,
    api: SchedulerApi,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fall(*_: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(runners, "_create", fall)
    async with replica(database, api, tmp_path, worker_tick_runners=REMINDERS) as bench:
        await tick(bench)
    assert "invoiceReminders failed" in caplog.text
    assert "in fall" in caplog.text


async def test_occurrences_between_two_ticks_are_not_reported_as_missed(
    database: Database, api: SchedulerApi, tmp_path: Path
) -> None:
    async with replica(database, api, tmp_path) as bench:
        await tick(bench)
        await bench.app.clock.advance(timedelta(minutes=10))
        made = await tick(bench)
    for name in ENDPOINTS:
        assert (made[name].counts, made[name].notes) == ({"created": 0}, "0 created")


async def test_an_api_that_is_unreachable_or_answers_nonsense_is_an_error(database: Database, tmp_path: Path) -> None:
    async with scheduler_api() as gone:
        pass
    host = gone.url.removeprefix("http://")
    given = {"worker_tick_runners": REMINDERS, "worker_api_base_url": f"http://user:hush@{host}/below/"}
    async with replica(database, gone, tmp_path, **given) as bench:
        error = (await tick(bench))[REMINDERS].error
    assert error is not None
    assert error.startswith(f"API_FAILED: POST http://{host}/below{ENDPOINTS[REMINDERS]}: ConnectError ")
    assert "hush" not in error


async def test_the_recorded_error_of_a_failed_call_contains_no_secret(
    database: Database, api: SchedulerApi, tmp_path: Path
) -> None:
    api.status = 500
    url = api.url.replace("http://", "http://user:hush@")
    async with replica(database, api, tmp_path, worker_tick_runners=REMINDERS, worker_api_base_url=url) as bench:
        await tick(bench)
        (run,) = await bench.app.runs.list(REMINDERS, 10)
    assert "was answered with 500" in repr(run)
    assert "hush" not in repr(run)


async def test_a_call_ends_when_its_runner_is_out_of_time(
    database: Database, api: SchedulerApi, tmp_path: Path
) -> None:
    api.hold.clear()
    given = {"worker_tick_runners": REMINDERS, "worker_tick_runner_max_ms": 300}
    async with replica(database, api, tmp_path, **given) as bench:
        # The API does not answer, and the tick's time limit is longer than this test's patience.
        made = await asyncio.wait_for(tick(bench), PATIENCE)
    assert made[REMINDERS].processed == 0


@pytest.mark.parametrize(("is_paused", "left"), [(False, 0), (True, 50)])
async def test_pausing_a_scheduler_stops_it_although_items_remain(
    database: Database, api: SchedulerApi, tmp_path: Path, is_paused: bool, left: int
) -> None:
    given = {"worker_api_base_url": api.url, "worker_api_service_token": TOKEN, "worker_tick_runner_max_items": 20}
    settings = worker_settings(database.url, tmp_path, **given)
    tools = Tools(settings)
    app = build_app(settings, tools, follows_up=True)
    api.left = {ENDPOINTS[REMINDERS]: 70}
    app.lifespan = lambda _app: nullcontext(tools)
    async with app, tools.opened(app.url):
        await app.declare()
        if is_paused:
            await app.schedules.pause(REMINDERS)
        await app.schedules.run_now(REMINDERS)
        await app.tick(runners=(REMINDERS,))
    assert api.left == {ENDPOINTS[REMINDERS]: left}
