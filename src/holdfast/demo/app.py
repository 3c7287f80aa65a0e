"""The shop: handlers whose work is pretended, and whose mishaps are the usual ones."""

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
    """The invoice and the end of the job are one transaction: a crash leaves both or neither."""
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
    """A plain function: it runs in a thread."""
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
    """The bank takes its time: come back later, without using up an attempt."""
    if datetime.now(UTC) - job.created_at < timedelta(seconds=2.5):
        raise Snooze("800ms")


@app.handler("video.convert", isolation="process", limit=1, backoff="steps 200ms")
def convert_video(job: _Job) -> None:
    """In a process of its own, which may crash without harm to anything else."""
    if job.payload.get("broken_codec") and job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@app.handler("address.check")
async def check_address(job: _Job) -> None:
    raise Permanent("NO_SUCH_STREET", f"there is no street called {job.payload['street']!r}")


@app.handler("webhook.deliver", attempts=3, backoff="steps 300ms")
async def deliver_webhook(job: _Job) -> None:
    raise Retryable(f"{job.payload['url']} answered 503", code="HTTP_503")
