"""Webhook deliveries: what is sent, rotations, redeliveries, and jobs that end without their handler."""

import asyncio
import base64
import hashlib
import hmac
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from apps.passports.audit import ANNOUNCED
from apps.passports.codes import Conflict
from apps.passports.database import transaction
from apps.passports.deliveries import record_attempt, redeliver, settle_all
from apps.passports.endpoints import begin_rotation, end_rotation, subscribe
from apps.passports.handlers import deliver_webhook
from apps.passports.jobs import Priority
from apps.passports.settings import Settings
from apps.passports.verifying import verify_webhook
from holdfast import JobState
from holdfast.webhooks import WebhookAddressRefused, send
from tests.apps.passports.bench import Bench, opened_bench, worker_settings
from tests.apps.passports.patience import until
from tests.apps.passports.receiver import Receiver, answer
from tests.databases import Database
from tests.store_contract.steps import wants

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[3]


def verify_signature(secret: str, body_bytes: bytes, signature_header: str) -> bool:
    """The code that customers were given."""
    expected = hmac.new(secret.encode(), body_bytes, hashlib.sha256).hexdigest()
    provided = signature_header.removeprefix("sha256=")
    return hmac.compare_digest(expected, provided)


async def announced(bench: Bench, tenant: UUID) -> UUID:
    """Announce an event to the tenant's endpoints, and return the ID of the newest job."""
    await bench.rules(tenant)
    return (await bench.jobs("DELIVER_WEBHOOK"))[-1].id


async def redelivered(bench: Bench, tenant: UUID) -> UUID | None:
    delivery = await bench.delivery(tenant)
    async with transaction(bench.tools.pool) as connection:
        return await redeliver(connection, bench.app, tenant, delivery["webhook_delivery_id"])


async def test_a_webhook_passes_the_verification_of_customers_also_during_a_rotation(
    bench: Bench, tmp_path: Path
) -> None:
    """The customer's server is a process of its own. It refuses the first webhook once."""
    tenant, log = await bench.tenant(), tmp_path / "received"
    command = [sys.executable, "-m", "apps.passports.demo_receiver", str(log)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as customer:  # noqa: ASYNC220
        try:
            assert customer.stdout is not None
            port = int(await asyncio.to_thread(customer.stdout.readline))
            endpoint = await bench.endpoint(tenant, f"http://127.0.0.1:{port}/bpc", "RULES_PUBLISHED")
            old, id = endpoint.secret, endpoint.webhook_endpoint_id
            await announced(bench, tenant)
            await bench.work_off()
            async with transaction(bench.tools.pool) as connection:
                new = await begin_rotation(connection, tenant, id)
            await announced(bench, tenant)
            await bench.work()
            async with transaction(bench.tools.pool) as connection:
                await end_rotation(connection, tenant, id)
            await announced(bench, tenant)
            await bench.work()
        finally:
            customer.terminate()
    refused, before, during, after = (json.loads(line) for line in log.read_text().splitlines())
    assert [each["status"] for each in (refused, before, during, after)] == [503, 204, 204, 204]
    for received, secret in ((refused, old), (before, old), (during, old), (after, new)):
        body, headers = base64.b64decode(received["body"]), received["headers"]
        assert verify_signature(secret, body, headers["X-BPC-Signature"])
        assert verify_webhook(body, headers, secret) == []
        assert (headers["Content-Type"], headers["X-BPC-Event-Type"]) == ("application/json", "RULES_PUBLISHED")
        assert str(UUID(headers["X-BPC-Delivery-Id"])) == headers["X-BPC-Delivery-Id"]
    assert verify_signature(new, base64.b64decode(during["body"]), during["headers"]["X-BPC-Signature-Next"])
    assert "X-BPC-Signature-Next" not in before["headers"] | after["headers"]


async def test_what_the_receiver_answered_is_kept(bench: Bench, receiver: Receiver) -> None:
    tenant = await bench.tenant()
    receiver.answers = [answer(202, b"\x00thanks", "X-Id: 17\r\n")]
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    await announced(bench, tenant)
    await bench.work()
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"], delivery["error_message"]) == ("DELIVERED", 202, None)
    assert delivery["response_body"] == b"\x00thanks"
    assert '"x-id": "17"' in delivery["response_headers"]
    assert delivery["delivered_at"] is not None


async def test_a_huge_answer_is_cut_off(bench: Bench, receiver: Receiver) -> None:
    tenant = await bench.tenant()
    receiver.answers = [answer(200, b"x" * 1_000_000)]
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    await announced(bench, tenant)
    await bench.work()
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], len(delivery["response_body"])) == ("DELIVERED", 64 * 1024)


async def test_a_failed_attempt_is_recorded_and_the_delivery_stays_pending(bench: Bench, receiver: Receiver) -> None:
    tenant = await bench.tenant()
    receiver.answers = [answer(500), answer(200)]
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    await announced(bench, tenant)
    await bench.work()
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"]) == ("PENDING", 500)
    assert "WEBHOOK_FAILED" not in await bench.audited(tenant)
    await bench.work_off()
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"], delivery["error_message"]) == ("DELIVERED", 200, None)


@pytest.mark.parametrize("status", [200, 410])
async def test_a_redelivery_has_the_same_id_and_body(bench: Bench, receiver: Receiver, status: int) -> None:
    tenant = await bench.tenant()
    receiver.answers = [answer(status), answer(200)]
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    job_id = await announced(bench, tenant)
    await bench.work()
    again = await redelivered(bench, tenant)
    assert again not in (None, job_id)
    assert (await bench.delivery(tenant))["status"] == "PENDING"
    await bench.work()
    assert (await bench.delivery(tenant))["status"] == "DELIVERED"
    one, other = receiver.received
    assert (one.body, one.headers["X-BPC-Delivery-Id"]) == (other.body, other.headers["X-BPC-Delivery-Id"])
    first = "WEBHOOK_DELIVERED" if status == 200 else "WEBHOOK_FAILED"
    assert await bench.audited(tenant) == ["RULES_PUBLISHED", first, "WEBHOOK_DELIVERED"]


async def test_a_redelivery_of_a_pending_delivery_is_the_same_job(bench: Bench, receiver: Receiver) -> None:
    tenant = await bench.tenant()
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    job_id = await announced(bench, tenant)
    assert await redelivered(bench, tenant) == job_id
    await bench.work()
    assert len(receiver.received) == 1


async def test_a_retried_dead_letter_delivers(bench: Bench, receiver: Receiver) -> None:
    tenant = await bench.tenant()
    receiver.answers = [answer(410), answer(200)]
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    job_id = await announced(bench, tenant)
    await bench.work()
    assert (await bench.delivery(tenant))["status"] == "FAILED"
    await bench.app.retry([job_id])
    await bench.work()
    assert (await bench.delivery(tenant))["status"] == "DELIVERED"


async def test_a_delivery_whose_job_dies_without_its_handler_fails(bench: Bench) -> None:
    """The job dies of a payload from a producer that forgot the endpoint: here, of a row that is gone."""
    tenant = await bench.tenant()
    await bench.endpoint(tenant, "http://127.0.0.1:1/", "RULES_PUBLISHED")
    job_id = await announced(bench, tenant)
    async with bench.tools.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute("DELETE FROM passports.webhook_endpoints WHERE tenant_id = $1", tenant)
    await bench.work()
    assert (await bench.job(job_id)).state is JobState.FAILED
    await bench.work()
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"]) == ("FAILED", None)
    assert delivery["error_message"].startswith("VALIDATION_ERROR: ")
    (dead,) = await bench.jobs("DELIVER_WEBHOOK.dead")
    assert (dead.priority, dead.tenant, dead.state) == (Priority.CRITICAL, str(tenant), JobState.SUCCEEDED)
    assert (await bench.audited(tenant)).count("WEBHOOK_FAILED") == 1


async def test_a_delivery_whose_job_kills_its_workers_fails_once(bench: Bench) -> None:
    tenant = await bench.tenant()
    await bench.endpoint(tenant, "http://127.0.0.1:1/", "RULES_PUBLISHED")
    job_id = await announced(bench, tenant)
    store = bench.app.opened.store
    for is_alone in (False, False, True):
        (leased,) = await store.claim(wants("DELIVER_WEBHOOK", queues=("passports",), suspects=is_alone))
        if is_alone:
            await store.run_alone(leased.lease, 1)
        await bench.app.clock.advance(timedelta(minutes=2))
        assert len(await store.rescue(10)) == 1
        await bench.app.clock.advance(timedelta(minutes=2))
    await bench.work_off()
    assert await bench.ending(job_id) == (JobState.DEAD, "LEASE_LOST")
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"]) == ("FAILED", None)
    assert delivery["error_message"].startswith("LEASE_LOST: ")
    assert await bench.audited(tenant) == ["RULES_PUBLISHED", "WEBHOOK_FAILED"]


async def test_a_job_that_is_canceled_while_its_webhook_is_sent_fails_the_delivery(
    database: Database, receiver: Receiver
) -> None:
    receiver.answers, receiver.hangs = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"], True
    short = {"bpc_jobs_lease_seconds": 2, "bpc_jobs_lease_renew_seconds": 1}
    async with opened_bench(worker_settings(database.url, **short)) as bench:
        tenant = await bench.tenant()
        await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
        job_id = await announced(bench, tenant)
        process = bench.app.worker(runners=("queue",))
        running = asyncio.create_task(process.run())
        await receiver.arrived.wait()
        assert await bench.app.cancel([job_id]) == ["requested"]

        async def is_canceled() -> bool:
            return (await bench.job(job_id)).state is JobState.CANCELED

        await until(is_canceled)
        process.stop()
        await running
        assert (await bench.delivery(tenant))["status"] == "PENDING"
        await bench.tools.pool.execute(
            "UPDATE passports.webhook_deliveries SET created_at = now() - interval '2 minutes'"
        )
        assert await settle_all(bench.tools.pool, bench.app) == 1
        assert (await bench.delivery(tenant))["status"] == "FAILED"
        assert await bench.audited(tenant) == ["RULES_PUBLISHED", "WEBHOOK_FAILED"]


@pytest.mark.parametrize("stale", [answer(410), answer(500)])
async def test_a_worker_that_lost_its_job_cannot_fail_a_delivery(
    bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, stale: bytes
) -> None:
    """On the last attempt, another worker takes the job over and delivers while the first one waits for its answer."""
    tenant = await bench.tenant()
    receiver.answers = [*[answer(500)] * 4, stale, answer(200, b"fine")]
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    job_id = await announced(bench, tenant)
    for _ in range(4):
        await bench.work()
        await bench.app.clock.advance(timedelta(seconds=16))

    async def overtaken(*given: Any, **options: Any) -> Any:  # noqa: ANN401
        monkeypatch.undo()
        try:
            return await send(*given, **options)
        finally:
            await bench.app.clock.advance(timedelta(minutes=2))
            await bench.work()

    monkeypatch.setattr(deliver_webhook, "send", overtaken)
    await bench.work_off()
    job = await bench.job(job_id)
    assert (job.state, job.losses, len(receiver.received)) == (JobState.SUCCEEDED, 1, 6)
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"], delivery["response_body"]) == ("DELIVERED", 200, b"fine")
    assert await bench.audited(tenant) == ["RULES_PUBLISHED", "WEBHOOK_DELIVERED"]


async def test_a_worker_lost_on_the_last_attempt_leaves_one_failure(
    bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt is in the database, but not the end of its job: another worker has taken the job over."""
    tenant = await bench.tenant()
    receiver.answers = [answer(500, b"no")]
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    job_id = await announced(bench, tenant)
    for _ in range(4):
        await bench.work()
        await bench.app.clock.advance(timedelta(seconds=16))

    async def recorded_and_lost(*given: Any) -> bool:  # noqa: ANN401
        monkeypatch.undo()
        async with transaction(bench.tools.pool) as connection:
            await record_attempt(connection, *given[1:])
        await bench.app.clock.advance(timedelta(minutes=2))
        await bench.work()
        return True

    monkeypatch.setattr(deliver_webhook, "record_attempt", recorded_and_lost)
    await bench.work_off()
    assert (await bench.job(job_id)).losses == 1
    assert await bench.ending(job_id) == (JobState.DEAD, "WebhookNon2xx")
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"], delivery["response_body"]) == ("FAILED", 500, b"no")
    assert (await bench.audited(tenant)).count("WEBHOOK_FAILED") == 1


async def test_a_delivery_whose_job_is_canceled_or_deleted_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a page full of older deliveries that are still being tried."""
    monkeypatch.setattr("apps.passports.deliveries._PAGE", 1)
    tenant = await bench.tenant()
    endpoints = [await bench.endpoint(tenant, "http://127.0.0.1:1/", "RULES_PUBLISHED") for _ in range(3)]
    assert len(endpoints) == 3
    await bench.rules(tenant)
    live, canceled, deleted = (job.id for job in await bench.jobs("DELIVER_WEBHOOK"))
    await bench.app.cancel([canceled, deleted])
    await bench.app.delete([deleted])
    age = "UPDATE passports.webhook_deliveries SET created_at = now() - interval '2 minutes'"
    await bench.tools.pool.execute(age)
    oldest = (await bench.job(live)).payload["webhook_delivery_id"]
    await bench.tools.pool.execute(f"{age} - interval '1 minute' WHERE webhook_delivery_id = $1::text::uuid", oldest)
    assert await settle_all(bench.tools.pool, bench.app) == 2
    assert await settle_all(bench.tools.pool, bench.app) == 0
    rows = await bench.rows("SELECT status, count(*) FROM passports.webhook_deliveries GROUP BY 1 ORDER BY 1")
    assert rows == [("FAILED", 2), ("PENDING", 1)]
    assert not (await bench.job(live)).state.is_final
    assert (await bench.audited(tenant)).count("WEBHOOK_FAILED") == 2


async def test_one_delivery_per_endpoint_and_event(bench: Bench, receiver: Receiver) -> None:
    tenant = await bench.tenant()
    endpoint = await bench.endpoint(tenant, receiver.url, *sorted(ANNOUNCED))
    async with transaction(bench.tools.pool) as connection:
        await subscribe(connection, tenant, endpoint.webhook_endpoint_id, "RULES_PUBLISHED")
    await announced(bench, tenant)
    assert len(await bench.jobs("DELIVER_WEBHOOK")) == 1


async def test_events_about_webhooks_and_unknown_ones_cannot_be_subscribed_to(bench: Bench) -> None:
    tenant = await bench.tenant()
    for event_type in ("WEBHOOK_DELIVERED", "WEBHOOK_FAILED", "OTHER"):
        with pytest.raises(Conflict):
            await bench.endpoint(tenant, "http://127.0.0.1:1/", event_type)


async def test_production_takes_only_https_to_public_addresses(bench: Bench, settings: Settings) -> None:
    tenant = await bench.tenant()
    async with opened_bench(settings.model_copy(update={"bpc_development": False})) as production:
        for url in ("http://example.com/", "https://127.0.0.1/", "https://localhost/", "ftp://example.com", "x"):
            with pytest.raises(WebhookAddressRefused):
                await production.endpoint(tenant, url)
        await production.endpoint(tenant, "https://example.com/webhooks/bpc")
