"""Both mypy and pyright must report every marked line, and no other."""

import asyncpg
import psycopg
from sqlalchemy.orm import Session

from holdfast import DeadJob, Holdfast, Kind, RunningJob
from tests.typing.programs.shared_kinds import COUNT, SEND, SWEEP, Invoice, Sent
from tests.typing.programs.states import Mailer
from tests.typing.programs.states import app as stateful

app = Holdfast()

Kind("a", Invoice, returns=Sent, quue="mail")  # error: no such option
Kind("b", "invoice")  # error: not a type
Kind(17, Invoice)  # error: not a name


@app.handler(SEND)  # error: the payload is an Invoice
async def wrong_payload(job: RunningJob[Sent]) -> Sent:
    return job.payload


@app.handler(SEND)  # error: the result is Sent
async def wrong_result(job: RunningJob[Invoice]) -> Invoice:
    return job.payload


@app.handler(SEND)  # error: the result is Sent
def no_result(job: RunningJob[Invoice]) -> None: ...


@app.handler(SWEEP)  # error: this kind has no result
async def a_result_too_many(job: RunningJob[None]) -> int:
    return job.attempt


@app.handler(SEND, attemps=8)  # error: no such option
async def wrong_option(job: RunningJob[Invoice]) -> Sent:
    return Sent("1")


@app.handler(SEND, queue="mail")  # error: the queue is set in the Kind
async def routed_here(job: RunningJob[Invoice]) -> Sent:
    return Sent("1")


@app.handler(SEND, version=2)  # error: the version is set in the Kind
async def versioned_here(job: RunningJob[Invoice]) -> Sent:
    return Sent("1")


@app.on_dead(SEND)  # error: the payload is a dead Invoice
async def dead_job_of_another_payload(job: RunningJob[DeadJob[Sent]]) -> None: ...


@app.on_dead(SEND)  # error: the payload is a DeadJob
async def payload_instead_of_a_dead_job(job: RunningJob[Invoice]) -> None: ...


@app.handler("miscounted", attempts="8")  # error: attempts is a number
async def miscounted(job: RunningJob[Invoice]) -> None: ...


@app.handler("named")
async def named(job: RunningJob[Invoice]) -> Sent:
    return Sent(str(job.payload.nmber))  # error: no such field


@stateful.handler(SEND)  # error: the lifespan opens a Mailer
async def wrong_state(job: RunningJob[Invoice, int]) -> Sent:
    return Sent(str(job.state))


@stateful.handler("named")  # error: the lifespan opens a Mailer
async def wrong_state_of_a_name(job: RunningJob[Invoice, int]) -> None: ...


@stateful.handler(SWEEP)
async def wrong_use(job: RunningJob[None, Mailer]) -> None:
    job.state.sned("")  # error: no such method


@stateful.on_dead(SEND)  # error: the lifespan opens a Mailer
async def wrong_state_of_a_dead_job(job: RunningJob[DeadJob[Invoice], int]) -> None: ...


async def producer(session: Session, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await app.enqueue(SEND, Sent("1"))  # error: the payload is an Invoice
    await app.enqueue(SEND)  # error: the payload is missing
    await app.enqueue(SEND, {"number": 1})  # error: the payload is an Invoice
    await app.enqueue(COUNT, 5)  # error: this kind has no payload
    await app.enqueue(SEND, Invoice(1), kee="1")  # error: no such option
    await app.enqueue(SEND, Invoice(1), priority="high")  # error: priority is a number
    await app.enqueue("invoice.send", {}, attemps=3)  # error: no such option
    await app.enqueue(SEND, Invoice(1), conn=session)  # error: a blocking connection
    await app.enqueue_many([app.job(SEND, Invoice(1))], conn=session)  # error: a blocking connection
    await app.publish("invoice.paid", conn=session)  # error: a blocking connection
    app.job(SEND, Sent("1"))  # error: the payload is an Invoice
    text: str = await (await app.enqueue(SEND, Invoice(1))).result()  # error: the result is Sent
    (await (await app.enqueue(SEND, Invoice(1))).result()).message  # error: no such field
    await named.enqueue(Sent("1"))  # error: the payload is an Invoice
    await named.enqueue(Invoice(1), kee="1")  # error: no such option
    await named(connection)  # error: it takes a job
    app.sync.enqueue(SEND, Invoice(1), conn=connection)  # error: an async connection
    print(text)


def blocking(connection: psycopg.Connection[tuple[object, ...]], other: psycopg.AsyncConnection) -> None:
    app.sync.enqueue(SEND, Sent("1"), conn=connection)  # error: the payload is an Invoice
    app.sync.enqueue(SEND, Invoice(1), conn=connection, kee="1")  # error: no such option
    app.sync.enqueue_many([app.job(SEND, Invoice(1))], conn=other)  # error: an async connection
    named.sync.enqueue(Sent("1"))  # error: the payload is an Invoice
    named.sync.enqueue()  # error: the payload is missing
    named.sync.enqueue(Invoice(1), kee="1")  # error: no such option
    named.sync.enqueue(Invoice(1), conn=other)  # error: an async connection
    number: int = app.sync.enqueue(SEND, Invoice(1), conn=connection).result()  # error: the result is Sent
    print(number)
