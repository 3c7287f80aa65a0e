"""A worker process is killed inside each handler, and another one takes over."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from holdfast import JobState
from tests.apps.passports.bench import KEY, Bench, is_waiting_for_audit
from tests.apps.passports.patience import until
from tests.apps.passports.receiver import Receiver, answer
from tests.apps.passports.test_idempotency import Prepare, to_compile, to_label, to_parse, to_sign
from tests.databases import Database, connected

pytestmark = [pytest.mark.postgres, pytest.mark.fault, pytest.mark.long]

ROOT = Path(__file__).parents[3]


@contextmanager
def worker(url: str, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    variables = {
        "BPC_DATABASE_URL": url,
        "BPC_SIGNING_KEY": KEY,
        "BPC_DEVELOPMENT": "true",
        "BPC_JOBS_LEASE_SECONDS": "2",
        "BPC_JOBS_LEASE_RENEW_SECONDS": "1",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith(("BPC_", "HOLDFAST_"))}
    command = [sys.executable, "-m", "apps.passports", "worker"]
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, env={**others, **variables}, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def all_done(bench: Bench) -> bool:
    before = await bench.jobs()
    due = [job for job in before if job.run_at is None or job.run_at <= await bench.app.clock.now()]
    # A job that was being finished may have enqueued another one while these were read.
    return all(job.state.is_final for job in due) and len(await bench.jobs()) == len(before)


async def is_done(bench: Bench, job_id: UUID) -> bool:
    return (await bench.job(job_id)).state.is_final


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
@pytest.mark.parametrize(
    ("prepare", "event_type", "status"),
    [
        (to_parse, "FACTS_PARSED", None),
        (to_compile, "PASSPORT_COMPILED", "LABELED"),
        (to_sign, "PASSPORT_SIGNED", "LABELED"),
        (to_label, "QR_GENERATED", "LABELED"),
    ],
)
async def test_after_a_kill_inside_the_handler_there_is_one_of_everything(
    database: Database,
    bench: Bench,
    receiver: Receiver,
    prepare: Prepare,
    event_type: str,
    status: str | None,
    moment: str,
    tmp_path: Path,
) -> None:
    """The handler has written its effect, and waits for the number of its audit event. Then its worker is killed."""
    tenant = await bench.tenant()
    await bench.endpoint(tenant, receiver.url, event_type)
    job = await prepare(bench, tenant)
    await bench.app.enqueue(job)
    async with connected(database.url) as connection:
        lock = connection.transaction()
        await lock.start()
        await connection.execute("SELECT FROM passports.tenants FOR NO KEY UPDATE")
        with worker(database.url, tmp_path / "killed.log") as process:
            await until(lambda: is_waiting_for_audit(bench))
            if moment == "after the commit":
                await lock.rollback()
                await until(lambda: is_done(bench, job.id))
            process.kill()
            process.wait()
        if moment == "before the commit":
            await lock.rollback()
        with worker(database.url, tmp_path / "second.log"):
            await until(lambda: all_done(bench))
    assert (await bench.job(job.id)).state is JobState.SUCCEEDED
    events = await bench.audited(tenant)
    assert len(events) == len(set(events))
    assert (event_type in events, "WEBHOOK_DELIVERED" in events) == (True, True)
    assert await bench.rows("SELECT status FROM passports.webhook_deliveries") == [("DELIVERED",)]
    assert len(await bench.rows("SELECT FROM passports.facts")) == 6
    assert len(await bench.rows("SELECT FROM passports.document_facts")) == 6
    versions = await bench.rows(
        "SELECT status, length(signature), qr_payload IS NOT NULL FROM passports.passport_versions"
    )
    assert versions == ([] if status is None else [(status, 64, status == "LABELED")])


async def test_after_a_kill_on_the_last_attempt_the_failure_is_recorded_once(
    database: Database, bench: Bench, receiver: Receiver, tmp_path: Path
) -> None:
    tenant = await bench.tenant()
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    await bench.rules(tenant)
    job = await bench.only("DELIVER_WEBHOOK")
    receiver.answers = [answer(500)]
    for _ in range(4):
        await bench.work()
        await bench.app.clock.advance(timedelta(seconds=16))
    receiver.hangs = True
    receiver.answers = [b"HTTP/1.1 500 Broken\r\nContent-Length: 2\r\n\r\n"]
    receiver.arrived.clear()
    with worker(database.url, tmp_path / "killed.log") as process:
        await until(receiver.arrived.is_set)
        process.kill()
        process.wait()
    receiver.hangs = False
    receiver.answers = [answer(500)]
    with worker(database.url, tmp_path / "second.log"):
        await until(lambda: all_done(bench))
    assert await bench.ending(job.id) == (JobState.DEAD, "WebhookNon2xx")
    assert (await bench.delivery(tenant))["status"] == "FAILED"
    assert await bench.audited(tenant) == ["RULES_PUBLISHED", "WEBHOOK_FAILED"]


async def test_after_a_kill_during_a_delivery_it_is_recorded_once(
    database: Database, bench: Bench, receiver: Receiver, tmp_path: Path
) -> None:
    tenant = await bench.tenant()
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    await bench.rules(tenant)
    receiver.hangs = True
    receiver.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"]
    with worker(database.url, tmp_path / "killed.log") as process:
        await until(receiver.arrived.is_set)
        process.kill()
        process.wait()
    receiver.hangs = False
    receiver.answers = []
    with worker(database.url, tmp_path / "second.log"):
        await until(lambda: all_done(bench))
    assert (await bench.delivery(tenant))["status"] == "DELIVERED"
    assert len(receiver.received) == 2
    assert len({(each.body, each.headers["X-BPC-Delivery-Id"]) for each in receiver.received}) == 1
    assert await bench.audited(tenant) == ["RULES_PUBLISHED", "WEBHOOK_DELIVERED"]
