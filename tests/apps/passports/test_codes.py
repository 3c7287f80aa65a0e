"""Every error code, by its real cause, and how its job ends."""

import asyncio
import json
import socket
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from apps.passports import codes
from apps.passports.compiling import Build
from apps.passports.database import opened_pool, sql, transaction
from apps.passports.handlers import deliver_webhook
from apps.passports.jobs import (
    COMPILE_PASSPORT,
    DELIVER_WEBHOOK,
    GENERATE_QR,
    PARSE_FACTS,
    SIGN_PASSPORT,
    DeliverWebhook,
    GenerateQr,
    ParseFacts,
    SignPassport,
    new_job,
)
from apps.passports.rule_packages import publish
from holdfast import JobState
from holdfast_lab.faults.proxy import Proxy
from tests.apps.passports.bench import ISSUED_AT, Bench, is_waiting_for_audit, opened_bench, worker_settings
from tests.apps.passports.patience import until
from tests.apps.passports.receiver import Receiver, answer
from tests.databases import Database, connected

pytestmark = pytest.mark.postgres

DELAYS = [2, 4, 8, 16]
BUILD = {
    **dict.fromkeys(("passport_id", "snapshot_id", "rules_id"), str(UUID(int=1))),
    "build_id": "1",
    "issued_at": "2026-11-20T12:00:00Z",
}


async def enqueued(bench: Bench, build: Build, tenant: UUID) -> UUID:
    return (await bench.app.enqueue(new_job(bench.app, COMPILE_PASSPORT, build, tenant=tenant, key="k"))).id


async def delays_until_dead(bench: Bench, job_id: UUID) -> list[float]:
    """Run all attempts of the job, and return how long each retry waited."""
    delays: list[float] = []
    while True:
        await bench.work()
        job = await bench.job(job_id)
        if job.state.is_final:
            # Also runs what follows a death.
            await bench.work()
            return delays
        assert job.run_at is not None
        failed_at = datetime.fromisoformat(job.errors[-1]["at"])
        delays.append(round((job.run_at - failed_at).total_seconds(), 1))
        await bench.app.clock.advance(job.run_at - await bench.app.clock.now())


async def test_a_compilation_of_an_open_snapshot_is_snapshot_not_ready(bench: Bench) -> None:
    tenant = await bench.tenant()
    job_id = await enqueued(bench, await bench.build(tenant), tenant)
    await bench.work()
    assert await bench.ending(job_id) == (JobState.FAILED, codes.SNAPSHOT_NOT_READY)


async def test_a_compilation_of_a_snapshot_that_was_sealed_too_early_is_snapshot_not_ready(bench: Bench) -> None:
    """Sealed with SQL: the API refuses it until all documents are parsed."""
    tenant = await bench.tenant()
    build = await bench.build(tenant)
    uploaded = await bench.uploaded(tenant)
    async with transaction(bench.tools.pool) as connection:
        await connection.execute(
            sql("snapshots/add_document"),
            *(tenant, build.snapshot_id, uploaded.document_version_id),
        )
        await connection.execute("UPDATE passports.snapshots SET status = 'SEALED', sealed_at = now()")
    await bench.app.cancel([uploaded.job_id])
    job_id = await enqueued(bench, build, tenant)
    await bench.work()
    error = (await bench.job(job_id)).last_error
    assert error is not None
    assert (error.code, "has documents that are not parsed" in error.message) == (codes.SNAPSHOT_NOT_READY, True)


async def test_a_compilation_with_a_draft_is_rule_pkg_not_published_until_it_is_published(bench: Bench) -> None:
    tenant = await bench.tenant()
    sealed = await bench.sealed(tenant, is_published=False)
    await bench.work()
    assert await bench.ending(sealed.job_id) == (JobState.FAILED, codes.RULE_PKG_NOT_PUBLISHED)

    async with transaction(bench.tools.pool) as connection:
        await publish(connection, bench.app, tenant, sealed.build.rules_id)
    assert await bench.app.retry([sealed.job_id]) == ["ready"]
    await bench.work()
    assert (await bench.version(sealed.version_id))["status"] == "LABELED"


@pytest.mark.parametrize(
    ("rules", "code", "message"),
    [
        ("require model: number", codes.RULE_TYPE_ERROR, "model is declared as number, but the fact is a text"),
        ("require color: text", codes.VALIDATION_ERROR, "required but missing: color"),
        ('require mass_kg: number\ncheck "light": mass_kg < 1', codes.VALIDATION_ERROR, "not fulfilled: light"),
        ("let x = 1 / 0", codes.VALIDATION_ERROR, "line 1, column 11: 1 / 0 cannot be computed"),
    ],
)
async def test_a_snapshot_that_breaks_the_rules(bench: Bench, rules: str, code: str, message: str) -> None:
    sealed = await bench.sealed(await bench.tenant(), rules=rules)
    await bench.work()
    job = await bench.job(sealed.job_id)
    assert (job.state, job.attempt) == (JobState.FAILED, 1)
    assert job.last_error is not None
    assert job.last_error.code == code
    assert message in job.last_error.message


async def test_rules_with_a_type_error_that_were_published_without_the_check(bench: Bench) -> None:
    tenant = await bench.tenant()
    sealed = await bench.sealed(tenant, rules="let x = 1 + true", is_published=False)
    await bench.tools.pool.execute("UPDATE passports.rule_packages SET status = 'PUBLISHED', published_at = now()")
    await bench.work()
    assert await bench.ending(sealed.job_id) == (JobState.FAILED, codes.RULE_TYPE_ERROR)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("PARSE_FACTS", {}),
        ("PARSE_FACTS", {"document_version_id": "17"}),
        ("COMPILE_PASSPORT", {"passport_id": str(uuid4())}),
        ("COMPILE_PASSPORT", {**BUILD, "build_id": ""}),
        ("COMPILE_PASSPORT", {**BUILD, "build_id": "a\x00b"}),
        ("COMPILE_PASSPORT", {**BUILD, "issued_at": "0001-01-01T00:00:00+14:00"}),
        ("COMPILE_PASSPORT", {**BUILD, "issued_at": "2026-11-20T12:00:00"}),
        ("SIGN_PASSPORT", {"passport_version_id": None}),
        ("GENERATE_QR", []),
        ("DELIVER_WEBHOOK", {"webhook_delivery_id": 1}),
    ],
)
async def test_a_malformed_payload_is_a_validation_error(bench: Bench, kind: str, payload: object) -> None:
    """As a producer in another language may send it."""
    job_id = await bench.tools.pool.fetchval(
        "SELECT id FROM holdfast.enqueue($1, $2::json, queue => 'passports', tenant => $3)",
        *(kind, json.dumps(payload), str(await bench.tenant())),
    )
    await bench.work()
    job = await bench.job(job_id)
    assert job.last_error is not None
    assert (job.state, job.last_error.code, job.last_error.type) == (
        JobState.FAILED,
        codes.VALIDATION_ERROR,
        "ValidationError",
    )


@pytest.mark.parametrize("tenant", ["", "ann"])
async def test_a_job_without_a_tenant_is_a_validation_error(bench: Bench, tenant: str) -> None:
    job = await bench.app.enqueue(SIGN_PASSPORT, SignPassport(uuid4()), tenant=tenant or None)
    await bench.work()
    assert await bench.ending(job.id) == (JobState.FAILED, codes.VALIDATION_ERROR)


async def test_what_does_not_exist_is_a_validation_error(bench: Bench) -> None:
    tenant = await bench.tenant()
    build = await bench.build(tenant)
    jobs = [
        new_job(bench.app, PARSE_FACTS, ParseFacts(uuid4()), tenant=tenant, key="1"),
        new_job(bench.app, SIGN_PASSPORT, SignPassport(uuid4()), tenant=tenant, key="1"),
        new_job(bench.app, GENERATE_QR, GenerateQr(uuid4()), tenant=tenant, key="1"),
        new_job(bench.app, DELIVER_WEBHOOK, DeliverWebhook(uuid4()), tenant=tenant, key="1"),
        *(
            new_job(bench.app, COMPILE_PASSPORT, payload, tenant=tenant, key=str(number))
            for number, payload in enumerate(
                [
                    Build(uuid4(), build.snapshot_id, build.rules_id, "build", ISSUED_AT),
                    Build(build.passport_id, uuid4(), build.rules_id, "build", ISSUED_AT),
                    Build(build.passport_id, build.snapshot_id, uuid4(), "build", ISSUED_AT),
                ]
            )
        ),
    ]
    await bench.app.enqueue_many(jobs)
    await bench.work()
    assert {await bench.ending(job.id) for job in jobs} == {(JobState.FAILED, codes.VALIDATION_ERROR)}


async def test_a_document_that_is_no_bill_of_materials_is_a_validation_error(bench: Bench) -> None:
    tenant = await bench.tenant()
    uploaded = await bench.uploaded(tenant, b"part\n", "text/csv")
    await bench.work()
    assert await bench.ending(uploaded.job_id) == (JobState.FAILED, codes.VALIDATION_ERROR)
    assert await bench.audited(tenant) == ["DOCUMENT_UPLOADED"]


async def test_large_documents_and_passports_are_payload_too_large(database: Database) -> None:
    async with opened_bench(worker_settings(database.url, bpc_payload_max_bytes=1000)) as bench:
        tenant = await bench.tenant()
        # The document is smaller than the passport that is made of it.
        sealed = await bench.sealed(tenant)
        uploaded = await bench.uploaded(tenant, b" " * 1001)
        await bench.work()
        assert await bench.ending(uploaded.job_id) == (JobState.FAILED, codes.PAYLOAD_TOO_LARGE)
        assert await bench.ending(sealed.job_id) == (JobState.FAILED, codes.PAYLOAD_TOO_LARGE)


async def test_a_worker_without_a_key_is_signing_key_missing_until_it_has_one(database: Database) -> None:
    async with opened_bench(worker_settings(database.url, bpc_signing_key=None)) as bench:
        sealed = await bench.sealed(await bench.tenant())
        await bench.work()
        signing = (await bench.only("SIGN_PASSPORT")).id
        assert await bench.ending(signing) == (JobState.FAILED, codes.SIGNING_KEY_MISSING)
    async with opened_bench(worker_settings(database.url)) as bench:
        await bench.app.retry([signing])
        await bench.work()
        assert (await bench.version(sealed.version_id))["status"] == "LABELED"


async def test_a_hash_that_does_not_fit_into_a_code_is_qr_encode_failed(bench: Bench) -> None:
    """The constraints do not let this happen, so the row is broken past them."""
    sealed = await bench.sealed(await bench.tenant())
    await bench.app.tick(runners=("queue",))
    version = await bench.version(sealed.version_id)
    async with bench.tools.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(
            "ALTER TABLE passports.passport_versions DROP CONSTRAINT passport_versions_payload_hash_check"
        )
        await connection.execute(
            "UPDATE passports.passport_versions SET payload_hash = $2, qr_payload = NULL, qr_png = NULL,"
            " status = 'SIGNED' WHERE passport_version_id = $1",
            *(version["passport_version_id"], bytes(2000)),
        )
    qr = (await bench.only("GENERATE_QR")).id
    await bench.app.retry([qr])
    await bench.work()
    assert await bench.ending(qr) == (JobState.FAILED, codes.QR_ENCODE_FAILED)


async def test_a_code_for_a_version_that_is_not_signed_is_a_validation_error(database: Database) -> None:
    async with opened_bench(worker_settings(database.url, bpc_signing_key=None)) as bench:
        tenant = await bench.tenant()
        sealed = await bench.sealed(tenant)
        await bench.work()
        job = new_job(bench.app, GENERATE_QR, GenerateQr(sealed.version_id), tenant=tenant, key="k")
        await bench.app.enqueue(job)
        await bench.work()
        assert await bench.ending(job.id) == (JobState.FAILED, codes.VALIDATION_ERROR)


async def failed_delivery(bench: Bench, url: str) -> tuple[UUID, UUID]:
    """A tenant with one endpoint, and the job of its only delivery."""
    tenant = await bench.tenant()
    await bench.endpoint(tenant, url, "RULES_PUBLISHED")
    await bench.rules(tenant)
    return tenant, (await bench.only("DELIVER_WEBHOOK")).id


@pytest.mark.parametrize("status", [500, 503, 404, 408, 429, 301, 302])
async def test_another_status_is_webhook_non_2xx_five_times(bench: Bench, receiver: Receiver, status: int) -> None:
    receiver.answers = [answer(status, b"no")]
    tenant, job_id = await failed_delivery(bench, receiver.url)
    assert await delays_until_dead(bench, job_id) == DELAYS
    assert await bench.ending(job_id) == (JobState.DEAD, codes.WEBHOOK_NON_2XX)
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"], delivery["response_body"]) == ("FAILED", status, b"no")
    assert json.loads(delivery["response_headers"])["content-length"] == "2"
    assert delivery["error_message"].startswith(f"WebhookNon2xx: 127.0.0.1 answered {status}")
    assert len({each.headers["X-BPC-Delivery-Id"] for each in receiver.received}) == 1
    assert len({each.body for each in receiver.received}) == 1
    assert len(receiver.received) == 5
    assert (await bench.audited(tenant)).count("WEBHOOK_FAILED") == 1


async def test_retry_after_is_honored(bench: Bench, receiver: Receiver) -> None:
    receiver.answers = [answer(503, headers="Retry-After: 100\r\n"), answer(204)]
    tenant, job_id = await failed_delivery(bench, receiver.url)
    assert await delays_until_dead(bench, job_id) == [100]
    assert (await bench.delivery(tenant))["status"] == "DELIVERED"


async def test_410_is_webhook_gone_at_once(bench: Bench, receiver: Receiver) -> None:
    receiver.answers = [answer(410, b"bye")]
    tenant, job_id = await failed_delivery(bench, receiver.url)
    assert await delays_until_dead(bench, job_id) == []
    assert await bench.ending(job_id) == (JobState.FAILED, codes.WEBHOOK_GONE)
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"], delivery["response_body"]) == ("FAILED", 410, b"bye")


async def test_a_permanent_error_on_the_fifth_attempt_ends_failed(bench: Bench, receiver: Receiver) -> None:
    receiver.answers = [answer(500), answer(500), answer(500), answer(500), answer(410)]
    tenant, job_id = await failed_delivery(bench, receiver.url)
    assert await delays_until_dead(bench, job_id) == DELAYS
    assert await bench.ending(job_id) == (JobState.FAILED, codes.WEBHOOK_GONE)
    assert (await bench.audited(tenant)).count("WEBHOOK_FAILED") == 1


async def test_a_refused_connection_is_an_http_exception(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    tenant, job_id = await failed_delivery(bench, url)
    assert await delays_until_dead(bench, job_id) == DELAYS
    assert await bench.ending(job_id) == (JobState.DEAD, codes.HTTP_EXCEPTION)
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"], delivery["response_body"]) == ("FAILED", None, None)
    assert delivery["error_message"].startswith("HttpException: 127.0.0.1: Connection refused")


async def test_a_receiver_that_does_not_answer_in_time_is_a_webhook_timeout(
    bench: Bench, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends one part of its answer, so the time is limited in total, not per read."""
    assert timedelta(seconds=30) == deliver_webhook.LONGEST
    monkeypatch.setattr(deliver_webhook, "LONGEST", timedelta(milliseconds=200))
    receiver.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nslow"]
    receiver.hangs = True
    tenant, job_id = await failed_delivery(bench, receiver.url)
    assert await delays_until_dead(bench, job_id) == DELAYS
    assert await bench.ending(job_id) == (JobState.DEAD, codes.WEBHOOK_TIMEOUT)
    delivery = await bench.delivery(tenant)
    assert (delivery["status"], delivery["http_status"], delivery["response_body"]) == ("FAILED", 200, b"slow")


async def test_an_internal_address_is_refused_in_production(database: Database, receiver: Receiver) -> None:
    async with opened_bench(worker_settings(database.url)) as bench:
        tenant = await bench.tenant()
        await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    async with opened_bench(worker_settings(database.url, bpc_development=False)) as bench:
        await bench.rules(tenant)
        await bench.work()
        job = await bench.only("DELIVER_WEBHOOK")
        assert await bench.ending(job.id) == (JobState.FAILED, "WebhookAddressRefused")
        assert (await bench.delivery(tenant))["status"] == "FAILED"
    assert receiver.received == []


@pytest.mark.fault
async def test_a_lost_connection_of_a_handler_is_db_unavailable_and_recorded(database: Database) -> None:
    """The handlers' connections go through a proxy that is down. Holdfast's own do not, so it can record the error."""
    with Proxy.before(database.url) as proxy:
        async with opened_bench(worker_settings(database.url)) as bench:
            sealed = await bench.sealed(await bench.tenant())
            pool = bench.tools.pool
            async with asyncpg.create_pool(proxy.url, min_size=0, max_size=2, timeout=2) as bench.tools.pool:
                proxy.refuse()
                await bench.work()
                proxy.flow()
            assert await bench.ending(sealed.job_id) == (JobState.READY, codes.DB_UNAVAILABLE)
            bench.tools.pool = pool
            await bench.work_off()
            assert (await bench.version(sealed.version_id))["status"] == "LABELED"


@pytest.mark.fault
async def test_a_database_that_takes_connections_but_does_not_answer_is_db_unavailable(
    bench: Bench, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the lease ends: the attempt would otherwise be lost, and say nothing of the database."""
    monkeypatch.setattr("apps.passports.database._ANSWER_SECONDS", 0.3)
    monkeypatch.setattr("apps.passports.database._CONNECT_SECONDS", 0.3)
    sealed = await bench.sealed(await bench.tenant())
    with Proxy.before(database.url) as proxy:
        async with opened_pool(proxy.url) as bench.tools.pool:
            proxy.swallow()
            await bench.work()
        # Closing did not wait for the server either.
    assert await bench.ending(sealed.job_id) == (JobState.READY, codes.DB_UNAVAILABLE)


@pytest.mark.parametrize("broken", ["{url}&default_transaction_read_only=on", "{server}/gone?{query}"])
async def test_a_replica_and_a_dropped_database_are_db_unavailable(
    bench: Bench, database: Database, broken: str
) -> None:
    sealed = await bench.sealed(await bench.tenant())
    before, _, query = database.url.partition("?")
    url = broken.format(url=database.url, server=before.rpartition("/")[0], query=query)
    async with asyncpg.create_pool(url, min_size=0) as bench.tools.pool:
        await bench.work()
    assert await bench.ending(sealed.job_id) == (JobState.READY, codes.DB_UNAVAILABLE)


@pytest.mark.fault
async def test_an_outage_of_the_whole_store_is_recorded_once_it_is_back(bench: Bench, database: Database) -> None:
    """The handler waits for a lock when the connections of its worker are cut, also those of Holdfast."""
    sealed = await bench.sealed(await bench.tenant())
    with Proxy.before(database.url) as proxy:
        async with opened_bench(worker_settings(proxy.url)) as away, connected(database.url) as other:
            process = away.app.worker(runners=("queue",))
            async with other.transaction():
                await other.execute("SELECT FROM passports.tenants FOR NO KEY UPDATE")
                running = asyncio.create_task(process.run())
                await until(lambda: is_waiting_for_audit(bench))
                proxy.refuse()
            proxy.flow()

            async def is_recorded() -> bool:
                return len((await bench.job(sealed.job_id)).errors) > 0

            await until(is_recorded)
            process.stop()
            await running
    assert [error["code"] for error in (await bench.job(sealed.job_id)).errors] == [codes.DB_UNAVAILABLE]
