"""Issued invoices, created with the same SQL that the API uses, and an open worker app to process them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from apps.invoicing.jobs import (
    INVOICE_PDF,
    RENDER_FIRST,
    RENDER_PDF,
    SEND_EMAIL,
    SNAPSHOT_TAX,
    RenderPdf,
    SendEmail,
    SnapshotTax,
)
from apps.invoicing.money import Line, totals
from apps.invoicing.settings import Settings
from apps.invoicing.tools import Tools
from apps.invoicing.worker import build_app
from holdfast import Holdfast, Job
from holdfast.store.contract import JobFilter
from holdfast.types import TickReport
from tests.apps.invoicing.patience import PATIENCE

if TYPE_CHECKING:
    from apps.invoicing.database import Connection

LINES = (
    Line("Consulting", Decimal("12.5"), Decimal("120.00"), Decimal(19)),
    Line("Handbook", Decimal(3), Decimal("24.90"), Decimal(7)),
)


@dataclass(frozen=True, slots=True)
class Issued:
    id: UUID
    number: str
    document_id: UUID
    delivery_id: UUID
    message_id: str
    storage_key: str
    render_job: UUID
    email_job: UUID
    tax_job: UUID


async def issue(
    connection: "Connection",
    app: Holdfast,
    number: int = 1,
    *,
    template: str = "invoice",
    lines: Sequence[Line] = LINES,
    customer: str = "Example Ltd",
    recipient: str = "accounts@example.com",
    reminder_level: int = 0,
) -> Issued:
    """Write the business rows and the jobs in one transaction, with the keys that the API uses."""
    invoice, person, file, document, delivery = (uuid4() for _ in range(5))
    text, message_id, key = f"2026-{number:05}", f"<{delivery}@corely.example>", f"invoices/{invoice}.pdf"
    summed = totals(lines)
    async with connection.transaction():
        await connection.execute(
            "INSERT INTO invoicing.customer (id, name, email, address) VALUES ($1, $2, $3, 'High Street')",
            *(person, customer, recipient),
        )
        await connection.execute(
            "INSERT INTO invoicing.invoice (id, number, customer_id, status, currency, template, issued_on, due_on,"
            " net, tax, total) VALUES ($1, $2, $3, 'ISSUED', 'EUR', $4, $5, $6, $7, $8, $9)",
            *(invoice, text, person, template, date(2026, 11, 16), date(2026, 11, 30)),
            *(summed.net, summed.tax, summed.total),
        )
        await connection.executemany(
            "INSERT INTO invoicing.invoice_line VALUES ($1, $2, $3, $4, $5, $6, $7)",
            [
                (invoice, position, line.description, line.quantity, line.unit_price, line.tax_rate, line.net)
                for position, line in enumerate(lines, 1)
            ],
        )
        await connection.execute(
            "INSERT INTO platform.file (id, storage_key, content_type) VALUES ($1, $2, 'application/pdf')", file, key
        )
        render = await app.enqueue(
            RENDER_PDF, RenderPdf(document), conn=connection, key=str(document), priority=RENDER_FIRST
        )
        await connection.execute(
            "INSERT INTO platform.document (id, kind, subject_id, file_id, job_id) VALUES ($1, $2, $3, $4, $5)",
            *(document, INVOICE_PDF, invoice, file, render.id),
        )
        await connection.execute(
            "INSERT INTO invoicing.email_delivery (id, invoice_id, purpose, idempotency_key, recipient, message_id)"
            " VALUES ($1, $2, $3, $4, $5, $6)",
            *(delivery, invoice, "reminder" if reminder_level else "invoice", str(delivery), recipient, message_id),
        )
        if reminder_level:
            await connection.execute(
                "INSERT INTO invoicing.reminder (invoice_id, level, delivery_id) VALUES ($1, $2, $3)",
                *(invoice, reminder_level, delivery),
            )
        tax = await app.enqueue(SNAPSHOT_TAX, SnapshotTax(invoice), conn=connection, key=str(invoice))
        email = await app.enqueue(SEND_EMAIL, SendEmail(delivery), conn=connection, key=str(delivery))
        await connection.execute("UPDATE invoicing.email_delivery SET job_id = $2 WHERE id = $1", delivery, email.id)
    return Issued(invoice, text, document, delivery, message_id, key, render.id, email.id, tax.id)


@dataclass(frozen=True, slots=True)
class Bench:
    """An open worker app for tests that run its ticks themselves."""

    app: Holdfast[Tools]
    tools: Tools
    settings: Settings

    async def issue(self, number: int = 1, **given: Any) -> Issued:  # noqa: ANN401
        async with self.tools.pool.acquire() as connection:
            return await issue(connection, self.app, number, **given)

    async def work(self, *runners: str) -> TickReport:
        """Run the jobs that are due now."""
        return await self.app.tick(runners=runners or ("queue",))

    async def work_off(self, most: int = 20) -> None:
        """Run due jobs, moving the clock ahead each time, until no job is waiting."""
        for _ in range(most):
            await self.work()
            waiting = [
                job for job in await self.app.jobs.list(JobFilter(), 1000) if not job.state.is_final and job.run_at
            ]
            if not waiting:
                return
            first = min(job.run_at for job in waiting if job.run_at)
            now = await self.app.clock.now()
            if first > now:
                await self.app.clock.advance(first - now)
        raise AssertionError(f"there is still something to do after {most} ticks")

    async def work_off_but_mails(self) -> None:
        """Run the jobs for PDFs and taxes, and leave the mails due."""
        waiting = [job.id for job in await self.app.jobs.list(JobFilter(kind=SEND_EMAIL.name), 1000)]
        await self.app.cancel(waiting)
        await self.work_off()
        await self.app.retry(waiting)

    async def job(self, job_id: UUID) -> Job:
        job = await self.app.jobs.get(job_id)
        assert job is not None
        return job

    async def error_code(self, job_id: UUID) -> str | None:
        error = (await self.job(job_id)).last_error
        return None if error is None else error.code

    async def is_final(self, job_id: UUID) -> bool:
        return (await self.job(job_id)).state.is_final

    async def are_all_final(self) -> bool:
        return all(job.state.is_final for job in await self.app.jobs.list(JobFilter(), 1000))

    async def row(self, query: str, *arguments: object) -> dict[str, Any]:
        found = await self.tools.pool.fetchrow(query, *arguments)
        assert found is not None
        return dict(found)

    async def document(self, issued: Issued) -> dict[str, Any]:
        return await self.row(
            "SELECT document.*, file.state AS file_state, bytes, sha256 FROM platform.document"
            " JOIN platform.file ON file.id = file_id WHERE document.id = $1",
            issued.document_id,
        )

    async def delivery(self, issued: Issued) -> dict[str, Any]:
        return await self.row("SELECT * FROM invoicing.email_delivery WHERE id = $1", issued.delivery_id)


def worker_settings(url: str, folder: Path, **given: object) -> Settings:
    """Settings of a worker whose files are in the folder. A test may empty its database, so there is no default."""
    usual = {"database_url": url, "files_url": f"file:{folder}/files", "smtp_url": "smtp://127.0.0.1:1"}
    return Settings.load(**{**usual, **given})


@asynccontextmanager
async def opened_bench(settings: Settings) -> AsyncIterator[Bench]:
    tools = Tools(settings)
    app = build_app(settings, tools)
    app.lifespan = lambda _app: nullcontext(tools)
    async with app, tools.opened(app.url):
        yield Bench(app, tools, settings)


@asynccontextmanager
async def in_background(bench: Bench) -> AsyncIterator[None]:
    process = bench.app.worker(runners=("queue",))
    running = asyncio.create_task(process.run())
    try:
        yield
    finally:
        process.stop()
        await asyncio.wait_for(running, PATIENCE)
