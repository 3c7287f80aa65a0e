"""Leases between claim and finish: renewed by their holder, or rescued from one that is gone."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.domain.claim import claims_of
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
        return [Lease(*row) for row in await self.fetch("leases_of", *claims_of(holder))]

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        async with self._acquire() as connection:
            return await PostgresRenewer(connection, self.schema).renew(renewals)

    @asynccontextmanager
    async def renewer(self) -> AsyncIterator["PostgresRenewer"]:
        """Renews on a connection outside the pool, for the lease keeper's thread."""
        async with self.connection_of_its_own() as connection:
            yield PostgresRenewer(connection, self.schema)

    async def now(self) -> datetime:
        ((moment,),) = await self.fetch("now")
        now: datetime = moment
        return now

    async def rescue(self, limit: int, ended_by: datetime | None = None) -> list[Rescued]:
        rows = await self.fetch("rescue", limit, MAX_LOSSES, encode(LEASE_LOST.as_dict()), KEPT_ERRORS, ended_by)
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
            done = {row[0] - 1: Renewed(leases[row[0] - 1], Fenced.DONE, row[1]) for row in rows}
            missing = [number for number in range(len(leases)) if number not in done]
            if missing:
                why = await self._fetch("why_not_held", *lease_columns([leases[number] for number in missing]))
                for number, row in zip(missing, why, strict=True):
                    done[number] = Renewed(leases[number], Fenced(row["fenced"]))
        return [done[number] for number in range(len(leases))]

    async def _fetch(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        return await self._connection.fetch(statement(verb, self._schema, len(arguments)), *arguments)


def lease_columns(leases: Sequence[Lease]) -> tuple[list[UUID], list[UUID]]:
    """What names them: their ids and claims."""
    return [lease.id for lease in leases], [lease.claim for lease in leases]
