"""COMPILE_PASSPORT: compiles a version of a passport from a sealed snapshot and published rules."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg

from apps.passports.audit import PASSPORT_COMPILED, Event, record
from apps.passports.canonical import Json, NotCanonical, read_json
from apps.passports.codes import (
    PAYLOAD_TOO_LARGE,
    RULE_PKG_NOT_PUBLISHED,
    RULE_TYPE_ERROR,
    SNAPSHOT_NOT_READY,
    invalid,
)
from apps.passports.compiling import Build, Compiled, compile_version
from apps.passports.database import fetch, fetch_one, sql, transaction
from apps.passports.facts import Fact, InvalidDocument, distinct
from apps.passports.jobs import SIGN_PASSPORT, SignPassport, new_job
from apps.passports.rules import RuleFailure, RuleSyntaxError, RuleTypeError
from apps.passports.tools import Tools, tenant_of
from holdfast import Permanent, RunningJob

if TYPE_CHECKING:
    from apps.passports.database import Connection


async def compile_passport(job: RunningJob[Build, Tools]) -> None:
    tools, tenant, build = job.state, tenant_of(job), job.payload
    rules = await _ready_rules(tools, tenant, build)
    facts = await fetch(tools.pool, "facts/of_snapshot", tenant, build.snapshot_id)
    # In a thread, because large passports would block the event loop.
    compiled = await asyncio.to_thread(_compile, tenant, build, facts, rules)
    if len(compiled.payload) > tools.most_bytes:
        size = f"{len(compiled.payload):,} bytes are over the limit of {tools.most_bytes:,}"
        raise Permanent(PAYLOAD_TOO_LARGE, f"the passport is too large: {size}")
    async with transaction(tools.pool) as connection:
        following = new_job(
            tools.app, SIGN_PASSPORT, SignPassport(compiled.version_id),
            tenant=tenant, key=str(compiled.version_id), correlation_id=job.correlation_id,
        )  # fmt: skip
        await tools.app.enqueue(following, conn=connection)
        if await _add(connection, tenant, build, compiled):
            event = Event(PASSPORT_COMPILED, "PassportVersion", compiled.version_id, _told(build, compiled))
            await record(connection, tools.app, tenant, event)
        await job.finish_in(connection)


async def _ready_rules(tools: Tools, tenant: UUID, build: Build) -> str:
    """Return the source of the rules, after checking that everything is there and ready."""
    found = await fetch_one(
        tools.pool, "versions/to_compile", tenant, build.snapshot_id, build.rules_id, build.passport_id
    )
    if found is None or found["snapshot_status"] is None:
        raise invalid(f"there is no snapshot {build.snapshot_id}")
    if found["rules_status"] is None:
        raise invalid(f"there is no rule package {build.rules_id}")
    if not found["has_passport"]:
        raise invalid(f"there is no passport {build.passport_id}")
    if found["snapshot_status"] != "SEALED":
        raise Permanent(SNAPSHOT_NOT_READY, f"the snapshot {build.snapshot_id} is not sealed")
    if found["has_unparsed"]:
        raise Permanent(SNAPSHOT_NOT_READY, f"the snapshot {build.snapshot_id} has documents that are not parsed")
    if found["rules_status"] != "PUBLISHED":
        raise Permanent(RULE_PKG_NOT_PUBLISHED, f"the rule package {build.rules_id} is not published")
    source: str = found["rules_source"]
    return source


def _compile(tenant: UUID, build: Build, facts: Sequence[asyncpg.Record], rules: str) -> Compiled:
    try:
        return compile_version(tenant, build, distinct(map(_fact, facts)), rules)
    except RuleTypeError as error:
        raise Permanent(RULE_TYPE_ERROR, str(error)) from error
    except (RuleSyntaxError, RuleFailure, InvalidDocument, NotCanonical) as error:
        raise invalid(str(error)) from error


async def _add(connection: "Connection", tenant: UUID, build: Build, compiled: Compiled) -> bool:
    """Add the version, and return False if an earlier run did."""
    added = await connection.fetchval(
        sql("versions/add"), tenant, compiled.version_id,
        build.passport_id, build.snapshot_id, build.rules_id, build.build_id, build.issued_at,
        compiled.payload, compiled.payload_hash, compiled.proof_root_hash, compiled.receipt, compiled.receipt_hash,
    )  # fmt: skip
    return added is not None


def _fact(row: asyncpg.Record) -> Fact:
    payload = read_json(row["payload"])
    if not isinstance(payload, dict):
        raise invalid(f"the payload of the fact {row['fact_key']} is not an object")
    return Fact(row["fact_type"], row["fact_key"], payload, row["schema_version"])


def _told(build: Build, compiled: Compiled) -> dict[str, Json]:
    return {
        "passport_version_id": str(compiled.version_id),
        **build.as_json(),
        "payload_hash": compiled.payload_hash.hex(),
    }
