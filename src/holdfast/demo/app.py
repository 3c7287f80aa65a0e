"""The shop: handlers that simulate work and fail in the usual ways."""

import asyncio
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from holdfast import Holdfast, Permanent, Retryable, RunningJob, Snooze

app = Holdfast()

LEDGER = "CREATE TABLE public.invoice (number integer NOT NULL)"

_Job = RunningJob[dict[str, Any]]


@app.handler("invoice.issue")
async def issue_invoice(job: _Job) -> None:
    """Insert the invoice and finish the job in one transaction, so a crash leaves both or neither."""
    await asyncio.sleep(0.1)
    connection = await asyncpg.connect(app.opened.url)
    try:
        async with connection.transaction():
            await connection.execute("INSERT INTO public.invoice VALUES ($1)", job.payload["number"])
            await job.finish_in(connection)
    finally:
        await connection.close()


@app.handler("email.send", backoff="steps 400ms")
async def send_email(job: _Job) -> None:
    await asyncio.sleep(0.03)
    if job.payload.get("server_busy") and job.attempt == 1:
        raise Retryable("the mail server is busy", code="MAIL_SERVER_BUSY")


@app.handler("thumbnail.render")
def render_thumbnail(job: _Job) -> dict[str, int]:
    """Runs in a thread, because it is a plain function."""
    time.sleep(0.03)
    return {"width": 320, "height": job.payload["height"]}


@app.handler("report.build")
async def build_report(job: _Job) -> dict[str, int]:
    pages = 15
    for page in range(pages):
        job.progress({"page": page, "of": pages})
        await asyncio.sleep(0.1)
    return {"pages": pages}


@app.handler("payment.check")
async def check_payment(job: _Job) -> None:
    """Wait for a slow bank by snoozing, which uses up no attempt."""
    if datetime.now(UTC) - job.created_at < timedelta(seconds=2.5):
        raise Snooze("800ms")


@app.handler("video.convert", isolation="process", limit=1, backoff="steps 200ms")
def convert_video(job: _Job) -> None:
    """Runs in a separate process, which can crash without harming anything else."""
    if job.payload.get("broken_codec") and job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.handler("address.check")
async def check_address(job: _Job) -> None:
    raise Permanent("NO_SUCH_STREET", f"there is no street called {job.payload['street']!r}")


@app.handler("webhook.deliver", attempts=3, backoff="steps 300ms")
async def deliver_webhook(job: _Job) -> None:
    raise Retryable(f"{job.payload['url']} answered 503", code="HTTP_503")
