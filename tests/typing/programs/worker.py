"""A worker's handlers, registered with a Kind or with a name and annotations."""

from typing import assert_type

from holdfast import DeadJob, Enqueued, Holdfast, Kind, NewJob, Permanent, RunningJob, Snooze
from tests.typing.programs.shared_kinds import ARCHIVE, COUNT, LINES, SEND, SWEEP, Invoice, Sent

app = Holdfast()


@app.handler(SEND, attempts=8, backoff="exponential base=5s max=2m", timeout="1m")
async def send(job: RunningJob[Invoice]) -> Sent:
    if job.is_last_attempt:
        raise Permanent("NO_LUCK")
    return Sent(f"{job.payload.number}@shop")


@app.handler(ARCHIVE)
def archive(job: RunningJob[Invoice]) -> None:
    job.progress({"at": job.payload.number})


@app.handler(SWEEP)
async def sweep(job: RunningJob[None]) -> Snooze | None:
    return Snooze("5m") if job.attempt == 1 else None


@app.handler(COUNT, isolation="process")
def count(job: RunningJob[None]) -> int:
    return job.attempt


@app.handler(LINES)
async def lines(job: RunningJob[list[Invoice]]) -> dict[str, int]:
    return {str(each.number): 1 for each in job.payload}


@app.handler("invoice.print", queue="printer", limit=1)
async def print_invoice(job: RunningJob[Invoice]) -> Sent:
    return Sent(str(job.payload.number))


@app.schedule("03:17 daily")
@app.handler("nightly", attempts=1)
def nightly(job: RunningJob[None]) -> int:
    return job.attempt


@app.on("invoice.*")
async def book(job: RunningJob[Invoice]) -> None: ...


@app.handler("untyped")
def untyped(job: RunningJob) -> object:
    return job.payload


@app.on_dead(SEND)
async def mourn(job: RunningJob[DeadJob[Invoice]]) -> None:
    assert_type(job.payload.payload, Invoice)
    assert_type(job.payload.code, str)


@app.on_dead("invoice.*", name="mourn.all", queue="mail")
async def mourn_all(job: RunningJob[DeadJob[object]]) -> None: ...


app.handler("any", payload=Invoice)(lambda job: job.payload)


async def use(job: RunningJob[Invoice], nothing: RunningJob[None]) -> None:
    assert_type(await send(job), Sent)
    assert_type(send.kind, Kind[Invoice, Sent])
    assert_type(await send.enqueue(Invoice(1), key="1"), Enqueued[Sent])
    assert_type(send.job(Invoice(1), delay="5m"), NewJob[Sent])
    assert_type(archive(job), None)
    assert_type(count(nothing), int)
    assert_type(await count.enqueue(), Enqueued[int])
    assert_type(await print_invoice(job), Sent)
    assert_type(await (await print_invoice.enqueue(Invoice(1))).result(), Sent)
    assert_type(nightly(nothing), int)
    assert_type(await nightly.enqueue(), Enqueued[int])
    await sweep.enqueue(delay="1h")
