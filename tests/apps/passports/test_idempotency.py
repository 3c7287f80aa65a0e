"""A worker may die after any step of a handler. Afterwards there is exactly one of everything."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from apps.passports.database import sql
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
from apps.passports.settings import Settings
from apps.passports.worker import build_app
from holdfast import JobState, NewJob
from holdfast.testing import IdempotencyReport, Tables, check_idempotency
from tests.apps.passports.bench import Bench, Sealed, opened_bench
from tests.apps.passports.receiver import Receiver
from tests.databases import Database

pytestmark = pytest.mark.postgres

TABLES = (
    "passports.webhook_deliveries",
    "passports.webhook_subscriptions",
    "passports.webhook_endpoints",
    "passports.audit_events",
    "passports.passport_versions",
    "passports.passports",
    "passports.rule_packages",
    "passports.snapshot_documents",
    "passports.snapshots",
    "passports.document_facts",
    "passports.facts",
    "passports.document_versions",
    "passports.documents",
    "passports.tenants",
)

Prepare = Callable[[Bench, UUID], Awaitable[NewJob]]


async def stopped_before(bench: Bench, tenant: UUID, kind: str) -> Sealed:
    """A sealed snapshot whose chain ends before this kind: the job has its key already, and is not due for a day."""
    build = await bench.build(tenant)
    version_id = build.version_id(tenant)
    key = str(version_id)
    if kind == SIGN_PASSPORT.name:
        await bench.app.enqueue(SIGN_PASSPORT, SignPassport(version_id), tenant=str(tenant), key=key, delay="1d")
    else:
        await bench.app.enqueue(GENERATE_QR, GenerateQr(version_id), tenant=str(tenant), key=key, delay="1d")
    sealed = await bench.seal(tenant, build)
    await bench.work()
    return sealed


async def to_parse(bench: Bench, tenant: UUID) -> NewJob:
    uploaded = await bench.uploaded(tenant)
    return new_job(bench.app, PARSE_FACTS, ParseFacts(uploaded.document_version_id), tenant=tenant, key="k")


async def to_compile(bench: Bench, tenant: UUID) -> NewJob:
    build = (await bench.sealed(tenant)).build
    return new_job(bench.app, COMPILE_PASSPORT, build, tenant=tenant, key="k")


async def to_sign(bench: Bench, tenant: UUID) -> NewJob:
    sealed = await stopped_before(bench, tenant, SIGN_PASSPORT.name)
    return new_job(bench.app, SIGN_PASSPORT, SignPassport(sealed.version_id), tenant=tenant, key="k")


async def to_label(bench: Bench, tenant: UUID) -> NewJob:
    sealed = await stopped_before(bench, tenant, GENERATE_QR.name)
    return new_job(bench.app, GENERATE_QR, GenerateQr(sealed.version_id), tenant=tenant, key="k")


async def checked(database: Database, settings: Settings, prepare: Prepare, *event_types: str) -> IdempotencyReport:
    """Let the handler die after each of its steps. An endpoint is subscribed to its event, which nobody delivers."""
    async with opened_bench(settings) as bench:
        tenant = await bench.tenant()
        await bench.endpoint(tenant, "http://127.0.0.1:1/", *event_types)
        job = await prepare(bench, tenant)
    # Without triggers, which would not let it restore the tables.
    tables = Tables(f"{database.url}&session_replication_role=replica", *TABLES)
    return await check_idempotency(
        build_app(settings), job, observe=tables, database=database.url, harmless=lambda _: True
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("prepare", "event_type"),
    [
        (to_parse, "FACTS_PARSED"),
        (to_compile, "PASSPORT_COMPILED"),
        (to_sign, "PASSPORT_SIGNED"),
        (to_label, "QR_GENERATED"),
    ],
)
async def test_a_crash_after_any_step_leaves_exactly_one_effect(
    database: Database, settings: Settings, prepare: Prepare, event_type: str
) -> None:
    report = await checked(database, settings, prepare, event_type)
    assert report.ok, report
    assert {name for name in report.ignored if not name.endswith(("created_at", "occurred_at"))} <= {
        "passports.facts.fact_id",
        "passports.document_facts.fact_id",
    }


@pytest.mark.long
async def test_a_crash_of_a_delivery_sends_again_and_records_once(
    database: Database, settings: Settings, receiver: Receiver
) -> None:
    """The receiver may get the webhook twice, with the same delivery id. Everything else happens once."""

    async def prepare(bench: Bench, tenant: UUID) -> NewJob:
        await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
        await bench.rules(tenant)
        delivery = await bench.delivery(tenant)
        payload = DeliverWebhook(delivery["webhook_delivery_id"])
        return new_job(bench.app, DELIVER_WEBHOOK, payload, tenant=tenant, key="k")

    report = await checked(database, settings, prepare)
    assert report.ok, report
    assert len(receiver.received) > 1
    assert len({each.headers["X-BPC-Delivery-Id"] for each in receiver.received}) == 1
    assert len({(each.body, each.headers["X-BPC-Signature"]) for each in receiver.received}) == 1


@pytest.mark.parametrize("kind", ["PARSE_FACTS", "COMPILE_PASSPORT", "SIGN_PASSPORT", "GENERATE_QR", "DELIVER_WEBHOOK"])
async def test_a_job_that_is_run_again_adds_nothing(bench: Bench, receiver: Receiver, kind: str) -> None:
    tenant = await bench.tenant()
    await bench.endpoint(tenant, receiver.url, "QR_GENERATED")
    await bench.sealed(tenant)
    await bench.work_off()
    before = {table: await bench.rows(f"SELECT each::text FROM {table} AS each ORDER BY 1") for table in TABLES}
    jobs = len(await bench.jobs())

    job = await bench.only(kind)
    assert await bench.app.retry([job.id]) == ["ready"]
    await bench.work_off()
    assert (await bench.job(job.id)).state is JobState.SUCCEEDED
    after = {table: await bench.rows(f"SELECT each::text FROM {table} AS each ORDER BY 1") for table in TABLES}
    assert after == before
    assert len(await bench.jobs()) == jobs
    assert len(receiver.received) == 1


async def test_two_workers_that_compile_the_same_build_make_one_version(bench: Bench) -> None:
    tenant = await bench.tenant()
    sealed = await bench.sealed(tenant)
    build = sealed.build
    await bench.app.enqueue_many(
        [new_job(bench.app, COMPILE_PASSPORT, build, tenant=tenant, key=str(number)) for number in range(5)]
    )
    await bench.work()
    assert {job.state for job in await bench.jobs()} == {JobState.SUCCEEDED}
    events = await bench.audited(tenant)
    assert [events.count(each) for each in ("PASSPORT_COMPILED", "PASSPORT_SIGNED", "QR_GENERATED")] == [1, 1, 1]
    assert len(await bench.rows("SELECT FROM passports.passport_versions")) == 1


async def test_documents_with_the_same_facts_can_be_parsed_side_by_side(bench: Bench) -> None:
    tenant = await bench.tenant()
    parts = ",".join(f'{{"part": "P{number}"}}' for number in range(50))
    forward = f'{{"schema_version": 1, "components": [{parts}]}}'.encode()
    for _ in range(6):
        await bench.uploaded(tenant, forward)
    await bench.work()
    assert {job.state for job in await bench.jobs()} == {JobState.SUCCEEDED}
    assert {job.attempt for job in await bench.jobs()} == {1}
    assert len(await bench.rows("SELECT FROM passports.facts")) == 50
    assert len(await bench.rows("SELECT FROM passports.document_facts")) == 300


def test_the_tables_are_all_of_the_application() -> None:
    assert sorted(TABLES) == sorted(
        line.split()[2] for line in sql("schema").splitlines() if line.startswith("CREATE TABLE")
    )
