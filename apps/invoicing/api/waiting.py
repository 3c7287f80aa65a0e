"""How a request waits for a PDF: the tables have its state, and the end of its job says when to look."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from fastapi import Request

from apps.invoicing.api.documents import Pdf, ensure_enqueued, give_up, pdf_of
from apps.invoicing.api.service import Service
from holdfast import JobState, UnknownJob

_FIRST_LOOK_SECONDS = 0.5
_LONGEST_SECONDS = 5.0

T = TypeVar("T")


class ClientGone(Exception):
    """The client has disconnected."""


async def waited_for(service: Service, request: Request, pdf: Pdf, seconds: float) -> Pdf:
    """Return the PDF when it is READY or FAILED, the time is up or the server stops. Zero seconds means one look."""
    if not seconds and pdf.state == "PENDING" and pdf.job_id is not None:
        return await _looked_again(service, pdf, pdf.job_id, pause=0)
    settled = await _unless_over(_settled(service, pdf), request, service.stopping, seconds)
    return settled if settled is not None else await pdf_of(service, pdf.invoice_id)


async def _settled(service: Service, pdf: Pdf) -> Pdf:
    """Look until the PDF is settled. A listener tells all waits when a job ends, so looks in between can be rare.

    Those looks find changes without a job, such as a document that a person corrected by hand.
    """
    pause = _FIRST_LOOK_SECONDS
    while pdf.state == "PENDING" and pdf.job_id is not None:
        pdf = await _looked_again(service, pdf, pdf.job_id, pause)
        pause = min(pause * 2, _LONGEST_SECONDS)
    return pdf


async def _looked_again(service: Service, pdf: Pdf, job_id: UUID, pause: float) -> Pdf:
    """Look when the job ends or the pause is over. Correct a document that its job left pending."""
    try:
        job = await service.app.wait(job_id, timeout=timedelta(seconds=pause))
    except UnknownJob:
        return await ensure_enqueued(service, pdf.invoice_id, gone=job_id)
    now = await pdf_of(service, pdf.invoice_id)
    if not job.state.is_final or now.state != "PENDING" or now.job_id != job_id:
        return now
    if job.state is JobState.SUCCEEDED:
        # Someone wants the PDF made again. The pause keeps this from spinning if no job ever settles it.
        await asyncio.sleep(pause)
        return await ensure_enqueued(service, pdf.invoice_id, gone=job_id)
    await give_up(service, now, job)
    return await pdf_of(service, pdf.invoice_id)


async def _unless_over(
    waiting: Coroutine[Any, Any, T], request: Request, stopping: asyncio.Event, seconds: float
) -> T | None:
    """Return the result, or None if the time is up or the server stops. Nothing keeps running afterwards."""
    wait, leave, stop = (
        asyncio.create_task(waiting),
        asyncio.create_task(_disconnect(request)),
        asyncio.create_task(stopping.wait()),
    )
    try:
        await asyncio.wait((wait, leave, stop), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if wait.done():
            return wait.result()
        if leave.done() and not stop.done():
            raise ClientGone
        return None
    finally:
        for task in (wait, leave, stop):
            task.cancel()
        await asyncio.gather(wait, leave, stop, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
