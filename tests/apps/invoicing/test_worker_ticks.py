"""The budgets of a tick, its shards, and simultaneous replicas."""

import asyncio
from pathlib import Path

import pytest

from apps.invoicing.reports import turns
from apps.invoicing.runners import ENDPOINTS
from apps.invoicing.settings import BILLING, OUTBOX, REMINDERS, Settings
from holdfast import JobState
from tests.apps.invoicing.issuing import Issued, opened_bench, worker_settings
from tests.apps.invoicing.mail_server import mail_server
from tests.apps.invoicing.patience import until
from tests.apps.invoicing.scheduler_api import TOKEN, scheduler_api
from tests.databases import Database

pytestmark = pytest.mark.postgres


async def test_a_runner_takes_no_more_items_than_its_share(database: Database, tmp_path: Path) -> None:
    settings = worker_settings(database.url, tmp_path, worker_tick_runner_max_items=2)
    async with mail_server() as mails, opened_bench(settings) as bench:
        for number in range(3):
            await bench.issue(number)
        assert [turn.processed for turn in turns(await bench.work())] == [2]
        assert [turn.processed for turn in turns(await bench.work())] == [2]
    assert mails.mails == []


async def test_one_tick_does_all_the_work_for_an_invoice(database: Database, tmp_path: Path) -> None:
    """If a mail had to come back for its PDF, it would use up part of another runner's share."""
    async with mail_server() as mails:
        settings = worker_settings(database.url, tmp_path, smtp_url=mails.url, worker_tick_runner_max_items=18)
        async with opened_bench(settings) as bench:
            for number in range(6):
                await bench.issue(number)
            (turn,) = turns(await bench.work())
    assert (turn.processed, turn.counts) == (18, {"sent": 18})
    assert len(mails.mails) == 6


async def test_the_largest_numbers_work(database: Database, tmp_path: Path) -> None:
    numbers = (name for name, value in Settings.load().model_dump().items() if isinstance(value, int))
    largest = {name: 10**11 for name in numbers if name.endswith("_ms")} | {
        "worker_tick_runner_max_items": 10**9,
        "outbox_batch_size": 10**9,
        "outbox_max_attempts": 1000,
        "outbox_lease_heartbeat_ms": 10**11 // 2,
        "worker_tick_shard_index": 0,
        "worker_tick_shard_count": 1,
    }
    async with mail_server() as mails, scheduler_api() as api:
        mails.refuse = "451 try later"
        settings = worker_settings(
            database.url,
            tmp_path,
            smtp_url=mails.url,
            worker_api_base_url=api.url,
            worker_api_service_token=TOKEN,
            **largest,
        )
        async with opened_bench(settings) as bench:
            issued = await bench.issue()
            await bench.work_off_but_mails()
            report = await bench.work("queue", REMINDERS, BILLING)
            job = await bench.job(issued.email_job)
    assert report.is_fine
    assert (job.state, job.attempt) == (JobState.READY, 1)
    assert set(api.calls) == set(ENDPOINTS.values())


async def test_a_slow_runner_leaves_the_others_their_turn(database: Database, tmp_path: Path) -> None:
    async with mail_server() as mails, scheduler_api() as api:
        mails.hold.clear()
        settings = worker_settings(
            database.url,
            tmp_path,
            smtp_url=mails.url,
            worker_tick_runner_max_ms=500,
            worker_tick_runners=f"{OUTBOX},{REMINDERS}",
            worker_api_base_url=api.url,
            worker_api_service_token=TOKEN,
        )
        async with opened_bench(settings) as bench:
            issued = await bench.issue()
            await bench.work_off_but_mails()
            ticking = asyncio.create_task(bench.work("queue", REMINDERS))

            async def has_run() -> bool:
                return any(run.finished_at is not None for run in await bench.app.runs.list(REMINDERS, 1))

            await until(has_run)
            # The outbox is out of time while its mail is still in progress; the mail gets the rest of the tick's time.
            assert (await bench.delivery(issued))["status"] == "PENDING"
            mails.hold.set()
            await ticking
            assert (await bench.delivery(issued))["status"] == "SENT"


async def test_a_tick_ends_on_time_and_reports_what_it_skipped(database: Database, tmp_path: Path) -> None:
    async with mail_server() as mails, scheduler_api() as api:
        mails.hold.clear()
        settings = worker_settings(
            database.url,
            tmp_path,
            smtp_url=mails.url,
            worker_tick_overall_max_ms=500,
            worker_tick_runner_max_ms=500,
            worker_api_base_url=api.url,
            worker_api_service_token=TOKEN,
        )
        async with opened_bench(settings) as bench:
            issued = await bench.issue()
            await bench.work_off_but_mails()
            report = await asyncio.wait_for(bench.work("queue", REMINDERS, BILLING), 60)
            skipped = {turn.runner: turn.skipped for turn in turns(report)}
            assert skipped[REMINDERS] == skipped[BILLING] == "the tick's budget is spent"
            # The interrupted job will run again, and the attempt does not count.
            (outbox,) = (turn for turn in turns(report) if turn.runner == OUTBOX)
            assert (outbox.processed, outbox.counts) == (0, {"interrupt": 1})
            job = await bench.job(issued.email_job)
            assert (job.attempt, job.last_error and job.last_error.code) == (0, "INTERRUPTED")
    assert api.calls == []


async def test_shards_split_the_outbox_and_not_the_schedulers(database: Database, tmp_path: Path) -> None:
    async with mail_server() as mails, scheduler_api() as api:
        issued: list[Issued] = []
        done = []
        for index in range(2):
            settings = worker_settings(
                database.url,
                tmp_path,
                smtp_url=mails.url,
                worker_tick_shard_index=index,
                worker_tick_shard_count=2,
                worker_api_base_url=api.url,
                worker_api_service_token=TOKEN,
            )
            async with opened_bench(settings) as bench:
                if not issued:
                    issued = [await bench.issue(number) for number in range(12)]
                await bench.work("queue", REMINDERS, BILLING)
                jobs = [await bench.job(each.tax_job) for each in issued]
                done.append({job.id for job in jobs if job.state.is_final})
    everything = {each.tax_job for each in issued}
    assert 0 < len(done[0]) < len(everything)
    assert done[1] == everything
    for path in ENDPOINTS.values():
        assert api.calls.count(path) >= 2


async def test_simultaneous_replicas_run_each_job_once(database: Database, tmp_path: Path) -> None:
    async with mail_server() as mails:
        settings = worker_settings(database.url, tmp_path, smtp_url=mails.url, outbox_batch_size=2)
        async with opened_bench(settings) as one, opened_bench(settings) as other, opened_bench(settings) as third:
            issued = [await one.issue(number) for number in range(9)]
            while any([not (await one.job(each.email_job)).state.is_final for each in issued]):
                reports = await asyncio.gather(*(bench.work() for bench in (one, other, third)))
                assert all(report.is_fine for report in reports)
            jobs = [await one.job(job) for each in issued for job in (each.render_job, each.tax_job, each.email_job)]
    assert [(job.attempt, job.losses) for job in jobs] == [(1, 0)] * len(jobs)
    assert sorted(mails.message_ids) == sorted(each.message_id for each in issued)
