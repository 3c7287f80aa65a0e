"""A demo of the whole service: an API, two workers, one of which is killed, and a mail server.

Everything runs on a new PostgreSQL in a temporary folder; one PDF is kept.
"""

import asyncio
import email
import email.policy
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import httpx
from aiosmtpd.smtp import SMTP, Envelope, Session
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from apps.invoicing.settings import Settings

_WIDTH = 80
_INVOICES = 12
_CUSTOMERS = (
    ("Møller & Søn ApS", "mail@moller.example", "Åboulevarden 7\n1960 Frederiksberg\nDenmark"),
    ("Παπαδόπουλος", "info@papadopoulos.example", "Ερμού 12\n105 63 Αθήνα\nGreece"),
    ("Вишнёвый сад", "sad@sad.example", "ул. Чехова 4\n101000 Москва"),
    ("O'Neill #1 *Fine* <Goods>", "accounts@oneill.example", "2 Quay Street\nGalway\nIreland"),
)
_LINES = (
    ("Consulting", "12.5", "120.00", "19"),
    ("Two-day workshop, with a printed handbook for every participant", "1", "1850.00", "19"),
    ("Handbook", "3", "24.90", "7"),
)
_START_SECONDS, _WORK_SECONDS, _STOP_SECONDS = 60.0, 90.0, 20.0
# Other workers take over a killed worker's jobs when its leases run out. The default would make the demo a minute long.
_LEASE_MS = 3_000
_VARIABLES = {
    "OUTBOX_LEASE_DURATION_MS": str(_LEASE_MS),
    "OUTBOX_LEASE_HEARTBEAT_MS": "1000",
}

Json = dict[str, Any]


class Failed(Exception):
    """The demo did not complete; the message says why."""


@dataclass
class Mailbox:
    """A mail server's handler that keeps the emails it gets."""

    mails: list[EmailMessage] = field(default_factory=list)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: ARG002, N802
        content = envelope.content if isinstance(envelope.content, bytes) else b""
        self.mails.append(email.message_from_bytes(content, _class=EmailMessage, policy=email.policy.default))
        return "250 OK"


@dataclass
class Stage:
    """The setting of the demo: its folder, the variables of all processes, and the messages along the way."""

    console: Console
    folder: Path
    mailbox: Mailbox
    environment: dict[str, str]
    began: float = field(default_factory=time.monotonic)

    def tell(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:5.1f} s[/]  {text}")


def run_demo() -> int:
    console = Console(highlight=False)
    console.width = min(_WIDTH, console.width)
    try:
        return asyncio.run(_run(console))
    except Failed as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130


async def _run(console: Console) -> int:
    with tempfile.TemporaryDirectory(prefix="invoicing-", ignore_cleanup_errors=True) as folder:
        async with _mail_server() as (mailbox, smtp_url), AsyncExitStack() as processes:
            stage = Stage(console, Path(folder), mailbox, _environment(folder, smtp_url))
            stage.tell("starting an API, on a new PostgreSQL")
            client = await processes.enter_async_context(_api(stage))
            stage.tell("starting two workers")
            workers = [await processes.enter_async_context(_process(stage, "background", n)) for n in (1, 2)]
            try:
                return await _show(stage, client, workers)
            finally:
                # Stop both at once, because each may take a while.
                for worker in workers:
                    worker.terminate()


async def _show(stage: Stage, client: httpx.AsyncClient, workers: "list[subprocess.Popen[bytes]]") -> int:
    invoices = [await _issued(client, number) for number in range(_INVOICES)]
    stage.tell(f"issued {len(invoices)} invoices, each with a PDF to make and an email to send")
    waits = [asyncio.create_task(_pdf(client, invoice)) for invoice in invoices]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    workers[0].kill()
    stage.tell("the first PDF is ready; killing one of the workers with [red]kill -9[/]")
    usual = Settings.model_fields["outbox_lease_duration_ms"].default
    stage.tell(f"its jobs wait until their leases run out: {_LEASE_MS // 1000} s here, {usual // 1000} s by default")
    pdfs = await asyncio.gather(*waits)
    stage.tell("every client that waited has its PDF")
    await _all_mails(stage, client, invoices)
    mails = stage.mailbox.mails
    repeats = len(mails) - len({str(mail["Message-ID"]) for mail in mails})
    again = f"; {repeats} came twice, with the same Message-ID" if repeats else ", and none of them twice this time"
    stage.tell(f"every email is sent{again}")
    content = (await client.get(pdfs[0]["downloadUrl"])).raise_for_status().content
    kept = Path(tempfile.mkdtemp(prefix="invoice-")) / pdfs[0]["fileName"]
    kept.write_bytes(content)
    stage.console.print(_letters(mails), _letter(mails[0]), _table(invoices, pdfs, mails))
    stage.console.print(f"\nOne of the PDFs is kept: [bold]{kept}[/]", soft_wrap=True)
    return 0


async def _issued(client: httpx.AsyncClient, number: int) -> Json:
    name, address, street = _CUSTOMERS[number % len(_CUSTOMERS)]
    customer = await _post(client, "/customers", {"name": name, "email": address, "address": street})
    chosen = _LINES[: 1 + number % len(_LINES)]
    lines = [dict(zip(("description", "quantity", "unitPrice", "taxRate"), line, strict=True)) for line in chosen]
    draft = await _post(client, "/invoices", {"customerId": customer["id"], "currency": "EUR", "lines": lines})
    issued = await _post(client, f"/invoices/{draft['id']}/issue", {"sendEmail": True})
    return {**issued, "customer": name}


async def _pdf(client: httpx.AsyncClient, invoice: Json) -> Json:
    """Get the PDF from the wait endpoint. One request is enough, unless that takes longer than the longest wait."""
    end = time.monotonic() + _WORK_SECONDS
    while time.monotonic() < end:
        response = await client.get(f"/invoices/{invoice['id']}/pdf", params={"waitMs": 30_000})
        if response.status_code != httpx.codes.ACCEPTED:
            return _json(response)
        await asyncio.sleep(response.json()["retryAfterMs"] / 1000)
    raise Failed(f"invoice {invoice['number']} has no PDF after {_WORK_SECONDS:.0f} s")


async def _all_mails(stage: Stage, client: httpx.AsyncClient, invoices: list[Json]) -> None:
    """Wait until all emails have arrived and no job is left: a worker may have died after sending, before recording."""
    end = time.monotonic() + _WORK_SECONDS
    while time.monotonic() < end:
        metrics = (await client.get("/metrics")).text
        come = len({str(mail["Message-ID"]) for mail in stage.mailbox.mails})
        if come == len(invoices) and all(
            f'jobs{{state="{each}"}} 0.0' in metrics for each in ("PENDING", "PROCESSING")
        ):
            return
        await asyncio.sleep(0.2)
    raise Failed(f"only {len(stage.mailbox.mails)} emails have arrived after {_WORK_SECONDS:.0f} s")


def _letters(mails: list[EmailMessage]) -> Table:
    """All emails that have arrived, in order."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("mail to", "subject", "attached"):
        table.add_column(heading, no_wrap=True)
    for mail in mails:
        table.add_row(*(escape(text) for text in (str(mail["To"]), str(mail["Subject"]), _attached(mail))))
    return table


def _attached(mail: EmailMessage) -> str:
    return ", ".join(part.get_filename() or "" for part in mail.iter_attachments())


def _letter(mail: EmailMessage) -> Panel:
    body = mail.get_body(("plain",))
    headers = [f"{name}: {mail[name]}" for name in ("From", "To", "Subject", "Message-ID")]
    text = "" if body is None else body.get_content().strip()
    return Panel(
        escape("\n".join([*headers, f"Attached: {_attached(mail)}", "", text])), title="the first email", style="dim"
    )


def _table(invoices: list[Json], pdfs: list[Json], mails: list[EmailMessage]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("invoice", "customer", "total", "PDF", "mails"):
        table.add_column(heading, justify="right" if heading in ("total", "PDF", "mails") else "left", no_wrap=True)
    for invoice, pdf in zip(invoices, pdfs, strict=True):
        come = sum(f"Invoice {invoice['number']}" == str(mail["Subject"]) for mail in mails)
        total = f"{Decimal(invoice['total']):,.2f} {invoice['currency']}"
        size = f"{pdf['bytes'] / 1000:.0f} kB"
        table.add_row(invoice["number"], escape(invoice["customer"]), total, size, str(come))
    return table


async def _post(client: httpx.AsyncClient, path: str, body: Json) -> Json:
    return _json(await client.post(path, json=body))


def _json(response: httpx.Response) -> Json:
    answer: Json = response.json()
    if not response.is_success:
        raise Failed(f"{response.request.url.path} was answered with {response.status_code}: {answer.get('message')}")
    return answer


@asynccontextmanager
async def _mail_server() -> AsyncIterator[tuple[Mailbox, str]]:
    mailbox, loop = Mailbox(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(mailbox, loop=loop), "127.0.0.1", 0)
    try:
        yield mailbox, f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def _environment(folder: str, smtp_url: str) -> dict[str, str]:
    """Variables for the demo's processes, without those that the user has set for a real service."""
    ours = {name.upper() for name in Settings.model_fields}
    kept = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("HOLDFAST_")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {
        **kept,
        **_VARIABLES,
        "WORKER_API_SERVICE_TOKEN": secrets.token_hex(),
        "DOWNLOAD_LINK_SECRET": secrets.token_hex(),
        "DATABASE_URL": f"embedded:{folder}/postgres",
        "FILES_URL": f"file:{folder}/files",
        "SMTP_URL": smtp_url,
        "API_PORT": str(port),
        "WORKER_API_BASE_URL": f"http://127.0.0.1:{port}",
    }


@asynccontextmanager
async def _api(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    url = stage.environment["WORKER_API_BASE_URL"]
    async with _process(stage, "api") as process, httpx.AsyncClient(base_url=url, timeout=35) as client:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            try:
                (await client.get("/healthz")).raise_for_status()
            except httpx.HTTPError:
                await asyncio.sleep(0.1)
            else:
                yield client
                return
        said = (stage.folder / "api.log").read_text(errors="replace").strip().splitlines()
        raise Failed(f"the API did not start: {said[-1] if said else 'it said nothing'}")


@asynccontextmanager
async def _process(stage: Stage, mode: str, number: int = 0) -> "AsyncIterator[subprocess.Popen[bytes]]":
    command = [sys.executable, "-m", "apps.invoicing", mode]
    with (stage.folder / f"{mode}{number or ''}.log").open("wb") as log:
        # In another process group, so Ctrl-C reaches only this process, which then stops the others.
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - starting it takes no time
            command, env=stage.environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(asyncio.to_thread(process.wait), _STOP_SECONDS)
        except TimeoutError:
            process.kill()
            process.wait()
