"""How the outbox processes its jobs: claims, leases, attempts, concurrency and shutdown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from apps.invoicing import handlers
from apps.invoicing.jobs import RENDER_PDF
from apps.invoicing.rendering import PrintedInvoice, Typesetters, render
from holdfast import Holdfast, Job, JobState
from holdfast.domain.duration import Duration
from holdfast.store.contract import JobFilter
from tests.apps.invoicing.issuing import Bench, in_background, opened_bench, worker_settings
from tests.apps.invoicing.mail_server import MailServer, mail_server
from tests.apps.invoicing.patience import PATIENCE, until
from tests.databases import Database

pytestmark = pytest.mark.postgres


@asynccontextmanager
async def a_bench(database: Database, mails: MailServer, folder: Path, **given: object) -> AsyncIterator[Bench]:
    async with opened_bench(worker_settings(database.url, folder, smtp_url=mails.url, **given)) as bench:
        yield bench


@pytest.fixture
async def mails() -> AsyncIterator[MailServer]:
    async with mail_server() as server:
        yield server


async def test_a_job_is_pending_then_processing_then_sent(
    database: Database, mails: MailServer, tmp_path: Path
) -> None:
    mails.hold.clear()
    async with a_bench(database, mails, tmp_path) as bench:
        issued = await bench.issue()
        await bench.work_off_but_mails()
        states = [(await bench.job(issued.email_job)).state]
        async with in_background(bench):
            await until(lambda: mails.at_once > 0)
            states.append((await bench.job(issued.email_job)).state)
            idle = await bench.row(
                "SELECT count(*) AS open FROM pg_stat_activity"
                " WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
            )
            mails.hold.set()
            await until(lambda: bench.is_final(issued.email_job))
        states.append((await bench.job(issued.email_job)).state)
    assert states == [JobState.READY, JobState.RUNNING, JobState.SUCCEEDED]
    # The claim's transaction has ended before the handler does its work.
    assert idle == {"open": 0}


async def test_a_claim_takes_no_more_than_the_batch_size(
    database: Database, mails: MailServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_bench(database, mails, tmp_path, outbox_batch_size=3) as bench:
        for number in range(6):
            await bench.issue(number)
        store = bench.app.opened.store
        claim, taken = store.claim, list[int]()

        async def counted(request: Any) -> list[Any]:  # noqa: ANN401
            jobs = await claim(request)
            taken.append(len(jobs))
            return jobs

        monkeypatch.setattr(store, "claim", counted)
        await bench.work_off()
    assert max(taken) == 3
    assert sum(taken) >= 18


class Press:
    """Stands in for rendering: counts the pages in progress, and holds them."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.at_once = self.most_at_once = 0

    async def render(self, invoice: PrintedInvoice, folder: Path, typesetters: Typesetters) -> bytes:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.go_on.wait()
        finally:
            self.at_once -= 1
        return await render(invoice, folder, typesetters)


@pytest.fixture
def press(monkeypatch: pytest.MonkeyPatch) -> Press:
    press = Press()
    monkeypatch.setattr(handlers, "render", press.render)
    return press


async def test_the_concurrency_limits_how_many_handlers_run_at_once(
    database: Database, mails: MailServer, tmp_path: Path, press: Press
) -> None:
    async with a_bench(database, mails, tmp_path, outbox_concurrency=3, pdf_render_concurrency=6) as bench:
        issued = [await bench.issue(number) for number in range(6)]
        async with in_background(bench):
            await until(lambda: press.at_once == 3)
            # Rendering occupies every slot.
            assert [(await bench.job(each.tax_job)).state.is_final for each in issued] == [False] * 6
            press.go_on.set()
            await until(bench.are_all_final)
    assert press.most_at_once == 3
    assert len(mails.mails) == 6


async def test_mails_leave_one_slot_to_the_jobs_they_may_wait_for(
    database: Database, mails: MailServer, tmp_path: Path
) -> None:
    async with a_bench(database, mails, tmp_path, outbox_concurrency=3) as bench:
        for number in range(6):
            await bench.issue(number)
        await bench.work_off_but_mails()
        mails.hold.clear()
        async with in_background(bench):
            await until(lambda: mails.at_once == 2)
            later = await bench.issue(7)
            await until(lambda: bench.is_final(later.render_job))
            mails.hold.set()
            await until(bench.are_all_final)
    assert mails.most_at_once == 2
    assert len(mails.mails) == 7


@pytest.mark.parametrize(
    "given",
    [{"outbox_concurrency": 1}, {"worker_tick_shard_index": 0, "worker_tick_shard_count": 2}],
    ids=["the only one", "another process renders"],
)
async def test_a_mail_does_not_wait_in_a_slot_that_its_pdf_may_need(
    database: Database,
    mails: MailServer,
    tmp_path: Path,
    given: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = Holdfast.wait
    waits: list[Duration] = []

    async def noted(self: Holdfast, job_id: UUID | str, timeout: Duration = "30s") -> Job:
        waits.append(timeout)
        return await wait(self, job_id, timeout)

    monkeypatch.setattr(Holdfast, "wait", noted)
    async with a_bench(database, mails, tmp_path, **given) as bench:
        for number in range(8):
            await bench.issue(number)
        # The PDFs are due, but no worker can claim them.
        await bench.tools.pool.execute("UPDATE holdfast.ready SET queue = 'away' WHERE kind = $1", RENDER_PDF.name)
        await bench.work()
    assert mails.mails == []
    assert set(waits) == {timedelta(0)}


async def test_rendering_has_a_separate_limit(
    database: Database, mails: MailServer, tmp_path: Path, press: Press
) -> None:
    async with a_bench(database, mails, tmp_path, pdf_render_concurrency=2) as bench:
        issued = [await bench.issue(number) for number in range(6)]

        async def others_are_done() -> bool:
            return all([await bench.is_final(each.tax_job) for each in issued])

        async with in_background(bench):
            await until(lambda: press.at_once == 2)
            # Slots are free, and jobs of other kinds overtake the pages that wait for their turn.
            await until(others_are_done)
            assert press.at_once == 2
            press.go_on.set()
            await until(bench.are_all_final)
        assert len(await bench.app.jobs.list(JobFilter(kind=RENDER_PDF.name, state=JobState.SUCCEEDED), 10)) == 6
    assert press.most_at_once == 2


async def test_as_many_pages_are_rendered_at_once_as_the_limit_allows(
    database: Database, mails: MailServer, tmp_path: Path, press: Press
) -> None:
    many = 5
    given = {"pdf_render_concurrency": many, "outbox_concurrency": many + 2}
    async with a_bench(database, mails, tmp_path, **given) as bench:
        issued = [await bench.issue(number) for number in range(many)]
        await bench.app.cancel([job for each in issued for job in (each.email_job, each.tax_job)])
        async with in_background(bench):
            await until(lambda: press.at_once == many)
            press.go_on.set()
            await until(bench.are_all_final)


async def test_a_claim_has_a_lease_and_its_heartbeat_renews_it(
    database: Database, mails: MailServer, tmp_path: Path
) -> None:
    mails.hold.clear()
    given = {"outbox_lease_duration_ms": 600_000, "outbox_lease_heartbeat_ms": 300}
    async with a_bench(database, mails, tmp_path, **given) as bench:
        issued = await bench.issue()
        await bench.work_off_but_mails()
        async with in_background(bench):
            await until(lambda: mails.at_once > 0)
            claimed = await bench.job(issued.email_job)
            assert claimed.holder is not None
            assert claimed.lease_until is not None
            claimed_until = claimed.lease_until
            left = claimed_until - await bench.app.clock.now()
            assert timedelta(minutes=5) < left <= timedelta(minutes=10)

            async def is_renewed() -> bool:
                now = await bench.job(issued.email_job)
                return now.lease_until is not None and now.lease_until > claimed_until

            await until(is_renewed)
            mails.hold.set()
            await until(lambda: bench.is_final(issued.email_job))


@pytest.mark.parametrize("jitter", [0, 400])
async def test_the_waits_between_attempts_grow_until_the_last_attempt(
    database: Database, mails: MailServer, tmp_path: Path, jitter: int
) -> None:
    mails.refuse = "451 try later"
    given = {
        "outbox_max_attempts": 5,
        "outbox_retry_base_ms": 1000,
        "outbox_retry_max_ms": 3000,
        "outbox_retry_jitter_ms": jitter,
    }
    async with a_bench(database, mails, tmp_path, **given) as bench:
        issued = await bench.issue()
        await bench.work_off_but_mails()
        await bench.app.clock.freeze(await bench.app.clock.now())
        waits = []
        await bench.work()
        while not (job := await bench.job(issued.email_job)).state.is_final:
            assert job.run_at is not None
            waits.append((job.run_at - await bench.app.clock.now()) / timedelta(milliseconds=1))
            await bench.app.clock.freeze(job.run_at)
            await bench.work()
    assert (job.state, job.attempt) == (JobState.DEAD, 5)
    added = [wait - least for wait, least in zip(waits, (1000, 2000, 3000, 3000), strict=True)]
    assert all(0 <= each <= jitter for each in added)
    # Random, so that jobs that failed together are not retried together.
    assert len(set(added)) == (len(waits) if jitter else 1)


async def test_a_stopping_worker_waits_for_its_running_jobs(
    database: Database, mails: MailServer, tmp_path: Path
) -> None:
    mails.hold.clear()
    async with a_bench(database, mails, tmp_path) as bench:
        issued, later = await bench.issue(1), await bench.issue(2)
        await bench.work_off_but_mails()
        await bench.app.cancel([later.email_job])
        process = bench.app.worker(runners=("queue",))
        running = asyncio.create_task(process.run())
        await until(lambda: mails.at_once > 0)
        process.stop()
        await bench.app.retry([later.email_job])
        mails.hold.set()
        assert await asyncio.wait_for(running, PATIENCE) == 0
        # The running jobs were finished, and no new one was started.
        assert (await bench.job(issued.email_job)).state is JobState.SUCCEEDED
        assert (await bench.job(later.email_job)).state is JobState.READY
    assert mails.message_ids == [issued.message_id]


async def test_a_stopping_worker_waits_no_longer_than_its_timeout(
    database: Database, mails: MailServer, tmp_path: Path
) -> None:
    mails.hold.clear()
    async with a_bench(database, mails, tmp_path, worker_shutdown_timeout_ms=100) as bench:
        issued = await bench.issue()
        await bench.work_off_but_mails()
        process = bench.app.worker(runners=("queue",))
        running = asyncio.create_task(process.run())
        await until(lambda: mails.at_once > 0)
        process.stop()
        # The server holds the mail, and the default timeout is longer than this test's patience.
        assert await asyncio.wait_for(running, 25) == 0
        job = await bench.job(issued.email_job)
        assert (job.state, job.attempt) == (JobState.READY, 0)
        assert job.last_error is not None
        assert job.last_error.code == "INTERRUPTED"
