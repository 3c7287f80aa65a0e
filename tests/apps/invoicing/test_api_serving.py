"""The API as a separate process, its metrics, and its OpenAPI description."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps.invoicing.api.app import create_api
from apps.invoicing.api.pdfs import LONGEST_WAIT_MS
from apps.invoicing.api.serving import KEEP_ALIVE_SECONDS, ApiServer, serve
from apps.invoicing.jobs import RENDER_PDF, SNAPSHOT_TAX
from apps.invoicing.settings import Settings
from holdfast import Holdfast, Permanent, Retryable, RunningJob
from tests.apps.invoicing.conftest import TOKEN, Api
from tests.apps.invoicing.steps import Client, working
from tests.databases import Database, refusing
from tests.worker.harness import until

ROOT = Path(__file__).parents[3]
PROGRAM = (
    "import sys; from apps.invoicing.api import serve; from apps.invoicing.settings import Settings;"
    " sys.exit(serve(Settings.load()))"
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def variables(**given: str) -> dict[str, str]:
    """The variables of a process that imports the same code as this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return kept | {"PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(ROOT)]), **given}


async def started(**given: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, env=variables(**given), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@asynccontextmanager
async def serving(database: Database, folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, Client]]:
    port = free_port()
    process = await started(
        DATABASE_URL=database.url,
        DOWNLOAD_LINK_SECRET="a secret of these tests",
        FILES_URL=f"file://{folder}",
        WORKER_API_SERVICE_TOKEN=TOKEN,
        API_PORT=str(port),
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:

            async def is_up() -> bool:
                assert process.returncode is None, "it ended at once"
                try:
                    return (await http.get("/healthz")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(is_up, "the API answers")
            yield process, Client(http, TOKEN)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_with_0_after_waiting_clients_are_answered(
    database: Database, tmp_path: Path, number: signal.Signals
) -> None:
    async with serving(database, tmp_path) as (process, client):
        invoice = (await client.issued())["id"]
        asking = asyncio.create_task(client.http.get(f"/invoices/{invoice}/pdf?waitMs=30000"))

        async def it_waits() -> bool:
            return "invoicing_pdf_waits 1.0" in (await client.http.get("/metrics")).text

        await until(it_waits, "it waits")
        process.send_signal(number)
        assert (await asking).status_code == 202
        _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, "Traceback" in errors.decode()) == (0, False)


def test_a_failed_start_is_explained_in_one_line(
    settings: Settings, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases: dict[str, tuple[int, dict[str, object]]] = {
            "DOWNLOAD_LINK_SECRET": (2, {"download_link_secret": None}),
            "API_PORT": (2, {"api_port": taken.getsockname()[1]}),
            "API_HOST": (2, {"api_host": "no.such.host.invalid"}),
            "FILES_URL": (2, {"files_url": "ftp://somewhere"}),
            "refused": (1, {"database_url": f"postgresql://postgres@127.0.0.1:{free_port()}/none"}),
            "does not exist": (2, {"database_url": database.url.replace(database.name, "nobody_made_it")}),
        }
        for named, (code, changes) in cases.items():
            assert (named, serve(settings.model_copy(update={"api_port": free_port(), **changes}))) == (named, code)
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith("invoicing: ")
            assert named in line


@pytest.mark.long
async def test_its_timeouts_allow_the_default_and_the_longest_wait(database: Database, tmp_path: Path) -> None:
    """Half a minute with the real settings: the server neither ends a request early nor holds it for longer."""
    async with serving(database, tmp_path) as (_, client):
        invoice = (await client.issued())["id"]
        ended: list[str] = []

        async def ask(query: str) -> tuple[int, float]:
            began = time.monotonic()
            response = await client.http.get(f"/invoices/{invoice}/pdf{query}")
            ended.append(query)
            return response.status_code, time.monotonic() - began

        queries = ("", "?waitMs=30000", "?waitMs=1000000000")
        answers = await asyncio.gather(*map(ask, queries))
    assert [status for status, _ in answers] == [202] * 3
    for (_, seconds), least in zip(answers, (15, 30, 30), strict=True):
        assert seconds >= least
    # When it ended, half of the wait was still ahead of the others.
    assert ended[0] == ""


def test_a_connection_is_kept_longer_than_a_request_may_take(settings: Settings) -> None:
    assert LONGEST_WAIT_MS + 5_000 <= KEEP_ALIVE_SECONDS * 1000
    assert ApiServer(create_api(settings)).config.timeout_keep_alive == KEEP_ALIVE_SECONDS


async def values(api: Api) -> dict[str, float]:
    lines = (await api.client.http.get("/metrics")).text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


async def test_the_metrics_report_the_health_of_the_queue(api: Api, database: Database) -> None:
    assert (await values(api))["invoicing_outbox_due_pending"] == 0
    for _ in range(2):
        await api.client.issued(send_email=True)
    found = await values(api)
    assert found["invoicing_store_up"] == 1
    assert found['invoicing_outbox_jobs{state="PENDING"}'] == 6
    assert found["invoicing_outbox_due_pending"] == 6
    await api.service.app.clock.advance(timedelta(hours=1))
    assert (await values(api))["invoicing_outbox_oldest_pending_seconds"] >= 3600

    app = Holdfast(database.url)

    @app.handler(RENDER_PDF.name)
    async def fail(job: RunningJob[dict[str, str]]) -> None:
        raise Permanent("BROKEN")

    @app.handler(SNAPSHOT_TAX.name)
    async def try_again(job: RunningJob[dict[str, str]]) -> None:
        raise Retryable("not now", after="1h")

    async def both_have_run() -> bool:
        found = await values(api)
        return (found['invoicing_outbox_jobs{state="FAILED"}'], found["invoicing_outbox_retrying"]) == (2, 2)

    async with working(app):
        await until(both_have_run, "two have failed, and two wait for another attempt")
    found = await values(api)
    assert (found['invoicing_outbox_jobs{state="PENDING"}'], found["invoicing_outbox_due_pending"]) == (4, 2)


async def test_unknown_queue_figures_are_left_out(api: Api, database: Database) -> None:
    """While the store is unreachable, a zero or an old value would silence an alert."""
    await api.client.issued()
    before = await values(api)
    names = {name for name in before if name.startswith("invoicing_outbox_")}
    assert {name.partition("{")[0] for name in names} == {
        "invoicing_outbox_jobs",
        "invoicing_outbox_due_pending",
        "invoicing_outbox_oldest_pending_seconds",
        "invoicing_outbox_retrying",
    }
    with refusing(database.url):
        away = await values(api)
    assert away["invoicing_store_up"] == 0
    assert "invoicing_pdf_waits" in away
    assert not names & set(away)
    found = await values(api)
    assert (found["invoicing_store_up"], found["invoicing_outbox_due_pending"]) == (1, 2)
    assert names <= set(found)


async def test_requests_are_counted_by_route_and_not_by_id(api: Api) -> None:
    invoice = await api.client.draft()
    for _ in range(3):
        await api.client.get(f"/invoices/{invoice}")
    await api.client.http.request("BREW", "/coffee")
    found = await values(api)
    assert found['invoicing_http_requests_total{method="GET",route="/invoices/{invoiceId}",status="200"}'] == 3
    assert found['invoicing_http_requests_total{method="other",route="none",status="404"}'] == 1
    assert not [name for name in found if invoice in name]


DOCUMENTED: dict[str, dict[str, set[str]]] = {
    "/customers": {"post": {"201", "422", "503"}},
    "/customers/{customerId}": {"get": {"200", "404", "503"}},
    "/invoices": {"post": {"201", "422", "503"}, "get": {"200", "422", "503"}},
    "/invoices/{invoiceId}": {"get": {"200", "404", "503"}},
    "/invoices/{invoiceId}/issue": {"post": {"200", "404", "409", "422", "503"}},
    "/invoices/{invoiceId}/pay": {"post": {"200", "404", "409", "503"}},
    "/invoices/{invoiceId}/pdf": {"get": {"200", "202", "400", "404", "409", "422", "503"}},
    "/invoices/{invoiceId}/email": {"post": {"202", "400", "404", "409", "422", "503"}},
    "/invoices/{invoiceId}/deliveries": {"get": {"200", "404", "503"}},
    "/deliveries/{deliveryId}": {"get": {"200", "404", "503"}},
    "/enrolments": {"post": {"201", "422", "503"}},
    "/enrolments/{enrolmentId}": {"get": {"200", "404", "503"}},
    "/enrolments/{enrolmentId}/end": {"post": {"200", "404", "422", "503"}},
    "/internal/scheduler/invoice-reminders": {"post": {"200", "401", "422", "503"}},
    "/internal/scheduler/classes-billing": {"post": {"200", "401", "422", "503"}},
    "/files/{fileId}": {"get": {"200", "403", "404", "503"}},
    "/healthz": {"get": {"200", "503"}},
    "/metrics": {"get": {"200"}},
}


async def test_its_description_is_true(api: Api) -> None:
    described: dict[str, Any] = await api.client.get("/openapi.json")
    found = {
        path: {method: set(operation["responses"]) for method, operation in operations.items()}
        for path, operations in described["paths"].items()
    }
    assert found == DOCUMENTED
    for operations in described["paths"].values():
        for operation in operations.values():
            assert operation["summary"]
    pdf = described["paths"]["/invoices/{invoiceId}/pdf"]["get"]
    wait = next(each for each in pdf["parameters"] if each["name"] == "waitMs")
    assert (wait["schema"]["type"], wait["schema"]["default"]) == ("integer", 15_000)
    assert "HTTPValidationError" not in described["components"]["schemas"]
