"""PARSE_FACTS: stores the facts of an uploaded document version."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from apps.passports.audit import FACTS_PARSED, Event, record
from apps.passports.canonical import Json
from apps.passports.codes import PAYLOAD_TOO_LARGE, invalid
from apps.passports.database import fetch_one, sql, transaction
from apps.passports.facts import Fact, InvalidDocument, parse_document
from apps.passports.jobs import ParseFacts
from apps.passports.tools import Tools, tenant_of
from holdfast import Permanent, RunningJob

if TYPE_CHECKING:
    from apps.passports.database import Connection


async def parse_facts(job: RunningJob[ParseFacts, Tools]) -> None:
    tools, tenant, version_id = job.state, tenant_of(job), job.payload.document_version_id
    found = await fetch_one(tools.pool, "documents/to_parse", tenant, version_id)
    if found is None:
        raise invalid(f"there is no document version {version_id}")
    if len(found["content"]) > tools.most_bytes:
        raise Permanent(PAYLOAD_TOO_LARGE, f"the document has more than {tools.most_bytes:,} bytes")
    try:
        # In a thread, because a large document would block the event loop.
        facts = await asyncio.to_thread(parse_document, found["content"], found["media_type"])
    except InvalidDocument as error:
        raise invalid(str(error)) from error
    async with transaction(tools.pool) as connection:
        document_id = await connection.fetchval(sql("documents/parsed"), tenant, version_id)
        if document_id is not None:
            await _store(connection, tenant, version_id, facts)
            told: dict[str, Json] = {
                "document_id": str(document_id),
                "document_version_id": str(version_id),
                "facts": len(facts),
            }
            await record(connection, tools.app, tenant, Event(FACTS_PARSED, "DocumentVersion", version_id, told))
        await job.finish_in(connection)


async def _store(connection: "Connection", tenant: UUID, version_id: UUID, facts: Sequence[Fact]) -> None:
    types, keys = [fact.type for fact in facts], [fact.key for fact in facts]
    versions, hashes = [fact.schema_version for fact in facts], [fact.payload_hash for fact in facts]
    texts = [fact.payload_text.decode() for fact in facts]
    await connection.execute(sql("facts/add"), tenant, types, keys, versions, texts, hashes)
    await connection.execute(sql("facts/link"), tenant, version_id, types, keys, versions, hashes)
