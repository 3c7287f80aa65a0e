"""Handlers that use the state that their app's lifespan opens."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import assert_type

from holdfast import DeadJob, Enqueued, Holdfast, RunningJob
from tests.typing.programs.shared_kinds import ARCHIVE, SEND, Invoice, Sent


class Mailer:
    def send(self, text: str) -> str:
        return text


@asynccontextmanager
async def open_mailer(app: Holdfast[Mailer]) -> AsyncGenerator[Mailer, None]:
    assert_type(app.is_open, bool)
    yield Mailer()


app = Holdfast(lifespan=open_mailer)


@app.handler(SEND, attempts=8)
async def send(job: RunningJob[Invoice, Mailer]) -> Sent:
    return Sent(job.state.send(str(job.payload.number)))


@app.handler(ARCHIVE)
def archive(job: RunningJob[Invoice]) -> None:
    """A handler need not annotate the type of the state."""


@app.handler("invoice.print")
def print_invoice(job: RunningJob[Invoice, Mailer]) -> Sent:
    return Sent(job.state.send(str(job.payload.number)))


@app.on_dead(SEND)
async def mourn(job: RunningJob[DeadJob[Invoice], Mailer]) -> None:
    job.state.send(job.payload.message)


async def use(job: RunningJob[Invoice, Mailer]) -> None:
    assert_type(job.state, Mailer)
    assert_type(await send(job), Sent)
    assert_type(await send.enqueue(Invoice(1)), Enqueued[Sent])
    assert_type(print_invoice(job), Sent)
