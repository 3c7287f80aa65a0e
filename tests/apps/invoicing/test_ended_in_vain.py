"""What the API reports about a mail or a PDF whose job was ended by the death of its worker, not by its handler."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from apps.invoicing.jobs import RENDER_FAILED, RENDER_PDF, SEND_EMAIL
from holdfast import JobState
from holdfast.store.contract import ClaimRequest, JobFilter, KindClaim
from tests.apps.invoicing.conftest import Api
from tests.apps.invoicing.issuing import Bench, opened_bench, worker_settings
from tests.apps.invoicing.mail_server import MailServer
from tests.apps.invoicing.patience import PATIENCE, until
from tests.apps.invoicing.steps import rows

pytestmark = pytest.mark.postgres

STATES = (
    "SELECT document.state, email_delivery.status FROM platform.document"
    " JOIN invoicing.email_delivery ON invoice_id = subject_id"
)


async def job_of(bench: Bench, kind: str) -> UUID:
    (job,) = await bench.app.jobs.list(JobFilter(kind=kind), 10)
    return job.id


async def lose_three_leases(bench: Bench, kind: str) -> None:
    """Lose the lease three times, as if the job killed its workers."""
    store = bench.app.opened.store
    for losses in range(3):
        kinds = {kind: KindClaim(timedelta(seconds=1), 1)}
        await store.look(["default"], [kind])
        (leased,) = await store.claim(ClaimRequest(uuid4(), 1, ("default",), kinds, losses == 2))
        if losses == 2:
            await store.run_alone(leased.lease, 1)
        await bench.app.clock.advance(timedelta(seconds=2))
        assert len(await store.rescue(10)) == 1
        await bench.app.clock.advance(timedelta(minutes=5))


async def interrupted_when(bench: Bench, is_at_work: Any) -> None:  # noqa: ANN401
    worker = bench.app.worker(runners=("queue",))
    running = asyncio.create_task(worker.run())
    await until(is_at_work)
    worker.stop()
    await asyncio.wait_for(running, PATIENCE)


async def check_the_mail_is_reported_and_retried(api: Api, bench: Bench, mails: MailServer, code: str) -> None:
    job = await bench.job(await job_of(bench, SEND_EMAIL.name))
    assert (job.state, await bench.error_code(job.id)) == (JobState.DEAD, code)
    assert await rows(api.service.settings.database_url, STATES) == [("READY", "PENDING")]
    (delivery,) = await rows(api.service.settings.database_url, "SELECT id FROM invoicing.email_delivery")
    told = await api.client.get(f"/deliveries/{delivery[0]}")
    assert (told["status"], told["errorCode"]) == ("FAILED", code)
    assert await rows(api.service.settings.database_url, STATES) == [("READY", "FAILED")]
    await api.client.post(f"/invoices/{told['invoiceId']}/email", status=202)
    await bench.work_off()
    assert (await api.client.get(f"/deliveries/{delivery[0]}"))["status"] == "SENT"
    assert mails.message_ids == [told["messageId"]]


async def check_the_pdf_is_reported_and_retried(api: Api, bench: Bench, invoice: str, code: str) -> None:
    job = await bench.job(await job_of(bench, RENDER_PDF.name))
    assert (job.state, await bench.error_code(job.id)) == (JobState.DEAD, code)
    assert (await rows(api.service.settings.database_url, STATES))[0][0] == "PENDING"
    for _ in range(2):
        told = await api.client.get(f"/invoices/{invoice}/pdf?waitMs=30000", status=422)
        assert (told["error"], told["message"]) == (RENDER_FAILED, "the rendering job ended dead")
    assert (await rows(api.service.settings.database_url, STATES))[0][0] == "FAILED"
    await bench.app.retry([job.id])
    await bench.work_off()
    await api.client.get(f"/invoices/{invoice}/pdf?waitMs=0")


@pytest.mark.parametrize("kind", [SEND_EMAIL.name, RENDER_PDF.name])
async def test_three_lost_leases_end_it_no_matter_how_many_attempts_remain(
    api: Api, mails: MailServer, tmp_path: Path, kind: str
) -> None:
    given = {"smtp_url": mails.url, "outbox_max_attempts": 10}
    async with opened_bench(worker_settings(api.service.settings.database_url, tmp_path, **given)) as bench:
        invoice = (await api.client.issued(send_email=True))["id"]
        if kind == SEND_EMAIL.name:
            await bench.work_off_but_mails()
        await lose_three_leases(bench, kind)
        if kind == SEND_EMAIL.name:
            await check_the_mail_is_reported_and_retried(api, bench, mails, "LEASE_LOST")
        else:
            await check_the_pdf_is_reported_and_retried(api, bench, invoice, "LEASE_LOST")


async def is_ready_again(bench: Bench, kind: str) -> None:
    job = await bench.job(await job_of(bench, kind))
    assert (job.state, job.attempt, await bench.error_code(job.id)) == (JobState.READY, 0, "INTERRUPTED")


async def test_a_deployment_costs_a_mail_no_attempt(api: Api, mails: MailServer, tmp_path: Path) -> None:
    given = {"smtp_url": mails.url, "outbox_max_attempts": 1, "worker_shutdown_timeout_ms": 100}
    async with opened_bench(worker_settings(api.service.settings.database_url, tmp_path, **given)) as bench:
        await api.client.issued(send_email=True)
        await bench.work_off_but_mails()
        mails.hold.clear()
        await interrupted_when(bench, lambda: mails.at_once == 1)
        mails.hold.set()
        await until(lambda: mails.at_once == 0)
        await is_ready_again(bench, SEND_EMAIL.name)
        # The server may have kept the mail or not: its client was gone.
        mails.mails.clear()
        await bench.work_off()
        assert await rows(api.service.settings.database_url, STATES) == [("READY", "SENT")]
        assert len(mails.message_ids) == 1


async def test_a_deployment_costs_a_pdf_no_attempt(
    api: Api, mails: MailServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"smtp_url": mails.url, "outbox_max_attempts": 1, "worker_shutdown_timeout_ms": 100}
    async with opened_bench(worker_settings(api.service.settings.database_url, tmp_path, **given)) as bench:
        invoice = (await api.client.issued(send_email=True))["id"]
        at_work = asyncio.Event()

        async def hang(*_: object) -> bytes:
            at_work.set()
            await asyncio.Event().wait()
            return b""

        with monkeypatch.context() as patched:
            patched.setattr(bench.tools.files, "write_once", hang)
            await interrupted_when(bench, at_work.is_set)
        await is_ready_again(bench, RENDER_PDF.name)
        await bench.work_off()
        await api.client.get(f"/invoices/{invoice}/pdf?waitMs=0")
