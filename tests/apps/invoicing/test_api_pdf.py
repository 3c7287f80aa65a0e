"""The wait endpoint: what it answers, when it answers, and what it leaves behind."""

import asyncio
import math
import time
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from apps.invoicing.api import waiting
from apps.invoicing.api.documents import Pdf, pdf_of
from apps.invoicing.api.service import Service
from apps.invoicing.jobs import RENDER_FAILED, RENDER_PDF
from holdfast import Holdfast, Job, JobState, Permanent, RunningJob
from holdfast.store.contract import JobFilter
from tests.apps.invoicing.conftest import Api, running_api
from tests.apps.invoicing.issuing import Bench
from tests.apps.invoicing.steps import execute, jobs_of, rendering_app, rows, set_ready, working
from tests.databases import Database, connected
from tests.worker.harness import until

WAITS = "invoicing_pdf_waits"
WAIT_MS = {
    "": 15_000,
    "waitMs=0": 0,
    "waitMs=250": 250,
    "waitMs=030": 30,
    "waitMs=30000": 30_000,
    "waitMs=30001": 30_000,
    "waitMs=1000000000": 30_000,
    f"waitMs={'9' * 5000}": 30_000,
    "waitMs=-1": None,
    "waitMs=abc": None,
    "waitMs=": None,
    "waitMs=1.5": None,
    "waitMs=1e3": None,
    "waitMs=%2B5": None,
    "waitMs=5%20": None,
    "waitMs=%EF%BC%95": None,
    "waitMs=5&waitMs=6": None,
}
"""For each value of waitMs, the wait in milliseconds; None means that the value is refused."""


async def get_pdf(api: Api, invoice: str, query: str = "waitMs=0") -> httpx.Response:
    return await api.client.http.get(f"/invoices/{invoice}/pdf?{query}")


async def end_of_job(api: Api, invoice: str, state: JobState) -> None:
    """End the render job of the invoice in this state without its handler updating the document."""
    app = Holdfast(api.service.settings.database_url)

    @app.handler(RENDER_PDF.name, attempts=1)
    async def render(job: RunningJob[dict[str, str]]) -> None:
        match state:
            case JobState.DEAD:
                raise OSError("the printer is on fire")
            case JobState.FAILED:
                raise Permanent(RENDER_FAILED, "the template is no template")

    ((job,),) = await rows(
        api.service.settings.database_url, "SELECT job_id FROM platform.document WHERE subject_id = $1", invoice
    )
    if state is JobState.CANCELED:
        assert await api.service.app.cancel([job]) == ["canceled"]
        return
    async with working(app):
        ended = await app.wait(job)
    assert ended.state is state


async def test_a_pdf_that_is_ready_is_returned_at_once(api: Api, database: Database) -> None:
    invoice = await api.client.issued()
    app = rendering_app(database.url, api.service.files)
    async with working(app):
        response = await get_pdf(api, invoice["id"], "waitMs=30000")
    body = response.json()
    assert (response.status_code, body["status"]) == (200, "READY")
    assert (body["invoiceId"], body["fileName"]) == (invoice["id"], f"{invoice['number']}.pdf")
    assert (await get_pdf(api, invoice["id"])).json()["sha256"] == body["sha256"]


async def test_without_a_worker_it_is_pending_after_the_wait(api: Api, database: Database) -> None:
    invoice = (await api.client.issued())["id"]
    before = await jobs_of(database.url)
    for wait_ms in (0, 300):
        began = time.monotonic()
        response = await get_pdf(api, invoice, f"waitMs={wait_ms}")
        assert time.monotonic() - began >= wait_ms / 1000
        body = response.json()
        assert (response.status_code, body["status"]) == (202, "PENDING")
        assert body["retryAfterMs"] > 0
        assert response.headers["Retry-After"] == str(math.ceil(body["retryAfterMs"] / 1000))
    # The PDF was requested when the invoice was issued, and nothing is rendered here.
    assert await jobs_of(database.url) == before
    assert await rows(database.url, "SELECT state FROM platform.document") == [("PENDING",)]


async def test_what_wait_ms_means(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    invoice = (await api.client.issued())["id"]
    waited: list[float] = []

    async def noted(service: object, request: object, pdf: object, seconds: float) -> object:
        waited.append(seconds)
        return pdf

    monkeypatch.setattr("apps.invoicing.api.pdfs.waited_for", noted)
    for query, expected in WAIT_MS.items():
        waited.clear()
        response = await get_pdf(api, invoice, query)
        if expected is None:
            assert (query, response.status_code, response.json()["error"]) == (query, 400, "INVALID_WAIT_MS")
            assert waited == []
        else:
            assert (query, response.status_code, waited) == (query, 202, [expected / 1000])


async def test_an_unknown_invoice_is_a_404_and_a_draft_a_409(api: Api) -> None:
    for unknown in (str(uuid4()), "17", "%00", "a" * 3000):
        response = await get_pdf(api, unknown)
        assert (response.status_code, response.json()["error"]) == (404, "INVOICE_NOT_FOUND")
    response = await get_pdf(api, await api.client.draft())
    assert (response.status_code, response.json()["error"]) == (409, "INVOICE_IS_DRAFT")


async def test_the_end_of_the_job_ends_the_wait_before_the_next_look(
    api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_FIRST_LOOK_SECONDS", 3600.0)
    monkeypatch.setattr(waiting, "_LONGEST_SECONDS", 3600.0)
    invoice = (await api.client.issued())["id"]
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(get_pdf(api, invoice, "waitMs=30000"))
        await until(lambda: waiting_clients(api, 1), "it waits")
        async with working(rendering_app(database.url, api.service.files)):
            response = await asking
    assert response.status_code == 200


async def test_a_wait_looks_less_and_less_often(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job never ends, and the wait is woken without a reason."""
    invoice = (await api.client.issued())["id"]
    pauses: list[float] = []

    async def nothing_happens(job_id: UUID, timeout: timedelta) -> Job:
        pauses.append(timeout.total_seconds())
        job = await api.service.app.jobs.get(job_id)
        assert job is not None
        if len(pauses) == 7:
            await asyncio.Event().wait()
        return job

    monkeypatch.setattr(api.service.app, "wait", nothing_happens)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(get_pdf(api, invoice, "waitMs=30000"))
        await until(lambda: len(pauses) == 7, "it has looked seven times")
        api.service.stopping.set()
        assert (await asking).status_code == 202
    assert pauses == [0.5, 1, 2, 4, 5, 5, 5]


async def test_the_tables_count_and_not_the_state_of_the_job(api: Api, database: Database) -> None:
    """A look finds a document that a person repaired by hand, although the job is still pending."""
    invoice = (await api.client.issued())["id"]
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(get_pdf(api, invoice, "waitMs=30000"))
        await until(lambda: waiting_clients(api, 1), "it waits")
        async with connected(database.url) as connection:
            document = await connection.fetchval("SELECT id FROM platform.document")
            await set_ready(connection, api.service.files, document)
        response = await asking
    assert response.status_code == 200


async def test_both_document_and_file_must_be_ready(api: Api, database: Database) -> None:
    invoice = (await api.client.issued())["id"]
    await execute(database.url, "UPDATE platform.document SET state = 'READY'")
    assert (await get_pdf(api, invoice)).status_code == 202


async def test_a_document_that_failed_is_a_422_with_its_reason(api: Api, database: Database) -> None:
    invoice = (await api.client.issued())["id"]
    await end_of_job(api, invoice, JobState.DEAD)
    await execute(
        database.url,
        "UPDATE platform.document SET state = 'FAILED', error_code = 'INVOICE_PDF_RENDER_FAILED',"
        " error_message = 'no such template'",
    )
    response = await get_pdf(api, invoice)
    ((document,),) = await rows(database.url, "SELECT id FROM platform.document")
    assert response.status_code == 422
    assert response.json() == {
        "error": "INVOICE_PDF_RENDER_FAILED",
        "message": "no such template",
        "status": "FAILED",
        "invoiceId": invoice,
        "documentId": str(document),
    }


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (JobState.DEAD, "the rendering job ended dead"),
        (JobState.FAILED, "the template is no template"),
        (JobState.CANCELED, "the rendering job ended canceled"),
    ],
)
@pytest.mark.parametrize("wait_ms", [0, 30_000])
async def test_a_job_that_ended_without_recording_it_is_a_422_and_marks_the_document(
    api: Api, database: Database, state: JobState, message: str, wait_ms: int
) -> None:
    invoice = (await api.client.issued())["id"]
    await end_of_job(api, invoice, state)
    response = await get_pdf(api, invoice, f"waitMs={wait_ms}")
    assert (response.status_code, response.json()["error"]) == (422, "INVOICE_PDF_RENDER_FAILED")
    assert response.json()["message"] == message
    marked = (
        "SELECT document.state, file.state, error_code FROM platform.document JOIN platform.file ON file.id = file_id"
    )
    assert await rows(database.url, marked) == [("FAILED", "FAILED", "INVOICE_PDF_RENDER_FAILED")]


async def test_a_request_after_a_persons_retry_waits_again(api: Api, database: Database) -> None:
    invoice = (await api.client.issued())["id"]
    await end_of_job(api, invoice, JobState.FAILED)
    assert (await get_pdf(api, invoice)).status_code == 422
    ((job,),) = await rows(database.url, "SELECT job_id FROM platform.document")
    assert await api.service.app.retry([job]) == ["ready"]
    assert (await get_pdf(api, invoice)).status_code == 202
    await end_of_job(api, invoice, JobState.FAILED)
    response = await get_pdf(api, invoice)
    assert (response.status_code, response.json()["message"]) == (422, "the template is no template")


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM platform.document",
        "DELETE FROM platform.document; DELETE FROM platform.file",
        "UPDATE platform.document SET job_id = NULL",
        "UPDATE platform.document SET job_id = gen_random_uuid()",
    ],
)
async def test_twenty_simultaneous_requests_make_one_job(api: Api, database: Database, damage: str) -> None:
    """For an invoice that has no document, or a document whose job does not exist."""
    invoice = (await api.client.issued())["id"]
    ((job,),) = await rows(database.url, "SELECT job_id FROM platform.document")
    await execute(database.url, damage)
    if damage.startswith("DELETE"):
        # As after the retention of jobs: the key of the deleted document does not apply to the new one.
        assert await api.service.app.cancel([job]) == ["canceled"]
    responses = await asyncio.gather(*(get_pdf(api, invoice) for _ in range(20)))
    assert {response.status_code for response in responses} == {202}
    documents = await rows(database.url, "SELECT id, job_id FROM platform.document")
    assert [response.json()["documentId"] for response in responses] == [str(documents[0][0])] * 20
    live = await api.service.app.jobs.list(JobFilter(state=JobState.READY, kind=RENDER_PDF.name), limit=100)
    assert [job.id for job in live] == [documents[0][1]]


async def test_a_document_requested_again_after_its_job_gets_another_job(api: Api, database: Database) -> None:
    invoice = (await api.client.issued())["id"]
    async with working(rendering_app(database.url, api.service.files)):
        assert (await get_pdf(api, invoice, "waitMs=30000")).status_code == 200
        await execute(
            database.url,
            "WITH again AS (UPDATE platform.document SET state = 'PENDING')"
            " UPDATE platform.file SET state = 'PENDING', bytes = NULL, sha256 = NULL",
        )
        assert (await get_pdf(api, invoice, "waitMs=30000")).status_code == 200
    assert (await jobs_of(database.url)).count(RENDER_PDF.name) == 2


LOST_FILE = "UPDATE platform.file SET state = 'PENDING', bytes = NULL, sha256 = NULL"


async def test_a_ready_document_whose_file_is_lost_is_rendered_again_by_one_job(
    api: Api, bench: Bench, database: Database
) -> None:
    invoice = (await api.client.issued())["id"]
    await bench.work_off()
    before = (await get_pdf(api, invoice)).json()["sha256"]
    await execute(database.url, LOST_FILE)
    answers = await asyncio.gather(*(get_pdf(api, invoice) for _ in range(10)))
    answers += [await get_pdf(api, invoice) for _ in range(3)]
    assert {response.status_code for response in answers} == {202}
    assert (await jobs_of(database.url)).count(RENDER_PDF.name) == 2
    await bench.work_off()
    for _ in range(3):
        response = await get_pdf(api, invoice)
        assert (response.status_code, response.json()["sha256"]) == (200, before)
    assert (await jobs_of(database.url)).count(RENDER_PDF.name) == 2


@pytest.mark.parametrize("is_told", [True, False], ids=["by its handler", "by nobody"])
async def test_a_ready_document_whose_file_is_lost_can_fail(
    api: Api, bench: Bench, database: Database, *, is_told: bool
) -> None:
    """Its job is still waiting, as when a person rendered the file by hand and it was then lost."""
    invoice = (await api.client.issued(template="invoice"))["id"]
    await execute(database.url, "UPDATE platform.document SET state = 'READY'")
    if is_told:
        await execute(database.url, "UPDATE invoicing.invoice SET template = 'gone'")
        await bench.work_off()
    else:
        await end_of_job(api, invoice, JobState.DEAD)
    for _ in range(2):
        assert (await get_pdf(api, invoice)).status_code == 422
    assert (await jobs_of(database.url)).count(RENDER_PDF.name) == 1
    # After a person has retried the job, its new end counts.
    await execute(database.url, "UPDATE invoicing.invoice SET template = 'invoice'")
    ((job,),) = await rows(database.url, "SELECT job_id FROM platform.document")
    assert await api.service.app.retry([job]) == ["ready"]
    assert (await get_pdf(api, invoice)).status_code == 202
    await bench.work_off()
    assert (await get_pdf(api, invoice)).status_code == 200


async def waiting_clients(api: Api, number: int) -> bool:
    """The number of waiting clients according to /metrics."""
    lines = (await api.client.http.get("/metrics")).text.splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{WAITS} "))
    return float(value) == number


@pytest.mark.long
async def test_200_clients_can_wait_at_once_and_a_disconnect_ends_the_wait(api: Api, database: Database) -> None:
    customer = await api.client.customer()
    invoices = [(await api.client.issued(customer=customer))["id"] for _ in range(10)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=api.url, timeout=60, limits=limits) as many:

        async def ask(invoice: str) -> Any:  # noqa: ANN401
            return await many.get(f"/invoices/{invoice}/pdf?waitMs=30000")

        asking = [asyncio.create_task(ask(invoice)) for invoice in invoices * 20]
        await until(lambda: waiting_clients(api, 200), "all of them wait")
        # Waiting clients hold no database connections: there are only ten, and other requests are still answered.
        assert (await api.client.get("/healthz"))["status"] == "ok"
        leaving, staying = asking[:50], asking[50:]
        for task in leaving:
            task.cancel()
        await until(lambda: waiting_clients(api, 150), "those who left are not waited for")
        async with working(rendering_app(database.url, api.service.files)):
            responses = await asyncio.gather(*staying)
        await asyncio.gather(*leaving, return_exceptions=True)
    assert [response.json()["status"] for response in responses] == ["READY"] * 150
    assert await waiting_clients(api, 0)
    metrics = (await api.client.http.get("/metrics")).text
    assert 'invoicing_pdf_answers_total{status="GONE"} 50.0' in metrics
    assert 'invoicing_pdf_answers_total{status="READY"} 150.0' in metrics


async def test_a_disconnected_client_leaves_no_task_behind(api: Api) -> None:
    invoice = (await api.client.issued())["id"]
    asking = asyncio.create_task(get_pdf(api, invoice, "waitMs=30000"))
    await until(lambda: waiting_clients(api, 1), "it waits")
    asking.cancel()
    await until(lambda: waiting_clients(api, 0), "it does not wait any more")
    assert not {"_settled", "_disconnect"} & {getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()}


async def test_disconnected_clients_cause_no_more_looks(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured against a client that stays connected and has many more looks in the meantime."""
    monkeypatch.setattr(waiting, "_FIRST_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "_LONGEST_SECONDS", 0.05)
    left, stays = [(await api.client.issued())["id"] for _ in range(2)]
    looks: Counter[str] = Counter()

    async def counted(service: Service, invoice_id: UUID) -> Pdf:
        looks[str(invoice_id)] += 1
        return await pdf_of(service, invoice_id)

    monkeypatch.setattr(waiting, "pdf_of", counted)
    leaving = [asyncio.create_task(get_pdf(api, left, "waitMs=30000")) for _ in range(20)]
    staying = asyncio.create_task(get_pdf(api, stays, "waitMs=30000"))
    await until(lambda: looks[left] >= 60 and looks[stays] >= 3, "all of them wait")
    for task in leaving:
        task.cancel()
    before = looks.copy()
    await until(lambda: looks[stays] >= before[stays] + 20, "one who stays has many looks")
    # At most one look per client was still in progress.
    assert looks[left] <= before[left] + len(leaving)
    staying.cancel()
    await asyncio.gather(*leaving, staying, return_exceptions=True)
    await until(lambda: waiting_clients(api, 0), "nobody waits any more")


async def test_a_stopping_server_answers_waiting_clients(settings: Any) -> None:  # noqa: ANN401
    async with running_api(settings) as api:
        invoice = (await api.client.issued())["id"]
        asking = asyncio.create_task(get_pdf(api, invoice, "waitMs=30000"))
        await until(lambda: waiting_clients(api, 1), "it waits")
        api.server.should_exit = True
        async with asyncio.timeout(20):
            response = await asking
    assert (response.status_code, response.json()["status"]) == (202, "PENDING")
