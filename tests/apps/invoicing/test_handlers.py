"""What each handler leaves behind, and that a crash at any point leaves nothing else."""

import hashlib
import io
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from pypdf import PdfReader

from apps.invoicing.jobs import RENDER_FAILED, RENDER_PDF, SEND_EMAIL, SNAPSHOT_TAX, RenderPdf, SendEmail, SnapshotTax
from apps.invoicing.money import totals
from apps.invoicing.tools import Tools
from apps.invoicing.worker import build_app
from holdfast import Holdfast, JobState
from holdfast.testing import Tables, check_idempotency
from tests.apps.invoicing.issuing import LINES, Bench, Issued, opened_bench, worker_settings
from tests.apps.invoicing.mail_server import MailServer, curt_server
from tests.databases import Database

pytestmark = pytest.mark.postgres


async def test_an_issued_invoice_gets_its_pdf_its_mail_and_its_tax(bench: Bench, mails: MailServer) -> None:
    issued = await bench.issue(customer="Zoë & Co")
    await bench.work_off()

    document = await bench.document(issued)
    content = await bench.tools.files.read(issued.storage_key)
    assert (document["state"], document["file_state"]) == ("READY", "READY")
    assert (document["bytes"], document["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    text = " ".join(PdfReader(io.BytesIO(content)).pages[0].extract_text().split())
    assert "Zoë & Co" in text
    assert f"Total {totals(LINES).total:,} EUR" in text

    delivery = await bench.delivery(issued)
    assert (delivery["status"], mails.message_ids) == ("SENT", [issued.message_id])
    assert [part.get_content() for part in mails.mails[0].iter_attachments()] == [content]

    rows = await bench.tools.pool.fetch("SELECT tax_rate, net, tax, currency FROM invoicing.tax_snapshot ORDER BY 1")
    assert [tuple(row) for row in rows] == [(each.rate, each.net, each.tax, "EUR") for each in totals(LINES).by_rate]
    for job in (issued.render_job, issued.email_job, issued.tax_job):
        assert (await bench.job(job)).state is JobState.SUCCEEDED


async def test_a_mail_waits_for_its_pdf_without_counting_attempts(bench: Bench, mails: MailServer) -> None:
    issued = await bench.issue()
    rendering = await bench.app.cancel([issued.render_job])
    await bench.tools.pool.execute(
        "UPDATE platform.document SET job_id = $1",
        (await bench.app.enqueue(RENDER_PDF, RenderPdf(issued.document_id), delay="1h")).id,
    )
    for _ in range(4):
        await bench.work()
        await bench.app.clock.advance(timedelta(seconds=5))
    waiting = await bench.job(issued.email_job)
    assert (rendering, waiting.state, waiting.attempt) == (["canceled"], JobState.READY, 0)
    assert mails.mails == []
    await bench.app.clock.advance(timedelta(hours=1))
    await bench.work_off()
    assert mails.message_ids == [issued.message_id]


async def test_a_mail_is_retried_soon_at_first_and_less_often_later(bench: Bench) -> None:
    issued = await bench.issue()
    await bench.tools.pool.execute(
        "UPDATE platform.document SET job_id = $1",
        (await bench.app.enqueue(RENDER_PDF, RenderPdf(issued.document_id), delay="1h")).id,
    )
    await bench.app.cancel([issued.render_job])
    waits = []
    for age in (0, 4, 600):
        await bench.app.clock.advance(timedelta(seconds=age))
        await bench.work()
        job = await bench.job(issued.email_job)
        assert job.run_at is not None
        waits.append(job.run_at - await bench.app.clock.now())
    assert waits[0] < waits[1] < waits[2] <= timedelta(seconds=5)


async def test_a_failing_template_ends_the_document_the_job_and_the_mail(
    bench: Bench, mails: MailServer, tmp_path: Path
) -> None:
    (tmp_path / "templates" / "broken.typ").write_text("#no_such_thing()")
    issued = await bench.issue(template="broken")
    await bench.work_off()
    document, delivery = await bench.document(issued), await bench.delivery(issued)
    assert (document["state"], document["file_state"], document["error_code"]) == ("FAILED", "FAILED", RENDER_FAILED)
    assert "no_such_thing" in document["error_message"]
    assert (delivery["status"], delivery["error_code"], mails.mails) == ("FAILED", RENDER_FAILED, [])
    for which in ("render_job", "email_job"):
        job = await bench.job(getattr(issued, which))
        assert (job.state, job.attempt) == (JobState.FAILED, 1)
        assert await bench.error_code(getattr(issued, which)) == RENDER_FAILED


async def test_a_failed_pdf_is_rendered_when_a_person_retries_it(
    bench: Bench, mails: MailServer, tmp_path: Path
) -> None:
    issued = await bench.issue(template="new")
    await bench.work_off()
    assert (await bench.document(issued))["state"] == "FAILED"
    shutil.copy(tmp_path / "templates" / "invoice.typ", tmp_path / "templates" / "new.typ")
    await bench.app.retry([issued.render_job, issued.email_job])
    await bench.work_off()
    document = await bench.document(issued)
    assert (document["state"], document["error_code"], document["error_message"]) == ("READY", None, None)
    assert mails.message_ids == [issued.message_id]


async def test_a_mail_gives_up_when_the_job_of_its_pdf_has_ended_without_one(bench: Bench) -> None:
    issued = await bench.issue()
    await bench.app.cancel([issued.render_job])
    await bench.work_off()
    assert (await bench.document(issued))["state"] == "PENDING"
    assert (await bench.delivery(issued))["error_code"] == RENDER_FAILED


@pytest.mark.parametrize(("answer", "attempts"), [("550 no such user", 1), ("451 try later", 3)])
async def test_a_refused_mail_is_final_at_once_or_after_the_last_attempt(
    bench: Bench, mails: MailServer, answer: str, attempts: int
) -> None:
    issued = await bench.issue()
    mails.refuse = answer
    await bench.work_off()
    job, delivery = await bench.job(issued.email_job), await bench.delivery(issued)
    assert (job.attempt, job.state.is_dead_letter) == (attempts, True)
    assert delivery["status"] == "FAILED"
    assert delivery["error_code"] == ("MAIL_REFUSED" if attempts == 1 else "MAIL_DEFERRED")


async def test_a_refused_account_does_not_fail_a_mail(database: Database, tmp_path: Path) -> None:
    async with (
        curt_server(AUTH="535 5.7.8 bad credentials") as server,
        opened_bench(
            worker_settings(database.url, tmp_path, smtp_url=server.url, smtp_password_without_tls=True)
        ) as bench,
    ):
        issued = await bench.issue()
        await bench.work_off_but_mails()
        await bench.work()
        assert (await bench.job(issued.email_job)).state is JobState.READY
        assert (await bench.delivery(issued))["status"] == "PENDING"
        await bench.work_off()
        job, delivery = await bench.job(issued.email_job), await bench.delivery(issued)
    assert (job.state, job.attempt) == (JobState.DEAD, 3)
    assert (delivery["status"], delivery["error_code"]) == ("FAILED", "MAIL_SERVER_REFUSED")
    assert job.last_error is not None
    assert (job.last_error.code, "535 5.7.8 bad credentials" in job.last_error.message) == ("MAIL_SERVER_REFUSED", True)


async def test_a_mail_server_without_tls_gets_no_password_and_the_delivery_says_so(
    database: Database, tmp_path: Path
) -> None:
    async with (
        curt_server() as server,
        opened_bench(worker_settings(database.url, tmp_path, smtp_url=server.url)) as bench,
    ):
        issued = await bench.issue()
        await bench.work_off_but_mails()
        await bench.work_off()
        job, delivery = await bench.job(issued.email_job), await bench.delivery(issued)
    assert not [line for line in server.heard if line.startswith("AUTH")]
    assert (job.state, delivery["error_code"]) == (JobState.DEAD, "MAIL_SERVER_REFUSED")
    assert job.last_error is not None
    assert "offers no STARTTLS" in job.last_error.message


async def test_a_handlers_writes_and_the_end_of_its_job_are_one_transaction(bench: Bench) -> None:
    """Compares the transaction IDs that PostgreSQL notes in each row: no reader can see one without the other."""
    issued = await bench.issue()
    await bench.work_off()
    for job, written in (
        (issued.render_job, ("platform.document", "id", issued.document_id)),
        (issued.email_job, ("invoicing.email_delivery", "id", issued.delivery_id)),
        (issued.tax_job, ("invoicing.tax_snapshot", "invoice_id", issued.id)),
    ):
        table, column, value = written
        row = await bench.row(f"SELECT min(xmin::text) AS by FROM {table} WHERE {column} = $1", value)
        end = await bench.row("SELECT xmin::text AS by FROM holdfast.finished WHERE id = $1", job)
        assert row == end, table


async def test_a_mail_is_sent_when_the_server_accepts_it_later(bench: Bench, mails: MailServer) -> None:
    issued = await bench.issue()
    mails.refuse = "451 try later"
    await bench.work()
    await bench.app.clock.advance(timedelta(seconds=5))
    await bench.work()
    assert (await bench.delivery(issued))["status"] == "PENDING"
    assert await bench.error_code(issued.email_job) == "MAIL_DEFERRED"
    mails.refuse = None
    await bench.work_off()
    assert (await bench.delivery(issued))["status"] == "SENT"
    assert mails.message_ids == [issued.message_id]


async def test_a_pdf_that_cannot_be_stored_fails_after_the_last_attempt(bench: Bench, tmp_path: Path) -> None:
    issued = await bench.issue()
    (tmp_path / "files" / "invoices").write_text("not a folder")
    await bench.work_off()
    document, job = await bench.document(issued), await bench.job(issued.render_job)
    assert (job.state, job.attempt) == (JobState.DEAD, bench.settings.outbox_max_attempts)
    assert await bench.error_code(issued.render_job) == "STORAGE_UNAVAILABLE"
    assert (document["state"], document["error_code"]) == ("FAILED", RENDER_FAILED)
    # Clients must not learn where files are stored.
    assert document["error_message"] == "not done after 3 attempts: STORAGE_UNAVAILABLE"


async def test_an_unexpected_error_has_a_code_that_reveals_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = await bench.issue()
    await bench.work_off_but_mails()

    async def fail(*_: object) -> None:
        raise RuntimeError("hush")

    monkeypatch.setattr(bench.tools.mailer, "send", fail)
    await bench.work_off()
    assert (await bench.delivery(issued))["error_code"] == "ATTEMPTS_EXHAUSTED"


async def test_ready_documents_and_sent_mails_are_left_alone(bench: Bench, mails: MailServer) -> None:
    issued = await bench.issue()
    await bench.work_off()
    before = await bench.document(issued), await bench.delivery(issued)
    await bench.app.enqueue(RENDER_PDF, RenderPdf(issued.document_id))
    await bench.app.enqueue(SEND_EMAIL, SendEmail(issued.delivery_id))
    await bench.work_off()
    assert (await bench.document(issued), await bench.delivery(issued)) == before
    assert len(mails.mails) == 1


async def test_a_tax_snapshot_has_the_same_numbers_at_any_time(bench: Bench) -> None:
    issued = await bench.issue()
    await bench.work_off()
    query = "SELECT * FROM invoicing.tax_snapshot ORDER BY tax_rate"
    before = await bench.tools.pool.fetch(query)
    await bench.tools.pool.execute("UPDATE invoicing.tax_snapshot SET net = $1", Decimal(1))
    await bench.app.enqueue(SNAPSHOT_TAX, SnapshotTax(issued.id))
    await bench.work_off()
    assert await bench.tools.pool.fetch(query) == before


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (RENDER_PDF.name, {"document_id": "00000000-0000-0000-0000-000000000000"}),
        (SEND_EMAIL.name, {"delivery_id": "00000000-0000-0000-0000-000000000000"}),
        (SNAPSHOT_TAX.name, {"invoice_id": "00000000-0000-0000-0000-000000000000"}),
        (RENDER_PDF.name, {"document_id": "none"}),
        (SEND_EMAIL.name, {}),
    ],
)
async def test_a_job_for_an_unknown_object_is_a_dead_letter_at_once(
    bench: Bench, kind: str, payload: dict[str, str]
) -> None:
    # Enqueued with SQL, because the app itself refuses such a payload.
    job_id = await bench.tools.pool.fetchval("SELECT id FROM holdfast.enqueue($1, $2)", kind, json.dumps(payload))
    await bench.work()
    job = await bench.job(job_id)
    assert (job.state, job.attempt) == (JobState.FAILED, 1)


TABLES = (
    "platform.file",
    "platform.document",
    "invoicing.email_delivery",
    "invoicing.reminder",
    "invoicing.tax_snapshot",
)


class NoMemory(set[UUID]):
    """The memory of a process that has died in the meantime."""

    def __contains__(self, _: object) -> bool:
        return False


@asynccontextmanager
async def to_check(
    url: str, mails: MailServer, folder: Path, *, is_rendered: bool
) -> "AsyncIterator[tuple[Holdfast, Issued, Path]]":
    """An app that is not open, as the check requires, and an invoice for it to process."""
    settings = worker_settings(url, folder, smtp_url=mails.url)
    async with opened_bench(settings) as bench:
        issued = await bench.issue()
        if is_rendered:
            await bench.app.cancel([issued.email_job, issued.tax_job])
            await bench.work()
    tools = Tools(settings)
    tools.accepted = NoMemory()
    yield build_app(settings, tools), issued, folder / "files" / issued.storage_key


async def test_rendering_may_crash_anywhere(database: Database, mails: MailServer, tmp_path: Path) -> None:
    url = database.url
    async with to_check(url, mails, tmp_path, is_rendered=False) as (app, issued, file):

        def written() -> dict[str, str]:
            return {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}

        report = await check_idempotency(
            app,
            RENDER_PDF,
            RenderPdf(issued.document_id),
            observe=[Tables(url, *TABLES), written],
            setup=lambda: file.unlink(missing_ok=True),
            database=url,
        )
    assert report.ok, report
    assert any("finish_in_transaction" in step.text for step in report.steps)


async def test_a_tax_snapshot_may_crash_anywhere(database: Database, mails: MailServer, tmp_path: Path) -> None:
    url = database.url
    async with to_check(url, mails, tmp_path, is_rendered=False) as (app, issued, _):
        report = await check_idempotency(
            app, SNAPSHOT_TAX, SnapshotTax(issued.id), observe=Tables(url, *TABLES), database=url
        )
    assert report.ok, report
    assert any("finish_in_transaction" in step.text for step in report.steps)


async def test_mailing_may_crash_anywhere_and_repeats_only_a_recognizable_mail(
    database: Database, mails: MailServer, tmp_path: Path
) -> None:
    url, sending = database.url, "apps.invoicing.mail.Mailer.send"
    async with to_check(url, mails, tmp_path, is_rendered=True) as (app, issued, _):
        payload = SendEmail(issued.delivery_id)
        report = await check_idempotency(
            app, SEND_EMAIL, payload, observe=Tables(url, *TABLES), database=url, also=[sending]
        )
    differences = {difference for problem in report.problems for difference in problem.differences}
    assert differences == {f"{sending}: called twice instead of once"}, report
    assert set(mails.message_ids) == {issued.message_id}


async def test_a_paid_invoice_gets_no_reminder(bench: Bench, mails: MailServer) -> None:
    issued = await bench.issue(reminder_level=2)
    await bench.work_off_but_mails()
    await bench.tools.pool.execute("UPDATE invoicing.invoice SET status = 'PAID' WHERE id = $1", issued.id)
    await bench.work()
    assert (await bench.delivery(issued))["error_code"] == "INVOICE_IS_PAID"
    assert mails.mails == []


async def test_a_pdf_that_is_requested_again_can_fail(bench: Bench) -> None:
    issued = await bench.issue()
    await bench.work_off()
    await bench.tools.pool.execute("UPDATE platform.document SET state = 'PENDING' WHERE id = $1", issued.document_id)
    await bench.tools.pool.execute("UPDATE invoicing.invoice SET template = 'gone' WHERE id = $1", issued.id)
    await bench.app.retry([issued.render_job])
    await bench.work()
    document = await bench.document(issued)
    assert (document["state"], document["file_state"]) == ("FAILED", "FAILED")
    assert await bench.error_code(issued.render_job) == RENDER_FAILED


async def test_an_address_with_an_encoded_word_is_refused(bench: Bench, mails: MailServer) -> None:
    issued = await bench.issue(recipient="=?utf-8?q?eve=40evil.example=2C_b?=@example.com")
    await bench.work_off()
    assert (await bench.delivery(issued))["error_code"] == "MAIL_REFUSED"
    assert mails.mails == []
