"""Files in a folder and in a bucket keep the same promises. The bucket's server is a process that speaks S3."""

import asyncio
import hashlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.store import S3Store

from apps.invoicing.settings import Misconfigured
from apps.invoicing.storage import Files, StorageUnavailable, open_files
from tests.apps.invoicing.conftest import TOKEN, running_api
from tests.apps.invoicing.issuing import opened_bench, worker_settings
from tests.apps.invoicing.mail_server import mail_server
from tests.apps.invoicing.patience import PATIENCE
from tests.databases import Database

BUCKET = "papers"
KEY = "invoices/1.pdf"
PDF = "application/pdf"


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _until_it_answers(f"{url}/moto-api/", server)
        yield url
    finally:
        server.kill()
        server.wait()


def _until_it_answers(url: str, server: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + PATIENCE
    while True:
        assert server.poll() is None, "the server has ended"
        try:
            httpx.get(url)
            return
        except httpx.TransportError:
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.05)


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket, with the environment variables that give access to it."""
    for name, value in {
        "AWS_ENDPOINT": s3_server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    httpx.put(f"{s3_server}/{BUCKET}").raise_for_status()
    yield f"s3://{BUCKET}/of/tests"
    httpx.post(f"{s3_server}/moto-api/reset").raise_for_status()


@pytest.fixture(params=["folder", "bucket"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "folder":
        return open_files(f"file:{tmp_path}")
    return open_files(request.getfixturevalue("bucket"))


async def test_a_written_file_can_be_read(files: Files) -> None:
    content = bytes(range(256)) * 4096
    assert await files.write_once(KEY, content, PDF) == content
    assert await files.read(KEY) == content


async def test_the_first_content_stays_and_later_writers_get_it(files: Files) -> None:
    await files.write_once(KEY, b"first", PDF)
    assert await files.write_once(KEY, b"second", PDF) == b"first"
    assert await files.read(KEY) == b"first"


async def test_an_incomplete_first_file_is_written_again(files: Files) -> None:
    await files.write_once(KEY, b"", PDF)
    assert await files.write_once(KEY, b"second", PDF) == b"second"
    assert await files.write_once(KEY, b"third", PDF, lambda content: content == b"third") == b"third"
    assert await files.read(KEY) == b"third"


async def test_a_file_with_the_wrong_content_is_not_returned(files: Files) -> None:
    await files.write_once(KEY, b"content", PDF)
    assert await files.read(KEY, hashlib.sha256(b"content").hexdigest()) == b"content"
    with pytest.raises(StorageUnavailable, match=r"^invoices/1\.pdf does not contain what was written$"):
        await files.read(KEY, hashlib.sha256(b"other").hexdigest())


async def test_simultaneous_writers_all_get_the_content_of_one(tmp_path: Path) -> None:
    """Tested in a folder. S3 promises it for buckets, but the server of these tests checks first and then writes."""
    files = open_files(f"file:{tmp_path}")
    written = await asyncio.gather(*(files.write_once(KEY, f"{number}".encode() * 9999, PDF) for number in range(20)))
    assert set(written) == {await files.read(KEY)}


async def test_a_missing_file_differs_from_unavailable_storage(files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        await files.read("invoices/unknown.pdf")


async def test_a_bucket_keeps_the_content_type(bucket: str) -> None:
    await open_files(bucket).write_once(KEY, b"%PDF", PDF)
    found = await obstore.get_async(S3Store(BUCKET, prefix="of/tests"), KEY)
    assert found.attributes["Content-Type"] == PDF


async def test_a_missing_bucket_means_that_storage_is_unavailable(bucket: str) -> None:
    files = open_files(bucket.replace(BUCKET, "another-bucket"))
    with pytest.raises(StorageUnavailable, match=r"^invoices/1\.pdf could not be written: "):
        await files.write_once(KEY, b"%PDF", PDF)


async def test_an_unwritable_folder_means_that_storage_is_unavailable(tmp_path: Path) -> None:
    files = open_files(f"file:{tmp_path}")
    (tmp_path / "invoices").write_bytes(b"a file, where a folder should be")
    with pytest.raises(StorageUnavailable, match=r"^invoices/1\.pdf could not be written: "):
        await files.write_once(KEY, b"%PDF", PDF)


@pytest.mark.parametrize("url", ["", "files", "ftp://host/x", "s3:///x", "file://host/x", "s3://[b"])
def test_an_unsupported_address_is_refused_with_the_name_of_its_variable(url: str) -> None:
    with pytest.raises(Misconfigured, match=r"^FILES_URL: ") as refused:
        open_files(url)
    assert len(str(refused.value).splitlines()) == 1
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "why"), [("", "File exists"), ("/below", "Not a directory"), ("x" * 300, "File name too long")]
)
def test_an_invalid_folder_is_refused_with_the_name_of_its_variable(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Misconfigured, match=rf"^FILES_URL: cannot make folder {tmp_path}/file{path}: {why}$"):
        open_files(f"file:{tmp_path}/file{path}")


@pytest.mark.postgres
async def test_worker_mail_and_link_work_with_a_bucket(database: Database, bucket: str, tmp_path: Path) -> None:
    async with mail_server() as mails:
        settings = worker_settings(
            database.url,
            tmp_path,
            files_url=bucket,
            smtp_url=mails.url,
            download_link_secret="a secret of these tests",
            worker_api_service_token=TOKEN,
        )
        async with opened_bench(settings) as bench, running_api(settings) as api, httpx.AsyncClient() as http:
            issued = await bench.issue()
            await bench.work_off()
            pdf = await api.client.get(f"/invoices/{issued.id}/pdf")
            response = await http.get(pdf["downloadUrl"])
    assert response.content.startswith(b"%PDF-")
    assert hashlib.sha256(response.content).hexdigest() == pdf["sha256"]
    assert [part.get_content() for part in mails.mails[0].iter_attachments()] == [response.content]
    assert not (tmp_path / "files").exists()
