"""Steps shared by the tests of the service: call the API, read the tables, stand in for the worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

import httpx

from apps.invoicing.jobs import RENDER_PDF, RenderPdf
from apps.invoicing.storage import Files
from holdfast import Holdfast, RunningJob
from tests.databases import connected

CONTENT = b"%PDF-1.7 of a test"
LINE = {"description": "Lessons", "quantity": "3", "unitPrice": "33.35", "taxRate": "19"}


@dataclass(frozen=True, slots=True)
class Client:
    """Methods for calls that must succeed return the body; use `http` for all others."""

    http: httpx.AsyncClient
    token: str

    async def post(
        self, path: str, body: object = None, *, status: int = 200, headers: dict[str, str] | None = None
    ) -> Any:  # noqa: ANN401
        response = await self.http.post(path, json=body, headers=headers)
        assert response.status_code == status, response.text
        return response.json()

    async def get(self, path: str, *, status: int = 200) -> Any:  # noqa: ANN401
        response = await self.http.get(path)
        assert response.status_code == status, response.text
        return response.json()

    async def customer(self, email: str = "ann@example.com") -> str:
        return str((await self.post("/customers", {"name": "Ann Ltd", "email": email}, status=201))["id"])

    async def draft(self, *, customer: str | None = None, **fields: object) -> str:
        body = {"customerId": customer or await self.customer(), "currency": "EUR", "lines": [LINE], **fields}
        return str((await self.post("/invoices", body, status=201))["id"])

    async def issued(self, *, customer: str | None = None, send_email: bool = False, **fields: object) -> Any:  # noqa: ANN401
        invoice = await self.draft(customer=customer, **fields)
        return await self.post(f"/invoices/{invoice}/issue", {"sendEmail": send_email})

    async def enrolment(self, *, first: str, **fields: object) -> Any:  # noqa: ANN401
        body = {
            "customerId": await self.customer(),
            "className": "Violin",
            "student": "Bo",
            "monthlyPrice": "80.00",
            "currency": "EUR",
            "taxRate": "7",
            "firstMonth": first,
            **fields,
        }
        return await self.post("/enrolments", body, status=201)

    async def scheduler(self, name: str, limit: int = 200) -> Any:  # noqa: ANN401
        path = f"/internal/scheduler/{name}?limit={limit}"
        return await self.post(path, headers={"x-service-token": self.token})


async def rows(url: str, query: str, *arguments: object) -> list[tuple[Any, ...]]:
    async with connected(url) as connection:
        return [tuple(row) for row in await connection.fetch(query, *arguments)]


async def execute(url: str, query: str, *arguments: object) -> None:
    async with connected(url) as connection:
        await connection.execute(query, *arguments)


async def jobs_of(url: str) -> list[str]:
    """The kinds of all existing jobs, sorted."""
    return [kind for (kind,) in await rows(url, "SELECT kind FROM holdfast.job ORDER BY kind")]


def rendering_app(url: str, files: Files) -> Holdfast:
    """An app that stands in for the worker: its handler writes to the tables just as the worker's does."""
    app = Holdfast(url)

    @app.handler(RENDER_PDF)
    async def render(job: RunningJob[RenderPdf]) -> None:
        async with connected(url) as connection, connection.transaction():
            await set_ready(connection, files, job.payload.document_id)
            await job.finish_in(connection)

    return app


async def set_ready(connection: Any, files: Files, document_id: UUID) -> None:  # noqa: ANN401
    key = await connection.fetchval(
        "UPDATE platform.file SET state = 'READY', bytes = $2, sha256 = $3"
        " WHERE id = (SELECT file_id FROM platform.document WHERE id = $1) RETURNING storage_key",
        document_id, len(CONTENT), sha256(CONTENT).hexdigest(),
    )  # fmt: skip
    await files.write_once(key, CONTENT, "application/pdf")
    await connection.execute("UPDATE platform.document SET state = 'READY' WHERE id = $1", document_id)


@asynccontextmanager
async def working(app: Holdfast) -> AsyncIterator[None]:
    """Run a worker of this app until the block ends."""
    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
            await running
