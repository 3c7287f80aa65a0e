"""The original tables of two applications, and the mappings that turn them into queues.

The outbox has camelCase columns without time zones, as JavaScript ORMs create them. The deliveries have no state for a
claimed row, and two mappings process them in turn.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.store.rows.mapping import Rows, RowStates

if TYPE_CHECKING:
    import asyncpg

OUTBOX_TABLE = """
CREATE TYPE "OutboxStatus" AS ENUM ('PENDING', 'PROCESSING', 'SENT', 'FAILED');
CREATE SCHEMA platform;
CREATE TABLE platform."OutboxEvent" (
    "id" uuid PRIMARY KEY,
    "eventType" text NOT NULL,
    "payload" jsonb NOT NULL,
    "headers" jsonb,
    "tenantId" text,
    "correlationId" text,
    "priority" smallint NOT NULL DEFAULT 5,
    "maxAttempts" integer,
    "status" "OutboxStatus" NOT NULL DEFAULT 'PENDING',
    "attempts" integer NOT NULL DEFAULT 0,
    "availableAt" timestamp NOT NULL,
    "lockedBy" text,
    "lockedUntil" timestamp,
    "startedAt" timestamp,
    "finishedAt" timestamp,
    "lastError" jsonb,
    "result" jsonb,
    "cancelRequested" boolean NOT NULL DEFAULT false,
    "losses" integer NOT NULL DEFAULT 0,
    "suspicion" integer NOT NULL DEFAULT 0,
    "crashLimit" integer NOT NULL DEFAULT 0,
    "claim" uuid,
    "fence" bigint,
    "createdAt" timestamp NOT NULL DEFAULT (now() AT TIME ZONE 'UTC'),
    "updatedAt" timestamp
)
"""
OUTBOX = Rows(
    name="outbox",
    table="platform.OutboxEvent",
    kind_column="eventType",
    payload="payload",
    headers="headers",
    tenant="tenantId",
    correlation_id="correlationId",
    priority="priority",
    max_attempts="maxAttempts",
    states=RowStates(column="status", ready="PENDING", running="PROCESSING", succeeded="SENT", failed="FAILED"),
    attempt="attempts",
    run_at="availableAt",
    locked_by="lockedBy",
    locked_until="lockedUntil",
    started_at="startedAt",
    completed_at="finishedAt",
    error="lastError",
    result="result",
    cancel_requested="cancelRequested",
    losses="losses",
    suspicion="suspicion",
    crash_limit="crashLimit",
    created_at="createdAt",
    updated_at="updatedAt",
)

MORE_STATES = """
ALTER TYPE "OutboxStatus" ADD VALUE 'DEAD';
ALTER TYPE "OutboxStatus" ADD VALUE 'CANCELED'
"""
WHOLE = replace(
    OUTBOX,
    states=RowStates(
        column="status",
        ready="PENDING",
        running="PROCESSING",
        succeeded="SENT",
        failed="FAILED",
        dead="DEAD",
        canceled="CANCELED",
    ),
)

DELIVERIES_TABLE = """
CREATE TABLE device_installations (installation_id text PRIMARY KEY, push_token text);
CREATE TABLE notification_events (id bigint PRIMARY KEY, title text NOT NULL);
CREATE TABLE notification_deliveries (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    notification_event_id bigint,
    installation_id text,
    status text NOT NULL DEFAULT 'pending',
    attempt_count integer NOT NULL DEFAULT 0,
    receipt_attempt_count integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    locked_at timestamptz,
    locked_by text,
    completed_at timestamptz,
    last_error_code varchar(40),
    last_error_message varchar(200),
    provider_ticket_id text,
    details json,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (notification_event_id, installation_id)
)
"""
LOCK_COLUMNS = """
ALTER TABLE notification_deliveries
    ADD COLUMN locked_until timestamptz, ADD COLUMN claim uuid, ADD COLUMN fence bigint
"""
DELIVERY_PAYLOAD = """
SELECT device.push_token, event.title
FROM device_installations AS device, notification_events AS event
WHERE device.installation_id = item.installation_id AND event.id = item.notification_event_id
"""
DISPATCH = Rows(
    name="dispatch",
    table="notification_deliveries",
    kind="push.send",
    payload_query=DELIVERY_PAYLOAD,
    states=RowStates(
        column="status",
        ready=("pending", "retryable"),
        retry="retryable",
        succeeded="sent",
        failed="failed",
        codes={"DEVICE_NOT_REGISTERED": "invalid"},
        incomplete=("sent",),
    ),
    due="item.completed_at IS NULL",
    order=("created_at", "id"),
    attempt="attempt_count",
    attempts=8,
    run_at=("next_attempt_at", "created_at"),
    locked_at="locked_at",
    completed_at="completed_at",
    error_code="last_error_code",
    error_message="last_error_message",
    created_at="created_at",
    updated_at="updated_at",
)
RECEIPTS = Rows(
    name="receipts",
    table="notification_deliveries",
    kind="push.receipt",
    payload_columns=("provider_ticket_id", "installation_id"),
    states=RowStates(
        column="status",
        ready="sent",
        succeeded="ok",
        failed="failed",
        codes={"DEVICE_NOT_REGISTERED": "invalid", "SEND_AGAIN": "retryable"},
        incomplete=("retryable",),
    ),
    due="item.completed_at IS NULL",
    order=("created_at", "id"),
    attempt="receipt_attempt_count",
    attempts=8,
    run_at=("next_attempt_at", "created_at"),
    locked_at="locked_at",
    completed_at="completed_at",
    error_code="last_error_code",
    error_message="last_error_message",
    created_at="created_at",
    updated_at="updated_at",
)


async def migrate(connection: "asyncpg.Connection[asyncpg.Record]", *mappings: Rows) -> None:
    """Run what each mapping prints, as the application would."""
    for rows in mappings:
        for statement in rows.migration_sql().split(";"):
            if statement.strip():
                await connection.execute(statement)


async def add_deliveries(connection: "asyncpg.Connection[asyncpg.Record]", number: int) -> None:
    """Add pending deliveries, each with its own event and installation."""
    await connection.execute(
        """
        WITH one AS (SELECT generate_series(1, $1::integer) AS number),
        device AS (INSERT INTO device_installations SELECT 'device-' || number, 'token-' || number FROM one),
        event AS (INSERT INTO notification_events SELECT number, 'tender ' || number FROM one)
        INSERT INTO notification_deliveries (notification_event_id, installation_id, created_at)
        SELECT number, 'device-' || number, holdfast.now() - interval '1 hour' + number * interval '1 millisecond'
        FROM one
        """,
        number,
    )


async def statuses(connection: "asyncpg.Connection[asyncpg.Record]") -> dict[str, int]:
    found = await connection.fetch("SELECT status, count(*) FROM notification_deliveries GROUP BY 1")
    return {row["status"]: row["count"] for row in found}
