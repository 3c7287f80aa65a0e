"""An outbox and deliveries, whose handlers record what they did and under which fence."""

from holdfast import Holdfast, Permanent, Retryable, RunningJob
from tests.rows.tables import DISPATCH, OUTBOX, RECEIPTS
from tests.runtime.apps.effects import note

app = Holdfast()
app.rows(OUTBOX, concurrency=4)
app.rows(DISPATCH, concurrency=4)
app.rows(RECEIPTS, concurrency=4)


@app.handler("work")
async def work(job: RunningJob[dict[str, int]]) -> None:
    await note("work", job.id, job.fence)


@app.handler("push.send")
async def send(job: RunningJob[dict[str, str]]) -> None:
    await note("send", job.id, job.fence)
    if job.attempt == 1 and job.payload["push_token"].endswith("7"):
        raise Retryable("not yet", code="BUSY", after="1ms")


@app.handler("push.receipt")
async def receipt(job: RunningJob[dict[str, str | None]]) -> None:
    await note("receipt", job.id, job.fence)
    if (job.payload["installation_id"] or "").endswith("9"):
        raise Permanent("DEVICE_NOT_REGISTERED", "gone")
