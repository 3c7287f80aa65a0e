"""The constraints and triggers of the schema. No code above them has to be trusted."""

from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.apps.passports.bench import Bench, Sealed
from tests.apps.passports.receiver import Receiver

pytestmark = pytest.mark.postgres

STATUSES = {
    "document_versions": ("UPLOADED", "PARSED"),
    "snapshots": ("OPEN", "SEALED"),
    "rule_packages": ("DRAFT", "PUBLISHED"),
    "passport_versions": ("COMPILED", "SIGNED", "LABELED"),
    "webhook_deliveries": ("PENDING", "DELIVERED", "FAILED"),
}


@pytest.fixture
async def full(bench: Bench, receiver: Receiver) -> Sealed:
    """A row in every table."""
    tenant = await bench.tenant()
    await bench.endpoint(tenant, receiver.url, "PASSPORT_SIGNED")
    sealed = await bench.sealed(tenant)
    await bench.work_off()
    return sealed


async def refused(bench: Bench, statement: str, *arguments: object) -> str:
    """The name of the constraint or trigger that refuses the statement."""
    with pytest.raises(asyncpg.IntegrityConstraintViolationError) as raised:
        await bench.tools.pool.execute(statement, *arguments)
    return str(raised.value.constraint_name)


async def test_every_table_has_the_tenant(bench: Bench) -> None:
    tables = await bench.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'passports'")
    with_tenant = await bench.rows(
        "SELECT table_name FROM information_schema.columns"
        " WHERE table_schema = 'passports' AND column_name = 'tenant_id' AND is_nullable = 'NO'"
    )
    assert sorted(tables) == sorted(with_tenant)
    assert len(tables) == 14


async def test_every_reference_includes_the_tenant(bench: Bench) -> None:
    rows = await bench.rows(
        "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE contype = 'f' AND connamespace = 'passports'::regnamespace"
    )
    assert len(rows) > 10
    assert [row for row in rows if not row[1].startswith("FOREIGN KEY (tenant_id")] == []


async def test_deliveries_have_exactly_these_columns(bench: Bench) -> None:
    rows = await bench.rows(
        "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_schema = 'passports' AND table_name = 'webhook_deliveries' ORDER BY ordinal_position"
    )
    assert rows == [
        ("webhook_delivery_id", "uuid", "NO", None),
        ("tenant_id", "uuid", "NO", None),
        ("webhook_endpoint_id", "uuid", "NO", None),
        ("event_id", "uuid", "NO", None),
        ("status", "text", "NO", None),
        ("http_status", "integer", "YES", None),
        ("response_headers", "jsonb", "YES", None),
        ("response_body", "bytea", "YES", None),
        ("delivered_at", "timestamp with time zone", "YES", None),
        ("error_message", "text", "YES", None),
        ("created_at", "timestamp with time zone", "NO", "now()"),
    ]


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("facts", "tenant_id, fact_type, fact_key, schema_version, payload_hash"),
        ("passport_versions", "tenant_id, passport_id, snapshot_id, rules_id, build_id, issued_at"),
        ("webhook_deliveries", "tenant_id, webhook_endpoint_id, event_id"),
        ("webhook_subscriptions", "tenant_id, webhook_endpoint_id, event_type"),
        ("document_versions", "tenant_id, document_id, version"),
        ("audit_events", "event_id"),
    ],
)
async def test_these_columns_are_unique(bench: Bench, table: str, columns: str) -> None:
    rows = await bench.rows(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'u' AND conrelid = $1::text::regclass",
        f"passports.{table}",
    )
    assert (f"UNIQUE ({columns})",) in rows


async def test_an_equal_fact_and_an_equal_version_are_refused(bench: Bench, full: Sealed) -> None:
    copied = "tenant_id, fact_type, fact_key, schema_version, payload, payload_hash"
    constraint = await refused(
        bench,
        f"INSERT INTO passports.facts ({copied}, fact_id) SELECT {copied}, gen_random_uuid() FROM passports.facts",
    )
    assert constraint == "facts_tenant_id_fact_type_fact_key_schema_version_payload_h_key"
    copied = (
        "tenant_id, passport_id, snapshot_id, rules_id, build_id, issued_at,"
        " payload, payload_hash, proof_root_hash, receipt, receipt_hash"
    )
    constraint = await refused(
        bench,
        f"INSERT INTO passports.passport_versions ({copied}, passport_version_id)"
        f" SELECT {copied}, gen_random_uuid() FROM passports.passport_versions",
    )
    assert constraint.startswith("passport_versions_tenant_id_passport_id_snapshot_id_rules_i")


async def test_a_status_does_not_go_back(bench: Bench, full: Sealed) -> None:
    for table, before, after in (
        ("document_versions", "PARSED", "UPLOADED"),
        ("snapshots", "SEALED", "OPEN"),
        ("rule_packages", "PUBLISHED", "DRAFT"),
        ("passport_versions", "LABELED", "SIGNED"),
        ("passport_versions", "LABELED", "COMPILED"),
        ("webhook_deliveries", "DELIVERED", "FAILED"),
    ):
        assert await bench.rows(f"SELECT DISTINCT status FROM passports.{table}") == [(before,)]
        constraint = await refused(bench, f"UPDATE passports.{table} SET status = $1", after)
        assert constraint in ("status_change", "content_is_fixed")


async def test_a_version_cannot_skip_its_signature(bench: Bench) -> None:
    sealed = await bench.sealed(await bench.tenant())
    bench.tools.key = None
    await bench.work()
    assert (await bench.version(sealed.version_id))["status"] == "COMPILED"
    constraint = await refused(
        bench, "UPDATE passports.passport_versions SET status = 'LABELED', qr_payload = 'text', qr_png = 'png'"
    )
    assert constraint == "status_change"


@pytest.mark.parametrize(
    ("table", "columns", "values"),
    [
        ("snapshots", "snapshot_id, tenant_id, status, sealed_at", "gen_random_uuid(), $1, 'SEALED', now()"),
        (
            "rule_packages",
            "rules_id, tenant_id, name, source, status, published_at",
            "gen_random_uuid(), $1, 'name', '', 'PUBLISHED', now()",
        ),
    ],
)
async def test_nothing_begins_in_a_later_status(bench: Bench, table: str, columns: str, values: str) -> None:
    tenant = await bench.tenant()
    assert (
        await refused(bench, f"INSERT INTO passports.{table} ({columns}) VALUES ({values})", tenant) == "first_status"
    )


async def test_there_are_no_other_statuses(bench: Bench, full: Sealed) -> None:
    for table, statuses in STATUSES.items():
        await refused(bench, f"UPDATE passports.{table} SET status = 'LOST'")
        rows = await bench.rows(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'c' AND conname = $1",
            f"{table}_status_check",
        )
        assert [part for part in rows[0][0].split("'") if part.isupper()] == list(statuses)


async def test_an_audit_event_never_changes(bench: Bench, full: Sealed) -> None:
    events = await bench.audited(full.tenant)
    for statement in (
        "UPDATE passports.audit_events SET event_type = event_type",
        "UPDATE passports.audit_events SET event_type = 'OTHER' WHERE false",
        "DELETE FROM passports.audit_events",
        "TRUNCATE passports.audit_events CASCADE",
    ):
        assert await refused(bench, statement) == "append_only"
    assert await bench.audited(full.tenant) == events


async def test_an_audit_event_has_the_next_number(bench: Bench, full: Sealed) -> None:
    newest = len(await bench.audited(full.tenant))
    for number in (newest, newest + 2, 1):
        statement = (
            "INSERT INTO passports.audit_events (tenant_id, number, event_id, event_type, aggregate_type, aggregate_id,"
            " payload) VALUES ($1, $2, gen_random_uuid(), 'X', 'X', gen_random_uuid(), '{}')"
        )
        assert await refused(bench, statement, full.tenant, number) == "number_is_next"


async def test_an_unlabeled_version_cannot_become_another(bench: Bench) -> None:
    sealed = await bench.sealed(await bench.tenant())
    bench.tools.key = None
    await bench.work()
    assert (await bench.version(sealed.version_id))["status"] == "COMPILED"
    for change in ("build_id = 'other'", "issued_at = now()", "passport_version_id = gen_random_uuid()"):
        assert await refused(bench, f"UPDATE passports.passport_versions SET {change}") == "content_is_fixed"


async def test_what_a_passport_is_made_of_never_changes(bench: Bench, full: Sealed) -> None:
    for statement, constraint in (
        ("UPDATE passports.document_versions SET content = 'x', content_hash = sha256('x')", "content_is_fixed"),
        ("UPDATE passports.document_versions SET content = 'x'", "content_is_fixed"),
        ("UPDATE passports.facts SET fact_key = fact_key", "content_is_fixed"),
        ("UPDATE passports.rule_packages SET source = ''", "content_is_fixed"),
        ("UPDATE passports.passport_versions SET payload = 'x'", "content_is_fixed"),
        ("UPDATE passports.passport_versions SET receipt_hash = payload_hash", "content_is_fixed"),
        ("UPDATE passports.passport_versions SET key_id = 'other'", "content_is_fixed"),
        ("UPDATE passports.passport_versions SET build_id = 'other'", "content_is_fixed"),
        ("UPDATE passports.passport_versions SET issued_at = now()", "content_is_fixed"),
        ("UPDATE passports.passport_versions SET passport_version_id = gen_random_uuid()", "content_is_fixed"),
        ("UPDATE passports.passport_versions SET qr_png = 'x'", "content_is_fixed"),
        ("UPDATE passports.passport_versions SET qr_payload = 'x'", "content_is_fixed"),
        ("DELETE FROM passports.passport_versions", "is_kept"),
        ("DELETE FROM passports.document_facts", "append_only"),
        ("UPDATE passports.document_facts SET fact_id = fact_id", "append_only"),
        ("UPDATE passports.snapshot_documents SET snapshot_id = snapshot_id", "content_is_fixed"),
        ("DELETE FROM passports.snapshot_documents", "snapshot_is_open"),
        ("INSERT INTO passports.snapshot_documents SELECT * FROM passports.snapshot_documents", "snapshot_is_open"),
    ):
        assert await refused(bench, statement) == constraint, statement


@pytest.mark.parametrize(
    ("table", "columns", "values"),
    [
        ("document_facts", "tenant_id, document_version_id, fact_id", "$1, $2, $2"),
        ("snapshot_documents", "tenant_id, snapshot_id, document_version_id", "$1, $2, $2"),
        (
            "webhook_deliveries",
            "tenant_id, webhook_delivery_id, webhook_endpoint_id, event_id, status",
            "$1, $2, $2, $2, 'PENDING'",
        ),
    ],
)
async def test_a_row_cannot_refer_to_what_is_not_there(bench: Bench, table: str, columns: str, values: str) -> None:
    tenant = await bench.tenant()
    constraint = await refused(bench, f"INSERT INTO passports.{table} ({columns}) VALUES ({values})", tenant, uuid4())
    assert constraint.endswith("_fkey") or constraint == "snapshot_is_open"


async def test_a_row_cannot_refer_to_another_tenant(bench: Bench, full: Sealed) -> None:
    other: UUID = await bench.tenant("Bob Ltd")
    copies = {
        "document_versions": "document_id, version, media_type, content, content_hash",
        "webhook_subscriptions": "webhook_endpoint_id, event_type",
        "passport_versions": (
            "passport_id, snapshot_id, rules_id, build_id, issued_at, payload, payload_hash, proof_root_hash, receipt,"
            " receipt_hash"
        ),
    }
    for table, columns in copies.items():
        statement = (
            f"INSERT INTO passports.{table} ({table.removesuffix('s')}_id, tenant_id, {columns})"
            f" SELECT gen_random_uuid(), $1, {columns} FROM passports.{table}"
        )
        assert (await refused(bench, statement, other)).endswith("_fkey")
