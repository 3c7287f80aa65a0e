"""Two tenants: whatever one of them asks for with the other's ids reads and writes nothing."""

import re
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from apps.passports.codes import VALIDATION_ERROR, NotFound
from apps.passports.database import transaction
from apps.passports.deliveries import redeliver
from apps.passports.documents import upload
from apps.passports.endpoints import begin_rotation, end_rotation, subscribe, unsubscribe
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
from apps.passports.jobs_view import TenantJobs
from apps.passports.passports import passport_version
from apps.passports.rule_packages import change_rules, publish
from apps.passports.snapshots import add_snapshot, add_to_snapshot, seal
from apps.passports.tenants import add_tenant, tenant_with_token
from holdfast import JobState
from tests.apps.passports.bench import Bench
from tests.apps.passports.receiver import Receiver
from tests.apps.passports.test_idempotency import TABLES

pytestmark = pytest.mark.postgres

FOLDER = Path(__file__).parents[3] / "apps/passports/sql"
WITHOUT_TENANT = {"schema.sql", "is_complete.sql", "tenants/of_token.sql", "webhooks/pending.sql"}
"""The tables themselves, the search for a tenant, and the search for deliveries to settle, each within its tenant."""


async def everything(bench: Bench) -> dict[str, list[tuple[object, ...]]]:
    return {table: await bench.rows(f"SELECT each::text FROM {table} AS each ORDER BY 1") for table in TABLES}


async def test_a_token_leads_to_its_tenant_and_is_not_stored(bench: Bench) -> None:
    one, other = await add_tenant(bench.tools.pool, "Ann"), await add_tenant(bench.tools.pool, "Bob")
    assert await tenant_with_token(bench.tools.pool, one.token) == one.tenant_id
    assert await tenant_with_token(bench.tools.pool, other.token) == other.tenant_id
    assert await tenant_with_token(bench.tools.pool, "another") is None
    stored = await bench.rows("SELECT each::text FROM passports.tenants AS each")
    assert one.token not in str(stored)


def test_every_statement_names_its_tenant() -> None:
    """Each table that a statement reads or writes is limited to the tenant $1, or joined by the tenant."""
    statements = {str(path.relative_to(FOLDER)): path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.sql")}
    for name in WITHOUT_TENANT:
        del statements[name]
    for name, text in statements.items():
        tables = len(re.findall(r"\b(?:FROM|JOIN|UPDATE|INTO) passports\.", text))
        named = re.findall(r"\btenant_id = \$1|\b(?:SELECT|VALUES) \(?\$1\b|USING \(tenant_id,", text)
        assert len(named) >= tables, name
    code = [path.read_text(encoding="utf-8") for path in FOLDER.parent.rglob("*.py")]
    assert not any(re.search(r"(?:FROM|JOIN|UPDATE|INTO) passports\.", text) for text in code)


async def test_no_handler_reaches_across_the_border(bench: Bench, receiver: Receiver) -> None:
    ann, bob = await bench.tenant("Ann"), await bench.tenant("Bob")
    await bench.endpoint(ann, receiver.url, "PASSPORT_SIGNED")
    bench.tools.key, key = None, bench.tools.key
    sealed = await bench.sealed(ann)
    await bench.work()
    bench.tools.key = key
    uploaded = await bench.uploaded(ann)
    own = replace(sealed.build, snapshot_id=await bench.snapshot(bob))
    await bench.app.cancel([job.id for job in await bench.jobs() if not job.state.is_final])
    before, delivered = await everything(bench), len(receiver.received)

    compilations = [sealed.build, own, replace(own, passport_id=uuid4()), replace(own, rules_id=uuid4())]
    jobs = [
        new_job(bench.app, PARSE_FACTS, ParseFacts(uploaded.document_version_id), tenant=bob, key="x"),
        new_job(bench.app, SIGN_PASSPORT, SignPassport(sealed.version_id), tenant=bob, key="x"),
        new_job(bench.app, GENERATE_QR, GenerateQr(sealed.version_id), tenant=bob, key="x"),
        *(
            new_job(
                bench.app, COMPILE_PASSPORT,
                each, tenant=bob, key=str(number),
            )
            for number, each in enumerate(compilations)
        ),
    ]  # fmt: skip
    await bench.app.enqueue_many(jobs)
    await bench.work()
    assert {await bench.ending(job.id) for job in jobs} == {(JobState.FAILED, VALIDATION_ERROR)}
    assert await everything(bench) == before
    assert len(receiver.received) == delivered


async def test_no_delivery_reaches_across_the_border(bench: Bench, receiver: Receiver) -> None:
    ann, bob = await bench.tenant("Ann"), await bench.tenant("Bob")
    await bench.endpoint(ann, receiver.url, "RULES_PUBLISHED")
    await bench.rules(ann)
    await bench.app.cancel([(await bench.only("DELIVER_WEBHOOK")).id])
    before = await everything(bench)
    payload = DeliverWebhook((await bench.delivery(ann))["webhook_delivery_id"])
    job = new_job(bench.app, DELIVER_WEBHOOK, payload, tenant=bob, key="x")
    await bench.app.enqueue(job)
    await bench.work_off()
    assert await bench.ending(job.id) == (JobState.FAILED, VALIDATION_ERROR)
    assert await everything(bench) == before
    assert receiver.received == []


async def test_no_function_reaches_across_the_border(bench: Bench, receiver: Receiver) -> None:
    ann, bob = await bench.tenant("Ann"), await bench.tenant("Bob")
    endpoint = (await bench.endpoint(ann, receiver.url, "PASSPORT_SIGNED")).webhook_endpoint_id
    sealed = await bench.sealed(ann)
    await bench.work_off()
    draft = await bench.rules(ann, is_published=False)
    async with transaction(bench.tools.pool) as connection:
        snapshot = await add_snapshot(connection, ann)
        own_snapshot = await add_snapshot(connection, bob)
    document: UUID = (await bench.row("SELECT document_id FROM passports.documents"))["document_id"]
    version: UUID = (await bench.row("SELECT document_version_id FROM passports.document_versions"))[
        "document_version_id"
    ]
    delivery: UUID = (await bench.delivery(ann))["webhook_delivery_id"]
    before = await everything(bench)

    async with bench.tools.pool.acquire() as connection:
        calls = [
            lambda: upload(connection, bench.app, bob, document, "text/csv", b""),
            lambda: add_to_snapshot(connection, bench.app, bob, snapshot, version),
            lambda: add_to_snapshot(connection, bench.app, bob, own_snapshot, version),
            lambda: seal(connection, bench.app, bob, sealed.build),
            lambda: publish(connection, bench.app, bob, draft),
            lambda: change_rules(connection, bob, draft, ""),
            lambda: begin_rotation(connection, bob, endpoint),
            lambda: end_rotation(connection, bob, endpoint),
            lambda: subscribe(connection, bob, endpoint, "QR_GENERATED"),
            lambda: unsubscribe(connection, bob, endpoint, "PASSPORT_SIGNED"),
            lambda: passport_version(bench.tools.pool, bench.app, bob, sealed.version_id),
        ]
        for call in calls:
            with pytest.raises(NotFound):
                await call()  # type: ignore[no-untyped-call]
        assert await redeliver(connection, bench.app, bob, delivery) is None
    assert await everything(bench) == before


async def test_jobs_are_seen_and_requeued_only_by_their_tenant(bench: Bench) -> None:
    ann, bob = await bench.tenant("Ann"), await bench.tenant("Bob")
    uploaded = await bench.uploaded(ann, b"")
    await bench.work()
    seen, hidden = TenantJobs(bench.app, ann, 5), TenantJobs(bench.app, bob, 5)
    assert (await seen.get(uploaded.job_id)) is not None
    assert [job.job_id for job in await seen.dead_letters()] == [uploaded.job_id]
    assert (await hidden.get(uploaded.job_id), await hidden.newest(), await hidden.dead_letters()) == (None, [], [])
    assert await hidden.requeue(uploaded.job_id) is None
    assert (await bench.job(uploaded.job_id)).state is JobState.FAILED
    assert await seen.requeue(uploaded.job_id) == "ready"
