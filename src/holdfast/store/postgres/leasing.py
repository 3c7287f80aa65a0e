"""Leases between claim and finish: renewed by their holder, or rescued from one that is gone."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.domain.job import JobState, Lease
from holdfast.domain.json_text import encode
from holdfast.domain.lifecycle import KEPT_ERRORS, LEASE_LOST, MAX_LOSSES
from holdfast.store.contract import Fenced, Renewal, Renewed, Rescued
from holdfast.store.postgres.claiming import Claiming
from holdfast.store.postgres.driver import translated
from holdfast.store.postgres.sql_files import statement

if TYPE_CHECKING:
    import asyncpg


class Leasing(Claiming):
    async def leases_of(self, holder: UUID) -> list[Lease]:
        return [Lease(row["id"], row["fence"], holder) for row in await self.fetch("leases_of", holder)]

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        async with self._acquire() as connection:
            return await PostgresRenewer(connection, self.schema).renew(renewals)

    @asynccontextmanager
    async def renewer(self) -> AsyncIterator["PostgresRenewer"]:
        """Renews on a connection outside the pool, for the lease keeper's thread."""
        async with self.connection_of_its_own() as connection:
            yield PostgresRenewer(connection, self.schema)

    async def rescue(self, limit: int) -> list[Rescued]:
        rows = await self.fetch("rescue", limit, MAX_LOSSES, encode(LEASE_LOST.as_dict()), KEPT_ERRORS)
        if rows:
            self.forget_floors()
        return [Rescued(row["id"], JobState(row["state"])) for row in rows]


class PostgresRenewer:
    """Renews leases on one connection."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        if not renewals:
            return []
        leases = [renewal.lease for renewal in renewals]
        extensions = [renewal.extend for renewal in renewals]
        progress = [renewal.progress for renewal in renewals]
        with translated():
            rows = await self._fetch("renew", *lease_columns(leases), extensions, progress)
            done = {(row[0], row[1]): Renewed(Lease(row[0], row[1], row[0]), Fenced.DONE, row[2]) for row in rows}
            missing = [lease for lease in leases if (lease.id, lease.fence) not in done]
            reasons: dict[Lease, Fenced] = {}
            if missing:
                why = await self._fetch("why_not_held", *lease_columns(missing))
                reasons = dict(zip(missing, (Fenced(row["fenced"]) for row in why), strict=True))
        return [
            Renewed(lease, reasons[lease]) if lease in reasons else replace(done[lease.id, lease.fence], lease=lease)
            for lease in leases
        ]

    async def _fetch(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        return await self._connection.fetch(statement(verb, self._schema, len(arguments)), *arguments)


def lease_columns(leases: Sequence[Lease]) -> tuple[list[UUID], list[int], list[UUID]]:
    return [lease.id for lease in leases], [lease.fence for lease in leases], [lease.holder for lease in leases]
