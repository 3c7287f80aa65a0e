"""Tenants, documents, rules and passports, made with the functions of the application, and an open app."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from apps.passports.compiling import Build
from apps.passports.database import transaction
from apps.passports.documents import Uploaded, add_document, upload
from apps.passports.endpoints import NewEndpoint, add_endpoint, subscribe
from apps.passports.passports import add_passport
from apps.passports.rule_packages import add_rules, publish
from apps.passports.settings import Settings
from apps.passports.snapshots import add_snapshot, add_to_snapshot, seal
from apps.passports.tenants import add_tenant
from apps.passports.tools import Tools
from apps.passports.worker import build_app
from holdfast import Holdfast, Job, JobState
from holdfast.types import JobFilter

KEY = base64.b64encode(bytes(range(32))).decode()
ISSUED_AT = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
DOCUMENT = {
    "schema_version": 1,
    "attributes": {"model": "BX-75", "capacity_kwh": 75.5, "mass_kg": 420, "is_second_life": False},
    "components": [
        {"part": "CELL-1", "material": "LFP", "quantity": 96, "mass_kg": 3.2, "recycled_share": 0.16},
        {"part": "CASE-1", "name": "Case", "mass_kg": 40.5},
    ],
}
RULES = """\
# What every battery needs.
require capacity_kwh: number
require mass_kg: number
require components.count: number
require components.mass_kg: number
optional model: text
let kwh_per_kg = capacity_kwh / mass_kg
check "stores energy": capacity_kwh > 0
check "has plausible parts": components.mass_kg <= mass_kg and components.count > 0
"""


@dataclass(frozen=True, slots=True)
class Sealed:
    tenant: UUID
    build: Build
    job_id: UUID

    @property
    def version_id(self) -> UUID:
        return self.build.version_id(self.tenant)


@dataclass(frozen=True, slots=True)
class Bench:
    """An open worker app for tests that run its ticks themselves."""

    app: Holdfast[Tools]
    tools: Tools
    settings: Settings

    async def tenant(self, name: str = "Ann Ltd") -> UUID:
        return (await add_tenant(self.tools.pool, name)).tenant_id

    async def uploaded(
        self, tenant: UUID, content: bytes | None = None, media_type: str = "application/json"
    ) -> Uploaded:
        text = json.dumps(DOCUMENT).encode() if content is None else content
        async with transaction(self.tools.pool) as connection:
            document_id = await add_document(connection, tenant, "BOM")
            return await upload(connection, self.app, tenant, document_id, media_type, text)

    async def rules(self, tenant: UUID, source: str = RULES, *, is_published: bool = True) -> UUID:
        async with transaction(self.tools.pool) as connection:
            rules_id = await add_rules(connection, tenant, "rules", source)
            if is_published:
                await publish(connection, self.app, tenant, rules_id)
        return rules_id

    async def snapshot(self, tenant: UUID, *contents: bytes) -> UUID:
        """An open snapshot of parsed documents."""
        versions = [await self.uploaded(tenant, content) for content in contents or (json.dumps(DOCUMENT).encode(),)]
        await self.work()
        async with transaction(self.tools.pool) as connection:
            snapshot_id = await add_snapshot(connection, tenant)
            for version in versions:
                await add_to_snapshot(connection, self.app, tenant, snapshot_id, version.document_version_id)
        return snapshot_id

    async def build(self, tenant: UUID, *contents: bytes, rules: str = RULES, is_published: bool = True) -> Build:
        snapshot_id = await self.snapshot(tenant, *contents)
        rules_id = await self.rules(tenant, rules, is_published=is_published)
        async with transaction(self.tools.pool) as connection:
            passport_id = await add_passport(connection, tenant, "Battery 1")
        return Build(passport_id, snapshot_id, rules_id, "build-1", ISSUED_AT)

    async def sealed(self, tenant: UUID, *contents: bytes, rules: str = RULES, is_published: bool = True) -> Sealed:
        return await self.seal(tenant, await self.build(tenant, *contents, rules=rules, is_published=is_published))

    async def seal(self, tenant: UUID, build: Build) -> Sealed:
        async with transaction(self.tools.pool) as connection:
            return Sealed(tenant, build, await seal(connection, self.app, tenant, build))

    async def endpoint(self, tenant: UUID, url: str, *event_types: str) -> NewEndpoint:
        async with transaction(self.tools.pool) as connection:
            endpoint = await add_endpoint(connection, tenant, url, self.tools.policy)
            for event_type in event_types:
                await subscribe(connection, tenant, endpoint.webhook_endpoint_id, event_type)
        return endpoint

    async def work(self) -> None:
        """Run the jobs that are due now, and those that they enqueue."""
        await self.app.tick(runners=("queue",))

    async def work_off(self, most: int = 20) -> None:
        """Run due jobs, moving the clock ahead each time, until no job is waiting."""
        for _ in range(most):
            await self.work()
            waiting = [job.run_at for job in await self.jobs() if not job.state.is_final and job.run_at]
            if not waiting:
                return
            ahead = min(waiting) - await self.app.clock.now()
            if ahead.total_seconds() > 0:
                await self.app.clock.advance(ahead)
        raise AssertionError(f"there is still something to do after {most} ticks")

    async def jobs(self, kind: str | None = None) -> list[Job]:
        """Oldest first."""
        return list(reversed(await self.app.jobs.list(JobFilter(kind=kind), 1000)))

    async def job(self, job_id: UUID) -> Job:
        job = await self.app.jobs.get(job_id)
        assert job is not None
        return job

    async def only(self, kind: str) -> Job:
        (job,) = await self.jobs(kind)
        return job

    async def ending(self, job_id: UUID) -> tuple[JobState, str | None]:
        """The job's state and the code of its last error."""
        job = await self.job(job_id)
        return job.state, None if job.last_error is None else job.last_error.code

    async def row(self, query: str, *arguments: object) -> dict[str, Any]:
        found = await self.tools.pool.fetchrow(query, *arguments)
        assert found is not None
        return dict(found)

    async def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.tools.pool.fetch(query, *arguments)]

    async def version(self, version_id: UUID) -> dict[str, Any]:
        return await self.row("SELECT * FROM passports.passport_versions WHERE passport_version_id = $1", version_id)

    async def delivery(self, tenant: UUID) -> dict[str, Any]:
        """The tenant's only delivery."""
        return await self.row("SELECT * FROM passports.webhook_deliveries WHERE tenant_id = $1", tenant)

    async def audited(self, tenant: UUID) -> list[str]:
        """The types of the tenant's audit events, whose numbers must have no gaps."""
        rows = await self.rows(
            "SELECT number, event_type FROM passports.audit_events WHERE tenant_id = $1 ORDER BY number", tenant
        )
        assert [number for number, _ in rows] == list(range(1, len(rows) + 1))
        return [event_type for _, event_type in rows]


_WAITS = """
SELECT EXISTS (
    SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%audit_number%'
)
"""


async def is_waiting_for_audit(bench: Bench) -> bool:
    """Whether a handler has written its effect and waits for the number of its audit event."""
    ((is_waiting,),) = await bench.rows(_WAITS)
    return bool(is_waiting)


def worker_settings(url: str, **given: object) -> Settings:
    usual = {"bpc_database_url": url, "bpc_signing_key": KEY, "bpc_development": True}
    return Settings.load(**{**usual, **given})


@asynccontextmanager
async def opened_bench(settings: Settings) -> AsyncIterator[Bench]:
    tools = Tools(settings)
    app = build_app(settings, tools)
    app.lifespan = lambda _app: nullcontext(tools)
    async with app, tools.opened(app):
        await app.declare()
        yield Bench(app, tools, settings)
