"""From an uploaded document to a labeled passport and its webhooks."""

import json
from dataclasses import replace

import pytest

from apps.passports.audit import ANNOUNCED
from apps.passports.database import transaction
from apps.passports.jobs import PRIORITIES, Priority
from apps.passports.passports import label_of, passport_file, passport_version
from apps.passports.reading import read_qr
from apps.passports.rule_packages import publish
from apps.passports.snapshots import compile_again, seal
from apps.passports.tools import trusted_keys
from apps.passports.verifying import verify_passport
from holdfast import JobState
from tests.apps.passports.bench import Bench
from tests.apps.passports.receiver import Receiver

pytestmark = pytest.mark.postgres

CHAIN = [
    "DOCUMENT_UPLOADED",
    "FACTS_PARSED",
    "RULES_PUBLISHED",
    "SNAPSHOT_SEALED",
    "PASSPORT_COMPILED",
    "PASSPORT_SIGNED",
    "QR_GENERATED",
]


async def test_sealing_a_snapshot_leads_to_a_passport_that_the_verifier_accepts(bench: Bench) -> None:
    tenant = await bench.tenant()
    sealed = await bench.sealed(tenant)
    await bench.work()

    version = await passport_version(bench.tools.pool, bench.app, tenant, sealed.version_id)
    assert version["status"] == "LABELED"
    file, label = passport_file(version), label_of(version)
    assert read_qr(label) == version["qr_payload"]
    assert verify_passport(file, read_qr(label), trusted_keys(bench.settings)) == []
    assert await bench.audited(tenant) == CHAIN


async def test_every_event_reaches_every_subscribed_endpoint_once(bench: Bench, receiver: Receiver) -> None:
    tenant = await bench.tenant()
    both = [await bench.endpoint(tenant, f"{receiver.url}/{number}", *sorted(ANNOUNCED)) for number in range(2)]
    await bench.endpoint(tenant, f"{receiver.url}/3", "PASSPORT_SIGNED")
    sealed = await bench.sealed(tenant)
    await bench.work_off()

    rows = await bench.rows(
        "SELECT webhook_endpoint_id, event_type, status FROM passports.webhook_deliveries"
        " JOIN passports.audit_events USING (tenant_id, event_id) WHERE tenant_id = $1",
        tenant,
    )
    assert sorted((str(row[0]), row[1]) for row in rows if row[0] in {each.webhook_endpoint_id for each in both}) == (
        sorted((str(each.webhook_endpoint_id), event_type) for each in both for event_type in CHAIN)
    )
    assert len(rows) == 2 * len(CHAIN) + 1
    assert {row[2] for row in rows} == {"DELIVERED"}
    assert len(receiver.received) == len(rows)
    signed = next(each for each in receiver.received if b'"PASSPORT_SIGNED"' in each.body)
    event = await bench.row("SELECT * FROM passports.audit_events WHERE event_type = 'PASSPORT_SIGNED'")
    assert signed.body.decode() == (
        f'{{"event_id":"{event["event_id"]}","event_type":"PASSPORT_SIGNED","aggregate_type":"PassportVersion",'
        f'"aggregate_id":"{sealed.version_id}","occurred_at":"{event["occurred_at"]:%Y-%m-%dT%H:%M:%SZ}",'
        f'"payload":{{"passport_version_id":"{sealed.version_id}","key_id":"dev-key-1"}}}}'
    )
    events = await bench.audited(tenant)
    assert events.count("WEBHOOK_DELIVERED") == len(rows)
    assert [event for event in events if event != "WEBHOOK_DELIVERED"] == CHAIN


async def test_each_step_has_the_priority_of_its_kind_and_the_same_correlation(bench: Bench) -> None:
    tenant = await bench.tenant()
    sealed = await bench.sealed(tenant)
    await bench.work()
    jobs = await bench.jobs()
    assert {job.kind: job.priority for job in jobs} == {
        kind: priority for kind, priority in PRIORITIES.items() if kind != "DELIVER_WEBHOOK"
    }
    compile_job = await bench.job(sealed.job_id)
    chained = [job.correlation_id for job in jobs if job.kind != "PARSE_FACTS"]
    assert chained == [compile_job.correlation_id] * 3
    assert [job.state for job in jobs] == [JobState.SUCCEEDED] * 4
    assert (Priority.CRITICAL, Priority.HIGH, Priority.NORMAL, Priority.LOW) == (0, 1, 2, 3)
    assert PRIORITIES["DELIVER_WEBHOOK"] == Priority.LOW


async def test_a_sealed_snapshot_that_is_rolled_back_leaves_no_job(bench: Bench) -> None:
    tenant = await bench.tenant()
    build = await bench.build(tenant)
    async with bench.tools.pool.acquire() as connection:
        sealing = connection.transaction()
        await sealing.start()
        await seal(connection, bench.app, tenant, build)
        await sealing.rollback()
    assert await bench.jobs("COMPILE_PASSPORT") == []
    assert await bench.row("SELECT status FROM passports.snapshots WHERE tenant_id = $1", tenant) == {"status": "OPEN"}


async def test_a_sealed_snapshot_can_be_compiled_as_another_build(bench: Bench) -> None:
    tenant = await bench.tenant()
    sealed = await bench.sealed(tenant)
    async with transaction(bench.tools.pool) as connection:
        await compile_again(connection, bench.app, tenant, replace(sealed.build, build_id="build-2"))
        again = await compile_again(connection, bench.app, tenant, sealed.build)
    await bench.work()
    assert again == sealed.job_id
    builds = await bench.rows("SELECT build_id, status FROM passports.passport_versions ORDER BY build_id")
    assert builds == [("build-1", "LABELED"), ("build-2", "LABELED")]


async def test_a_failed_compilation_can_be_asked_for_again(bench: Bench) -> None:
    tenant = await bench.tenant()
    sealed = await bench.sealed(tenant, is_published=False)
    await bench.work()
    async with transaction(bench.tools.pool) as connection:
        await publish(connection, bench.app, tenant, sealed.build.rules_id)
        again = await compile_again(connection, bench.app, tenant, sealed.build)
    assert again != sealed.job_id
    await bench.work()
    assert (await bench.version(sealed.version_id))["status"] == "LABELED"


async def test_facts_of_several_documents_are_compiled_together_and_stored_once(bench: Bench) -> None:
    tenant = await bench.tenant()
    one = b'{"schema_version": 1, "attributes": {"capacity_kwh": 75.5, "mass_kg": 1e21}}'
    other = b'{"schema_version": 1, "attributes": {"capacity_kwh": 75.5, "model": "BX"}, "components": [{"part": "A"}]}'
    sealed = await bench.sealed(tenant, one, other)
    await bench.work()
    version = await bench.version(sealed.version_id)
    facts = [(fact["fact_key"], fact["payload"].get("value")) for fact in json.loads(version["payload"])["facts"]]
    assert facts == [("capacity_kwh", 75.5), ("mass_kg", 1e21), ("model", "BX"), ("A", None)]
    assert len(await bench.rows("SELECT fact_id FROM passports.facts")) == 4
    assert len(await bench.rows("SELECT fact_id FROM passports.document_facts")) == 5
    assert b'"kwh_per_kg":7.55e-20' in version["payload"]
