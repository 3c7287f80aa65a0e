"""The open API in the test's process, with a client for each of two tenants, and a worker whose ticks the test runs."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from apps.passports.api import create_api
from apps.passports.settings import Settings
from apps.passports.tenants import add_tenant
from tests.apps.passports.bench import DOCUMENT, RULES, Bench

ISSUED_AT = "2026-11-20T12:00:00Z"
EVENTS = ["DOCUMENT_UPLOADED", "PASSPORT_SIGNED"]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Client:
    """Methods for calls that must succeed return the body; use `http` for all others."""

    tenant: UUID
    http: httpx.AsyncClient

    async def get(self, path: str, **parameters: object) -> Any:  # noqa: ANN401
        given = {name: str(value) for name, value in parameters.items()}
        response = await self.http.get(f"/v1{path}", params=given)
        assert response.is_success, response.text
        return response.json()

    async def post(self, path: str, body: object = None) -> Any:  # noqa: ANN401
        response = await self.http.post(f"/v1{path}", json=body)
        assert response.is_success, response.text
        return response.json()

    async def put(self, path: str, body: object = None) -> Any:  # noqa: ANN401
        response = await self.http.put(f"/v1{path}", json=body)
        assert response.is_success, response.text
        return response.json()

    async def document(self) -> str:
        return str((await self.post("/documents", {"name": "BOM"}))["document_id"])

    async def upload(self, document_id: str | None = None, content: object = DOCUMENT, **query: str) -> Json:
        response = await self.http.post(
            f"/v1/documents/{document_id or await self.document()}/versions",
            content=json.dumps(content),
            headers={"Content-Type": "application/json"},
            params=query,
        )
        assert response.status_code == 202, response.text
        uploaded: Json = response.json()
        return uploaded

    async def published(self, source: str = RULES) -> str:
        rules_id = (await self.post("/rules", {"name": "rules", "source": source}))["rules_id"]
        await self.post(f"/rules/{rules_id}/publish")
        return str(rules_id)

    async def passport(self) -> str:
        return str((await self.post("/passports", {"name": "Battery 1"}))["passport_id"])

    async def snapshot(self, version_id: str) -> str:
        snapshot_id = (await self.post("/snapshots"))["snapshot_id"]
        await self.post(f"/snapshots/{snapshot_id}/documents", {"document_version_ids": [version_id]})
        return str(snapshot_id)

    async def endpoint(self, url: str = "http://127.0.0.1:9/hook", *event_types: str) -> Json:
        added: Json = await self.post("/webhook-endpoints", {"url": url, "event_types": list(event_types)})
        return added


@dataclass(frozen=True, slots=True)
class Api:
    api: FastAPI
    ann: Client
    bob: Client
    nobody: httpx.AsyncClient
    bench: Bench

    async def work(self) -> None:
        await self.bench.work()


@dataclass(frozen=True, slots=True)
class World:
    """Ann's things, one of each, named like the parameters of paths."""

    ids: dict[str, str]
    building: Json
    """The body that sealed the snapshot."""


def client_of(api: FastAPI, token: str | None = None) -> httpx.AsyncClient:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(api, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://api", headers=headers)


@asynccontextmanager
async def opened_api(settings: Settings) -> AsyncIterator[Api]:
    api = create_api(settings)
    async with api.router.lifespan_context(api), client_of(api) as nobody:
        service = api.state.service
        service.app.lifespan = lambda _app: nullcontext(service.tools)
        await service.app.declare()
        ann, bob = [await add_tenant(service.pool, name) for name in ("Ann Ltd", "Bob Ltd")]
        async with client_of(api, ann.token) as anns, client_of(api, bob.token) as bobs:
            bench = Bench(service.app, service.tools, settings)
            yield Api(api, Client(ann.tenant_id, anns), Client(bob.tenant_id, bobs), nobody, bench)


@asynccontextmanager
async def served(api: FastAPI) -> AsyncIterator[str]:
    """Serve an API whose lifespan is entered already, on a free port."""
    server = uvicorn.Server(uvicorn.Config(api, lifespan="off", log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Api]:
    async with opened_api(settings) as api:
        yield api


async def made(api: Api) -> World:
    """Make a labeled passport, and a dead letter: the delivery to an address that refuses connections."""
    endpoint = await api.ann.endpoint("http://127.0.0.1:9/hook", *EVENTS)
    document_id = await api.ann.document()
    uploaded = await api.ann.upload(document_id)
    await api.work()
    building = {
        "passport_id": await api.ann.passport(),
        "rules_id": await api.ann.published(),
        "build_id": "build-1",
        "issued_at": ISSUED_AT,
    }
    snapshot_id = await api.ann.snapshot(uploaded["document_version_id"])
    sealed = await api.ann.post(f"/snapshots/{snapshot_id}/seal", building)
    await api.bench.work_off()
    (delivery, *_) = (await api.ann.get("/webhook-deliveries"))["items"]
    (dead, *_) = (await api.ann.get("/dead-letters"))["items"]
    ids = {
        "document_id": document_id,
        "document_version_id": uploaded["document_version_id"],
        "snapshot_id": snapshot_id,
        "rules_id": building["rules_id"],
        "passport_id": building["passport_id"],
        "passport_version_id": sealed["passport_version_id"],
        "job_id": dead["job_id"],
        "webhook_endpoint_id": endpoint["webhook_endpoint_id"],
        "event_type": EVENTS[0],
        "webhook_delivery_id": delivery["webhook_delivery_id"],
    }
    return World(ids, building)


@pytest.fixture
async def world(api: Api) -> World:
    return await made(api)


async def problem(response: httpx.Response) -> tuple[int, str, str]:
    """The status, code and detail of a refused request."""
    assert response.headers["content-type"] == "application/problem+json"
    told = response.json()
    assert sorted(told) == ["code", "detail", "status", "title", "type"]
    assert (told["status"], told["type"], "\n" in told["detail"]) == (response.status_code, "about:blank", False)
    return response.status_code, told["code"], told["detail"]
