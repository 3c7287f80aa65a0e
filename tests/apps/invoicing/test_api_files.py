"""Signed links: what they open, how long they are valid, and which headers the response has."""

import time
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as some

from apps.invoicing.api.app import create_api
from apps.invoicing.links import BadLink, ExpiredLink, Links
from apps.invoicing.settings import Misconfigured, Settings
from tests.apps.invoicing.conftest import Api, running_api
from tests.apps.invoicing.steps import CONTENT, set_ready
from tests.databases import Database, connected

FILE = UUID(int=17)


async def ready_pdf(api: Api) -> Any:  # noqa: ANN401
    invoice = await api.client.issued()
    async with connected(api.service.settings.database_url) as connection:
        document = await connection.fetchval("SELECT id FROM platform.document WHERE subject_id = $1", invoice["id"])
        await set_ready(connection, api.service.files, document)
    return invoice | await api.client.get(f"/invoices/{invoice['id']}/pdf")


async def test_the_link_returns_the_file_with_its_headers(api: Api) -> None:
    pdf = await ready_pdf(api)
    assert pdf["downloadUrl"].startswith(f"{api.url}/files/")
    response = await api.client.http.get(pdf["downloadUrl"])
    assert (response.status_code, response.content) == (200, CONTENT)
    assert pdf["bytes"] == len(CONTENT)
    assert pdf["sha256"] == sha256(CONTENT).hexdigest()
    assert response.headers["Content-Type"] == "application/pdf"
    assert response.headers["Content-Length"] == str(len(CONTENT))
    assert response.headers["Content-Disposition"] == f'inline; filename="{pdf["number"]}.pdf"'
    assert response.headers["Cache-Control"] == "private, no-store"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    head = await api.client.http.head(pdf["downloadUrl"])
    assert (head.status_code, head.content) == (200, b"")
    for name in ("Content-Type", "Content-Length", "Content-Disposition", "ETag"):
        assert head.headers[name] == response.headers[name]


async def link_for(api: Api, invoice: str, host: str) -> str:
    headers = {b"Host": host.encode("latin-1")}
    response = await api.client.http.get(f"/invoices/{invoice}/pdf", headers=headers)
    assert response.status_code == 200
    return str(response.json()["downloadUrl"])


async def test_a_link_begins_with_the_public_url_if_one_is_set(settings: Settings) -> None:
    async with running_api(settings.model_copy(update={"api_public_url": "https://billing.example"})) as api:
        pdf = await ready_pdf(api)
        assert pdf["downloadUrl"].startswith("https://billing.example/files/")
        # The client's Host header cannot change that.
        for host in ("elsewhere.example", "evil/x"):
            assert (await link_for(api, pdf["invoiceId"], host)).startswith("https://billing.example/files/")


async def test_without_a_public_url_a_link_begins_with_the_requested_host(api: Api) -> None:
    pdf = await ready_pdf(api)
    for host in ("billing.example", "billing.example:8443", "[::1]:80"):
        assert (await link_for(api, pdf["invoiceId"], host)).startswith(f"http://{host}/files/")


async def test_a_link_for_an_invalid_host_begins_with_the_server_address(api: Api) -> None:
    pdf = await ready_pdf(api)
    for host in ("[::1", "a b", "evil/x", "a?b", "x#y", "evil.example:80@x", "ä", "x:99999999", ""):
        link = await link_for(api, pdf["invoiceId"], host)
        assert (host, link.partition("/files/")[0]) == (host, api.url)
        assert (await api.client.http.get(link)).content == CONTENT


async def test_an_altered_link_is_refused(api: Api) -> None:
    pdf, other = await ready_pdf(api), await ready_pdf(api)
    parts, another = urlsplit(pdf["downloadUrl"]), urlsplit(other["downloadUrl"])
    query = dict(parse_qsl(parts.query))
    for path, changed in (
        (parts.path, {}),
        (parts.path, {"expires": query["expires"]}),
        (parts.path, {"signature": query["signature"]}),
        (parts.path, query | {"expires": str(int(query["expires"]) + 1)}),
        (parts.path, query | {"expires": f"0{query['expires']}"}),
        (parts.path, query | {"signature": query["signature"][:-1]}),
        (parts.path, query | {"signature": f"{query['signature']}="}),
        (parts.path, query | {"signature": "ä\u0000"}),
        (another.path, query),
        (f"/files/{uuid4()}", query),
    ):
        response = await api.client.http.get(f"{path}?{urlencode(changed)}")
        assert (response.status_code, response.json()["error"]) == (403, "LINK_INVALID")


async def test_a_link_expires(api: Api) -> None:
    pdf = await ready_pdf(api)
    file = UUID(urlsplit(pdf["downloadUrl"]).path.rpartition("/")[2])
    query = api.service.links.query(file, int(time.time()) - 1)
    response = await api.client.http.get(f"/files/{file}?{query}")
    assert (response.status_code, response.json()["error"]) == (403, "LINK_EXPIRED")


async def test_the_setting_decides_how_long_a_link_is_valid(settings: Settings) -> None:
    async with running_api(settings.model_copy(update={"download_link_ttl_ms": 3_600_000})) as api:
        before = time.time()
        pdf = await ready_pdf(api)
        after = time.time()
    expires = int(dict(parse_qsl(urlsplit(pdf["downloadUrl"]).query))["expires"])
    assert before + 3600 <= expires <= after + 3601


async def test_a_file_missing_from_storage_is_a_404(api: Api, tmp_path: Path, database: Database) -> None:
    pdf = await ready_pdf(api)
    for path in (tmp_path / "files").rglob("*.pdf"):
        path.unlink()
    response = await api.client.http.get(pdf["downloadUrl"])
    assert (response.status_code, response.json()["error"]) == (404, "FILE_NOT_FOUND")


def test_the_api_does_not_start_without_a_secret() -> None:
    with pytest.raises(Misconfigured, match="DOWNLOAD_LINK_SECRET"):
        create_api(Settings.load())


def signed(links: Links, expires: int) -> tuple[str, str]:
    query = dict(parse_qsl(links.query(FILE, expires)))
    return query["expires"], query["signature"]


def test_a_link_has_expired_at_exactly_its_expiry_time() -> None:
    links = Links("secret")
    links.check(FILE, *signed(links, 100), now=99.999)
    with pytest.raises(ExpiredLink):
        links.check(FILE, *signed(links, 100), now=100)


def test_a_different_secret_makes_a_different_signature() -> None:
    with pytest.raises(BadLink):
        Links("one").check(FILE, *signed(Links("other"), 100), now=0)


@given(some.text(), some.text())
def test_no_arbitrary_text_passes_for_a_signature(expires: str, signature: str) -> None:
    with pytest.raises(BadLink):
        Links("secret").check(FILE, expires, signature, now=0)
