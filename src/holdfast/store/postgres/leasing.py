"""Leases between claim and finish: renewed by their holder, or rescued from one that is gone."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.domain.claim import claims_of
from holdfast.domain.job import JobState, Lease
from holdfast.domain.json_text import encode
from holdfast.domain.lifecycle import KEPT_ERRORS, LEASE_LOST, MOST_LOSSES, Move, Transition
from holdfast.logs.records import get_logger
from holdfast.store.contract import Ended, Fenced, Renewal, Renewed, Rescued
from holdfast.store.postgres.claiming import Claiming
from holdfast.store.postgres.connected import ConnectedStore
from holdfast.store.postgres.driver import translated
from holdfast.store.postgres.sql_files import statement
from holdfast.store.rescue import Rescue

if TYPE_CHECKING:
    import asyncpg

log = get_logger("holdfast.store")

_RELEASE = Transition(Move.RELEASE)
_LOCKED_TRIES = 20
_LOCKED_SECONDS = 0.05


class Leasing(Claiming):
    async def leases_of(self, holder: UUID) -> list[Lease]:
        return [Lease(*row) for row in await self.fetch("leases_of", *claims_of(holder))]

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        async with self._acquire() as connection:
            return await PostgresRenewer(connection, self.schema).renew(renewals)

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        try:
            async with self._acquire() as connection:
                return await PostgresRenewer(connection, self.schema).release(leases)
        finally:
            # As after a finish that releases.
            self.forget_floors()

    @asynccontextmanager
    async def renewer(self) -> AsyncIterator["PostgresRenewer"]:
        """Renews on a connection outside the pool, for the lease keeper's thread."""
        async with self.connection_of_its_own() as connection:
            yield PostgresRenewer(connection, self.schema)

    async def now(self) -> datetime:
        ((moment,),) = await self.fetch("now")
        now: datetime = moment
        return now

    async def rescue(self, limit: int, ended: Ended | None = None) -> list[Rescued]:
        rescued = await self._rescue(limit, ended)
        if rescued:
            self.forget_floors()
        return rescued

    @cached_property
    def _rescue(self) -> "_LeaseRescue":
        return _LeaseRescue(self)

    async def run_alone(self, lease: Lease, crash_limit: int) -> Fenced:
        ((is_noted,),) = await self.fetch("run_alone", lease.id, lease.claim, crash_limit)
        if is_noted:
            return Fenced.DONE
        ((_, why),) = await self.fetch("why_not_held", *lease_columns([lease]))
        return Fenced(why)

    async def absolve(self, leases: Sequence[Lease]) -> None:
        wanted = list(leases)
        for _ in range(_LOCKED_TRIES):
            wanted = [wanted[row["number"] - 1] for row in await self.fetch("absolve", *lease_columns(wanted))]
            if not wanted:
                return
            # Either a claim has locked the row, or a transaction is finishing a job that then needs no absolution.
            await asyncio.sleep(_LOCKED_SECONDS)


class _LeaseRescue(Rescue[UUID]):
    def __init__(self, store: ConnectedStore) -> None:
        super().__init__()
        self._store = store

    async def rescue(
        self, limit: int, left_alone: list[UUID], only: list[UUID] | None, ended: Ended | None
    ) -> list[Rescued]:
        error = encode(LEASE_LOST.as_dict())
        rows = await self._store.fetch(
            "rescue", limit, left_alone, only, *_parameters(ended), error, KEPT_ERRORS, MOST_LOSSES
        )
        return [Rescued(row["id"], JobState(row["state"])) for row in rows]

    async def expired(self, limit: int, left_alone: list[UUID], ended: Ended | None) -> list[UUID]:
        return [row["id"] for row in await self._store.fetch("expired", limit, left_alone, *_parameters(ended))]

    def tell(self, key: UUID, error: Exception) -> None:
        message = "job cannot be rescued and stays leased; `holdfast doctor` counts it"
        # PostgreSQL's own words, because the translated error would be advice for a producer.
        log.error(message, job_id=str(key), error=str(error.__cause__ or error).partition("\n")[0])


def _parameters(ended: Ended | None) -> tuple[datetime | None, timedelta | None]:
    return (None, None) if ended is None else ended


class PostgresRenewer:
    """Renews and releases leases on a single connection."""

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
            requests = {row[0] - 1: row[1] for row in rows}
            fenced = await self._fenced(leases, requests)
        return [
            Renewed(lease, answer, requests.get(number, False))
            for number, (lease, answer) in enumerate(zip(leases, fenced, strict=True))
        ]

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        if not leases:
            return []
        with translated():
            rows = await self._fetch("finish", *finish_columns(leases, [_RELEASE] * len(leases)))
            return await self._fenced(leases, {row[0] - 1 for row in rows})

    async def _fenced(self, leases: Sequence[Lease], done: Collection[int]) -> list[Fenced]:
        answers = [Fenced.DONE] * len(leases)
        missing = [number for number in range(len(leases)) if number not in done]
        if missing:
            why = await self._fetch("why_not_held", *lease_columns([leases[number] for number in missing]))
            for number, row in zip(missing, why, strict=True):
                answers[number] = Fenced(row["fenced"])
        return answers

    async def _fetch(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        return await self._connection.fetch(statement(verb, self._schema, len(arguments)), *arguments)


def finish_columns(leases: Sequence[Lease], transitions: Sequence[Transition]) -> tuple[object, ...]:
    """Return the parameters of the verb `finish`."""
    errors = [transition.error for transition in transitions]
    return (
        *lease_columns(leases),
        [transition.move.value for transition in transitions],
        [transition.state.value for transition in transitions],
        [transition.delay for transition in transitions],
        [transition.at for transition in transitions],
        [error and encode(error.as_dict()) for error in errors],
        [transition.result for transition in transitions],
        KEPT_ERRORS,
    )


def lease_columns(leases: Sequence[Lease]) -> tuple[list[UUID], list[UUID]]:
    """Return the columns that identify the leases: their ids and claims."""
    return [lease.id for lease in leases], [lease.claim for lease in leases]
