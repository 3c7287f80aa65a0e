"""The store contract on PostgreSQL: each verb is one statement over arrays."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from holdfast.errors import KeyLocked, StoreUnavailable
from holdfast.handlers import FinishInTransaction
from holdfast.job import JobState, Lease, LeasedJob, NewJob
from holdfast.json_text import Json, encode
from holdfast.lifecycle import KEPT_ERRORS, LEASE_LOST, MAX_LOSSES, Event, Transition
from holdfast.limits import check_schema
from holdfast.store.contract import (
    Canceling,
    ClaimRequest,
    Enqueued,
    Fenced,
    Finish,
    KindClaim,
    Renewal,
    Renewed,
    Rescued,
    Retrying,
    Shard,
)
from holdfast.store.postgres.bulk import Bulk
from holdfast.store.postgres.driver import LeaseLocked, open_connection, open_pool, translated
from holdfast.store.postgres.lanes import Ask, Floor, Lane, Lanes
from holdfast.store.postgres.migrate import Migrator
from holdfast.store.postgres.sql_files import quoted, statement

if TYPE_CHECKING:
    import asyncpg

_POOL_SIZE = 8
_LOCKED_TRIES = 20
_LOCKED_SECONDS = 0.05
_UPKEEP_SECONDS = 600.0
_PLAIN_SUCCESS = Transition(Event.SUCCEED)


class Fetch(Protocol):
    """Runs sql/<verb>.sql."""

    async def __call__(self, verb: str, *arguments: object) -> "list[asyncpg.Record]": ...


class PostgresStore:
    """Holds a small pool; `renewer` opens a connection of its own for the lease keeper's thread."""

    def __init__(self, url: str, schema: str = "holdfast", pool_size: int = _POOL_SIZE) -> None:
        self.url = url
        self.schema = check_schema(schema)
        self._pool_size = pool_size
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._lanes = Lanes()

    async def open(self) -> None:
        """Connect, and refuse a schema that this release does not know."""
        pool = await open_pool(self.url, self._pool_size)
        try:
            async with pool.acquire() as connection:
                await Migrator(connection, self.schema).check()  # type: ignore[arg-type]
        except BaseException:
            await pool.close()
            raise
        self._pool = pool

    async def check(self) -> None:
        """StoreUnavailable or SchemaMismatch unless it answers and its schema is the one this release knows."""
        async with self._acquire() as connection:
            await Migrator(connection, self.schema).check()

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(2):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    @property
    def finish_in(self) -> FinishInTransaction:
        function = f"{quoted(self.schema)}.finish_in_transaction"
        return FinishInTransaction(f"SELECT {function}($1::uuid, $2::bigint, $3::uuid, $4::text)")

    @asynccontextmanager
    async def renewer(self) -> AsyncIterator["PostgresRenewer"]:
        async with self.connection_of_its_own() as connection:
            yield PostgresRenewer(connection, self.schema)

    @asynccontextmanager
    async def connection_of_its_own(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        """One outside the pool, for a thread of its own; what it does is dropped when the block is left."""
        connection = await open_connection(self.url)
        try:
            yield connection
        finally:
            connection.terminate()

    def acquired(self) -> "AbstractAsyncContextManager[asyncpg.Connection[asyncpg.Record]]":
        """A pooled connection, for tables that are not Holdfast's own."""
        return self._acquire()

    async def fetch(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        """Run sql/<verb>.sql on a pooled connection."""
        if self._pool is None:
            raise StoreUnavailable("the store is not open; call open() first")
        with translated():
            return await self._pool.fetch(statement(verb, self.schema), *arguments)

    async def fetch_upkeep(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        """Like fetch, for statements of maintenance: they may take long, and count on read committed."""
        async with self.upkeep_transaction() as fetch:
            return await fetch(verb, *arguments)

    @asynccontextmanager
    async def upkeep_transaction(self) -> AsyncIterator["Fetch"]:
        """For statements of maintenance that belong together."""
        async with self._acquire() as connection, connection.transaction(isolation="read_committed"):

            async def fetch(verb: str, *arguments: object) -> "list[asyncpg.Record]":
                return await connection.fetch(statement(verb, self.schema), *arguments, timeout=_UPKEEP_SECONDS)

            yield fetch

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        bulk = Bulk(jobs)
        try:
            return bulk.read(await self.fetch(bulk.verb, *bulk.parameters))
        except LeaseLocked as error:
            if not bulk.has_keys:
                raise
            raise KeyLocked.of([job.key for job in jobs if job.key is not None]) from error

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        if request.limit <= 0 or not request.kinds or not request.queues:
            return []
        if request.suspects:
            ask = self._lanes.all_lanes(request)
            return [_leased(row, request.holder) for row in await self._run_ask(request, ask)]
        ask = self._lanes.first_ask(request, time.monotonic())
        jobs = await self._ask(request, ask)
        rest = _still_wanted(request, jobs)
        next_ask = self._lanes.next_ask(rest, ask, [Lane(job.queue, job.priority, job.kind) for job in jobs])
        if next_ask is not None:
            try:
                jobs += await self._ask(rest, next_ask)
            except StoreUnavailable:
                # What the first ask leased is ours to run; with nothing to show for it, the outage is the caller's.
                if not jobs:
                    raise
        return jobs

    async def _ask(self, request: ClaimRequest, ask: Ask) -> list[LeasedJob]:
        started = time.monotonic()
        rows = await self._run_ask(request, ask)
        found = [(Lane(row[3], row[4], row[5]), Floor(row[6], row[0])) for row in rows]
        self._lanes.learn(ask, found, started, time.monotonic())
        return [_leased(row, request.holder) for row in rows]

    async def _run_ask(self, request: ClaimRequest, ask: Ask) -> "list[asyncpg.Record]":
        lanes = Counter(probe.lane.kind for probe in ask.probes)
        limits = {kind: claim.limit for kind, claim in request.kinds.items()}
        # A limited kind may show up in several lanes, each with its whole limit; read enough to make up for them.
        spare = sum(limits[kind] * (count - 1) for kind, count in lanes.items() if limits[kind] < ask.limit)
        limited = any(limits[kind] < ask.limit for kind in lanes)
        return await self.fetch(
            "claim",
            request.holder,
            ask.limit,
            request.suspects,
            ask.limit + spare,
            limited,
            *_shard(request.shard),
            [probe.lane.queue for probe in ask.probes],
            [probe.lane.priority for probe in ask.probes],
            [probe.lane.kind for probe in ask.probes],
            [probe.floor.run_at for probe in ask.probes],
            [probe.floor.id for probe in ask.probes],
            [probe.fetch for probe in ask.probes],
            [limits[probe.lane.kind] for probe in ask.probes],
            [request.kinds[probe.lane.kind].lease for probe in ask.probes],
        )

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        async with self._acquire() as connection:
            return await PostgresRenewer(connection, self.schema).renew(renewals)

    async def finish(self, finishes: Sequence[Finish]) -> list[Fenced]:
        if not finishes:
            return []
        plain = [finish for finish in finishes if finish.transition == _PLAIN_SUCCESS]
        rest = finishes if not plain else [finish for finish in finishes if finish.transition != _PLAIN_SUCCESS]
        done: set[tuple[UUID, int]] = set()
        if plain:
            done.update(await self._finish_plain([finish.lease for finish in plain]))
        if rest:
            done.update(await self._finish_any(rest))
        return await self._fenced([finish.lease for finish in finishes], done)

    async def _finish_plain(self, leases: Sequence[Lease]) -> Iterable[tuple[UUID, int]]:
        """Most jobs succeed without a result, and then three columns say it all."""
        columns = [lease.id for lease in leases], [lease.fence for lease in leases], [lease.holder for lease in leases]
        try:
            return map(tuple, await self.fetch("finish_succeeded", *columns))
        except LeaseLocked:
            return await self._finish_any([Finish(lease, _PLAIN_SUCCESS) for lease in leases])

    async def _finish_any(self, finishes: Sequence[Finish]) -> Iterable[tuple[UUID, int]]:
        leases = [finish.lease for finish in finishes]
        transitions = [finish.transition for finish in finishes]
        if any(transition.event is Event.RELEASE for transition in transitions):
            self._lanes.forget()
        rows = await self.fetch(
            "finish",
            *_lease_columns(leases),
            [transition.event.value for transition in transitions],
            [transition.state.value for transition in transitions],
            [transition.delay for transition in transitions],
            [transition.at for transition in transitions],
            [_error_text(transition) for transition in transitions],
            [transition.result for transition in transitions],
            KEPT_ERRORS,
        )
        return map(tuple, rows)

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        return await self.finish([Finish(lease, Transition(Event.RELEASE)) for lease in leases])

    async def _fenced(self, leases: Sequence[Lease], done: set[tuple[UUID, int]]) -> list[Fenced]:
        missing = [lease for lease in leases if (lease.id, lease.fence) not in done]
        if not missing:
            return [Fenced.DONE] * len(leases)
        rows = await self.fetch("why_not_held", *_lease_columns(missing))
        reasons = dict(zip(missing, (Fenced(row["fenced"]) for row in rows), strict=True))
        return [reasons.get(lease, Fenced.DONE) for lease in leases]

    async def rescue(self, limit: int) -> list[Rescued]:
        rows = await self.fetch("rescue", limit, MAX_LOSSES, encode(LEASE_LOST.as_dict()), KEPT_ERRORS)
        if rows:
            self._lanes.forget()
        return [Rescued(row["id"], JobState(row["state"])) for row in rows]

    async def cancel(self, ids: Sequence[UUID]) -> list[Canceling]:
        answers = await self._until_unlocked("cancel", ids)
        return [Canceling(answers[id]) for id in ids]

    async def retry(self, ids: Sequence[UUID]) -> list[Retrying]:
        answers = await self._until_unlocked("retry", ids)
        return [Retrying(answers[id]) for id in ids]

    async def _until_unlocked(self, verb: str, ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """Both verbs skip locked rows. A claim's lock is gone in a moment; a finishing transaction's may not be."""
        answers: dict[UUID, str] = {}
        wanted = list(ids)
        for _ in range(_LOCKED_TRIES):
            answers.update({row[0]: row[1] for row in await self.fetch(verb, wanted)})
            wanted = [id for id in wanted if answers[id] == "locked"]
            if not wanted:
                break
            await asyncio.sleep(_LOCKED_SECONDS)
        return answers

    async def next_due(
        self, queues: Sequence[str], kinds: Sequence[str], *, suspects: bool = False, shard: Shard | None = None
    ) -> timedelta | None:
        (row,) = await self.fetch("next_due", list(queues), list(kinds), suspects, *_shard(shard))
        due: timedelta | None = row["due_in"]
        return None if due is None else max(timedelta(0), due)

    @asynccontextmanager
    async def _acquire(self) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
        if self._pool is None:
            raise StoreUnavailable("the store is not open; call open() first")
        with translated():
            async with self._pool.acquire() as connection:
                yield connection  # type: ignore[misc]


class PostgresRenewer:
    """Renews leases on one connection."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        if not renewals:
            return []
        with translated():
            rows = await self._connection.fetch(
                statement("renew", self._schema),
                [renewal.lease.id for renewal in renewals],
                [renewal.lease.fence for renewal in renewals],
                [renewal.lease.holder for renewal in renewals],
                [renewal.extend for renewal in renewals],
                [renewal.progress for renewal in renewals],
            )
            done = {(row[0], row[1]): Renewed(Lease(row[0], row[1], row[0]), Fenced.DONE, row[2]) for row in rows}
            missing = [renewal.lease for renewal in renewals if (renewal.lease.id, renewal.lease.fence) not in done]
            reasons: dict[Lease, Fenced] = {}
            if missing:
                why = await self._connection.fetch(statement("why_not_held", self._schema), *_lease_columns(missing))
                reasons = dict(zip(missing, (Fenced(row["fenced"]) for row in why), strict=True))
        return [
            Renewed(renewal.lease, reasons[renewal.lease])
            if renewal.lease in reasons
            else replace(done[renewal.lease.id, renewal.lease.fence], lease=renewal.lease)
            for renewal in renewals
        ]


class PostgresClock:
    """The clock row. Only tests move it."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def now(self) -> datetime:
        (row,) = await self._store.fetch("clock_now")
        now: datetime = row["now"]
        return now

    async def freeze(self, at: datetime) -> None:
        await self._store.fetch("clock_freeze", at)

    async def advance(self, by: timedelta) -> None:
        await self._store.fetch("clock_advance", by)


def _shard(shard: Shard | None) -> tuple[int | None, int | None]:
    return (None, None) if shard is None else (shard.index, shard.count)


def _lease_columns(leases: Sequence[Lease]) -> tuple[list[UUID], list[int], list[UUID]]:
    return [lease.id for lease in leases], [lease.fence for lease in leases], [lease.holder for lease in leases]


def _leased(row: "asyncpg.Record", holder: UUID) -> LeasedJob:
    return LeasedJob(
        lease=Lease(row["id"], row["fence"], holder),
        kind=row["kind"],
        queue=row["queue"],
        priority=row["priority"],
        payload=Json(row["payload"]),
        headers=row["headers"],
        tenant=row["tenant"],
        correlation_id=row["correlation_id"],
        attempt=row["attempt"],
        losses=row["losses"],
        max_attempts=row["max_attempts"],
        created_at=row["created_at"],
        until=row["until"],
    )


def _still_wanted(request: ClaimRequest, claimed: list[LeasedJob]) -> ClaimRequest:
    taken = Counter(job.kind for job in claimed)
    kinds = {
        kind: KindClaim(claim.lease, claim.limit - taken[kind])
        for kind, claim in request.kinds.items()
        if claim.limit > taken[kind]
    }
    return replace(request, limit=request.limit - len(claimed) if kinds else 0, kinds=kinds)


def _error_text(transition: Transition) -> str | None:
    return None if transition.error is None else encode(transition.error.as_dict())
