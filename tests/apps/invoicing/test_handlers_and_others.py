"""Handlers whose jobs were touched by others: by workers that died or were cut off, and by people who intervened."""

import asyncio
import hashlib
import io
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from pypdf import PdfReader

from apps.invoicing.jobs import RENDER_FAILED, RENDER_PDF, SEND_EMAIL, RenderPdf
from holdfast import Enqueued, Job
from holdfast.store.contract import ClaimRequest, KindClaim
from tests.apps.invoicing.issuing import Bench, opened_bench
from tests.apps.invoicing.mail_server import MailServer
from tests.apps.invoicing.patience import PATIENCE, until

pytestmark = pytest.mark.postgres

FIRST_ATTEMPT = b"%PDF-1.7 of the first attempt %%EOF\n"


async def test_the_file_that_a_worker_wrote_before_it_died_is_kept(bench: Bench, mails: MailServer) -> None:
    issued = await bench.issue()
    await bench.tools.files.write_once(issued.storage_key, FIRST_ATTEMPT, "application/pdf")
    await bench.work_off()
    assert (await bench.document(issued))["sha256"] == hashlib.sha256(FIRST_ATTEMPT).hexdigest()
    assert [part.get_content() for part in mails.mails[0].iter_attachments()] == [FIRST_ATTEMPT]


@pytest.mark.parametrize("left", [b"", FIRST_ATTEMPT[:-7], b"something else"], ids=["empty", "torn", "foreign"])
async def test_a_file_torn_by_a_crash_is_written_again(bench: Bench, mails: MailServer, left: bytes) -> None:
    issued = await bench.issue()
    await bench.tools.files.write_once(issued.storage_key, left, "application/pdf")
    await bench.work_off()
    content = await bench.tools.files.read(issued.storage_key, (await bench.document(issued))["sha256"])
    assert len(PdfReader(io.BytesIO(content)).pages) == 1
    assert [part.get_content() for part in mails.mails[0].iter_attachments()] == [content]


async def test_a_file_that_was_changed_later_is_not_mailed(bench: Bench, mails: MailServer) -> None:
    issued = await bench.issue()
    await bench.work_off_but_mails()
    file = Path(bench.settings.files_url.removeprefix("file:")) / issued.storage_key
    file.write_bytes(FIRST_ATTEMPT)
    await bench.work_off()
    assert await bench.error_code(issued.email_job) == "STORAGE_UNAVAILABLE"
    delivery = await bench.delivery(issued)
    assert (delivery["status"], delivery["error_code"], mails.mails) == ("FAILED", "STORAGE_UNAVAILABLE", [])


async def test_a_mail_waits_for_a_pdf_that_was_requested_again(
    bench: Bench, mails: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request comes between two reads of the handler: of the document, whose job is over, and of that job."""
    issued = await bench.issue()
    await bench.app.cancel([issued.render_job])
    get = bench.app.jobs.get
    again: list[Enqueued] = []

    async def get_late(job_id: UUID) -> Job | None:
        if not again:
            again.append(await bench.app.enqueue(RENDER_PDF, RenderPdf(issued.document_id), delay="1h"))
            await bench.tools.pool.execute("UPDATE platform.document SET job_id = $1", again[0].id)
        return await get(job_id)

    monkeypatch.setattr(type(bench.app.jobs), "get", lambda _, job_id: get_late(job_id))
    await bench.work()
    assert (await bench.delivery(issued))["status"] == "PENDING"
    monkeypatch.undo()
    await bench.app.clock.advance(timedelta(hours=1))
    await bench.work_off()
    assert mails.message_ids == [issued.message_id]


async def test_a_worker_that_was_cut_off_cannot_change_a_delivered_pdf(
    bench: Bench, mails: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It continues after another worker, which renders different content by now, has done all the work."""
    issued = await bench.issue()
    late, go_on = asyncio.Event(), asyncio.Event()
    write_once = bench.tools.files.write_once

    async def write(key: str, content: bytes, *others: Any) -> bytes:  # noqa: ANN401
        if not late.is_set():
            late.set()
            await go_on.wait()
            content = FIRST_ATTEMPT
        return await write_once(key, content, *others)

    monkeypatch.setattr(bench.tools.files, "write_once", write)
    cut_off = asyncio.create_task(bench.work())
    await asyncio.wait_for(late.wait(), PATIENCE)
    async with opened_bench(bench.settings) as other:
        await other.app.clock.advance(timedelta(minutes=10))
        await other.work_off()
        before = await other.tools.files.read(issued.storage_key)
        go_on.set()
        await cut_off
        document = await other.document(issued)
        assert await other.tools.files.read(issued.storage_key) == before
    assert (document["state"], document["sha256"]) == ("READY", hashlib.sha256(before).hexdigest())
    assert [part.get_content() for part in mails.mails[0].iter_attachments()] == [before]


async def test_a_mail_does_not_wait_forever_for_a_pdf_whose_job_is_over(bench: Bench, mails: MailServer) -> None:
    """A person has reset the document without enqueueing a job for it."""
    issued = await bench.issue()
    await bench.work_off_but_mails()
    await bench.tools.pool.execute("UPDATE platform.document SET state = 'PENDING' WHERE id = $1", issued.document_id)
    await bench.work()
    assert await bench.error_code(issued.email_job) == RENDER_FAILED
    assert (await bench.delivery(issued))["status"] == "FAILED"
    assert mails.mails == []


async def test_a_document_without_its_file_is_not_mailed(bench: Bench, mails: MailServer) -> None:
    issued = await bench.issue()
    await bench.work_off_but_mails()
    await bench.tools.pool.execute("UPDATE platform.file SET state = 'PENDING', bytes = NULL, sha256 = NULL")
    await bench.work()
    assert await bench.error_code(issued.email_job) == RENDER_FAILED
    assert mails.mails == []


async def test_an_attempt_that_lost_its_lease_does_not_count_as_the_last(bench: Bench, mails: MailServer) -> None:
    """The lost attempt does not count: the delivery is FAILED when its job has failed, not before."""
    issued = await bench.issue()
    await bench.work_off_but_mails()
    mails.refuse = "451 try later"
    store = bench.app.opened.store
    await store.look(["default"], [SEND_EMAIL.name])
    (leased,) = await store.claim(
        ClaimRequest(uuid4(), 1, ("default",), {SEND_EMAIL.name: KindClaim(timedelta(seconds=1), 1)})
    )
    await bench.app.clock.advance(timedelta(seconds=2))
    assert [each.id for each in await store.rescue(10)] == [leased.id]
    for failures in range(1, 4):
        await bench.app.clock.advance(timedelta(minutes=5))
        await bench.work()
        job = await bench.job(issued.email_job)
        assert (job.attempt, job.losses) == (failures + 1, 1)
        assert ((await bench.delivery(issued))["status"] == "FAILED") == job.state.is_final == (failures == 3)


async def test_a_worker_that_was_cut_off_does_not_report_for_another_job(bench: Bench) -> None:
    issued = await bench.issue(template="gone", recipient="=?utf-8?q?eve?=@example.com")
    for table in ("platform.document", "invoicing.email_delivery"):
        await bench.tools.pool.execute(f"UPDATE {table} SET job_id = $1", uuid4())
    await bench.work_off()
    assert await bench.error_code(issued.render_job) == RENDER_FAILED
    assert (await bench.document(issued))["state"] == "PENDING"
    assert (await bench.delivery(issued))["status"] == "PENDING"


async def test_a_mail_that_a_person_retried_is_pending_during_the_attempt(bench: Bench, mails: MailServer) -> None:
    issued = await bench.issue()
    await bench.work_off_but_mails()
    mails.refuse = "550 no such user"
    await bench.work()
    assert (await bench.delivery(issued))["status"] == "FAILED"
    mails.refuse = None
    mails.hold.clear()
    await bench.app.retry([issued.email_job])
    working = asyncio.create_task(bench.work())
    await until(lambda: mails.at_once == 1)
    delivery = await bench.delivery(issued)
    assert (delivery["status"], delivery["error_code"]) == ("PENDING", None)
    mails.hold.set()
    await working
    assert (await bench.delivery(issued))["status"] == "SENT"
