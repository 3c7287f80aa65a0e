"""Bad input is answered as problem+json, in one line, and never with a 5xx."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.apps.passports.api.conftest import ISSUED_AT, Api, client_of, opened_api, problem
from tests.apps.passports.api.test_routes import routes
from tests.apps.passports.bench import worker_settings
from tests.databases import Database, refusing

pytestmark = pytest.mark.postgres

SOME_ID = "00000000-0000-4000-8000-000000000000"
BUILDING = {"passport_id": SOME_ID, "rules_id": SOME_ID, "build_id": "1", "issued_at": ISSUED_AT}
TYPE = {"Content-Type": "application/json"}
WRONG: list[tuple[str, Any, str]] = [
    ("/documents", {"name": ""}, "name"),
    ("/documents", {"name": "  "}, "name"),
    ("/documents", {"name": "NUL \0"}, "name"),
    ("/documents", {"name": "half \ud800"}, "name"),
    ("/documents", {"name": "x" * 201}, "name"),
    ("/documents", {"name": 17}, "name"),
    ("/documents", {}, "name"),
    ("/documents", {"name": "BOM", "tenant_id": SOME_ID}, "tenant_id"),
    ("/passports", {"name": "line\nbreak"}, "name"),
    ("/rules", {"name": "rules", "source": ""}, "source"),
    ("/rules", {"name": "rules", "source": "\0"}, "source"),
    ("/rules", {"name": "rules", "source": "#" * 100_001}, "source"),
    (f"/snapshots/{SOME_ID}/documents", {"document_version_ids": []}, "document_version_ids"),
    (f"/snapshots/{SOME_ID}/documents", {"document_version_ids": ["17"]}, "document_version_ids.0"),
    (f"/snapshots/{SOME_ID}/seal", BUILDING | {"issued_at": "2026-11-20T12:00:00"}, "issued_at"),
    (f"/snapshots/{SOME_ID}/seal", BUILDING | {"issued_at": "0001-01-01T00:00:00+14:00"}, "issued_at"),
    (f"/snapshots/{SOME_ID}/seal", BUILDING | {"issued_at": "9999-12-31T23:59:59-14:00"}, "issued_at"),
    (f"/snapshots/{SOME_ID}/seal", BUILDING | {"issued_at": "tomorrow"}, "issued_at"),
    (f"/snapshots/{SOME_ID}/seal", BUILDING | {"build_id": "a\x7fb"}, "build_id"),
    (f"/snapshots/{SOME_ID}/seal", BUILDING | {"priority": 4}, "priority"),
    (f"/snapshots/{SOME_ID}/seal", BUILDING | {"priority": True}, "priority"),
    ("/passport-versions", BUILDING, "snapshot_id"),
    ("/webhook-endpoints", {"url": "http://127.0.0.1/", "event_types": ["WEBHOOK_FAILED"]}, "event_types.0"),
    ("/webhook-endpoints", {"url": "x" * 2001}, "url"),
]


async def test_a_wrong_field_is_named(api: Api) -> None:
    for path, body, where in WRONG:
        # Python's own encoder accepts what others refuse, such as half of a surrogate pair.
        response = await api.ann.http.post(f"/v1{path}", content=json.dumps(body), headers=TYPE)
        status, code, detail = await problem(response)
        assert (path, body, status, code) == (path, body, 422, "VALIDATION_ERROR")
        assert detail.startswith(f"{where}: "), (body, detail)


async def test_a_body_that_is_not_an_object_is_refused(api: Api) -> None:
    for content in (b"", b"{", b"[]", b"null", b"\xff", b"1" * 5000, b"[" * 5000, b'{"name": NaN}', b'"text"'):
        answer = await problem(await api.ann.http.post("/v1/documents", content=content, headers=TYPE))
        assert (content, *answer[:2]) == (content, 422, "VALIDATION_ERROR")
    for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = await problem(await api.ann.http.post("/v1/documents", content=b'{"name": "BOM"}', headers=headers))
        assert answer[:2] == (415, "UNSUPPORTED_MEDIA_TYPE")


async def test_a_document_is_json_or_csv_and_not_empty(api: Api) -> None:
    path = f"/v1/documents/{await api.ann.document()}/versions"
    for headers in ({}, {"Content-Type": "application/pdf"}, {"Content-Type": "text"}, {"Content-Type": ""}):
        answer = await problem(await api.ann.http.post(path, content=b"{}", headers=headers))
        assert answer[:2] == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert (await problem(await api.ann.http.post(path, headers=TYPE)))[:2] == (422, "VALIDATION_ERROR")


@pytest.fixture
async def small(database: Database) -> AsyncIterator[Api]:
    """An API that accepts little."""
    async with opened_api(worker_settings(database.url, bpc_payload_max_bytes=1000)) as api:
        yield api


async def test_large_bodies_are_refused_whether_or_not_their_size_is_announced(small: Api) -> None:
    async def in_parts(size: int) -> AsyncIterator[bytes]:
        for _ in range(size // 100):
            yield b" " * 100

    document = f"/v1/documents/{await small.ann.document()}/versions"
    for path, most in ((document, 1000), ("/v1/documents", 512 * 1024)):
        for content in (b" " * (most + 1), in_parts(most + 100)):
            answer = await problem(await small.ann.http.post(path, content=content, headers=TYPE))
            assert answer == (413, "PAYLOAD_TOO_LARGE", f"the body has more than {most:,} bytes")
    whole = b'{"schema_version": 1}'.ljust(1000)
    assert (await small.ann.http.post(document, content=whole, headers=TYPE)).status_code == 202


async def test_an_unreachable_database_is_a_503_until_it_returns(api: Api, database: Database) -> None:
    document_id = await api.ann.document()
    with refusing(database.url):
        for method, path in routes(api.api):
            response = await api.ann.http.request(method, path.replace("{", "").replace("}", ""))
            assert (path, *(await problem(response))[:2]) == (path, 503, "DB_UNAVAILABLE")
            assert response.headers["retry-after"] == "1"
        assert (await problem(await api.nobody.get("/v1/health/ready")))[:2] == (503, "DB_UNAVAILABLE")
        assert (await api.nobody.get("/v1/health/live")).json() == {"status": "ok"}
    assert (await api.nobody.get("/v1/health/ready")).json() == {"status": "ok"}
    assert (await api.ann.get(f"/documents/{document_id}"))["document_id"] == document_id


async def test_an_unexpected_error_is_a_500_without_details(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("apps.passports.api.documents.documents.add_document", broken)
    async with client_of(api.api) as client:
        client.headers = api.ann.http.headers
        told = await problem(await client.post("/v1/documents", json={"name": "BOM"}))
    assert told == (500, "INTERNAL", "something went wrong on the server; your request is not the cause")
