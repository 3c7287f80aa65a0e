"""The store contract on PostgreSQL: each verb is one statement over arrays; copying.py has the exception."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.domain.crash_points import around, reach
from holdfast.domain.errors import HoldfastError, KeyLocked, StoreUnavailable
from holdfast.domain.handlers import FinishInTransaction
from holdfast.domain.job import JobState, Lease, LeasedJob, NewJob
from holdfast.domain.json_text import encode
from holdfast.domain.lifecycle import KEPT_ERRORS, LEASE_LOST, MAX_LOSSES, PLAIN_SUCCESS, Event, Transition
from holdfast.domain.limits import check_schema
from holdfast.log import get_logger
from holdfast.store.claims import Claims
from holdfast.store.contract import (
    Canceling,
    ClaimRequest,
    Enqueued,
    Fenced,
    Finish,
    Looked,
    Renewal,
    Renewed,
    Rescued,
    Retrying,
    Shard,
)
from holdfast.store.postgres.bulk import Bulk, one_row
from holdfast.store.postgres.claiming import PostgresLanes
from holdfast.store.postgres.copying import copy_jobs
from holdfast.store.postgres.driver import (
    BY_INDEX,
    Address,
    CopyRefused,
    LeaseLocked,
    Pool,
    is_pooled,
    open_connection,
    open_pool,
    round_trip,
    through_pooler,
    translated,
    translation,
)
from holdfast.store.postgres.migrate import Migrator
from holdfast.store.postgres.sql_files import Fetch, quoted, statement

if TYPE_CHECKING:
    import asyncpg

log = get_logger("holdfast.store")

_POOL_SIZE = 8
_CLOSE_SECONDS = 2.0
_LOCKED_TRIES = 20
_LOCKED_SECONDS = 0.05
_MAINTENANCE_SECONDS = 600.0


class PostgresStore:
    """Holds a small pool; `renewer` opens a connection of its own for the lease keeper's thread.

    `direct_url`: past a pooler, if `url` leads to one.
    """

    def __init__(
        self, url: str, schema: str = "holdfast", pool_size: int = _POOL_SIZE, *, direct_url: str | None = None
    ) -> None:
        self.url = url
        """Once the store is open it says `?pgbouncer=1` if a pooler is before the server."""
        self._direct_url = direct_url
        self.schema = check_schema(schema)
        self._pool_size = pool_size
        self._pool: Pool | None = None
        self._claims = Claims(PostgresLanes(self.fetch))
        self._may_copy = True
        self._round_trip = timedelta(0)

    async def open(self) -> None:
        """Connect, and refuse a schema that this release does not know."""
        pool = await open_pool(self.url, self._pool_size)
        try:
            with translated():
                if Address.parse(self.url).pooled is None and await _is_pooled(pool):
                    self.url = through_pooler(self.url)
                    await pool.close()
                    pool = await open_pool(self.url, self._pool_size)
                async with pool.acquire() as connection:
                    await Migrator(connection, self.schema).check()  # type: ignore[arg-type]
                    self._round_trip = await round_trip(connection)  # type: ignore[arg-type]
        except BaseException:
            await pool.close()
            raise
        self._claims.forget()
        self._pool = pool

    async def check(self) -> None:
        """StoreUnavailable or SchemaMismatch unless it answers and its schema is the one this release knows."""
        async with self._acquire() as connection:
            await Migrator(connection, self.schema).check()

    async def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await pool.close()

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
        connection = await self.open_connection()
        try:
            yield connection
        finally:
            connection.terminate()

    async def open_connection(self) -> "asyncpg.Connection[asyncpg.Record]":
        """One outside the pool, and past a pooler if there is a way past it.

        There it would share the server's few connections with everybody, and wait while they are in use: a lease may
        run out meanwhile, and a lock that is held for hours takes one of them for hours.
        """
        if self._direct_url is not None and Address.parse(self.url).pooled:
            try:
                return await open_connection(self._direct_url)
            except HoldfastError as error:
                # Later is better than never.
                log.info("no connection past the pooler, going through it", error=str(error))
        return await open_connection(self.url)

    def acquired(self) -> "AbstractAsyncContextManager[asyncpg.Connection[asyncpg.Record]]":
        """A pooled connection, for tables that are not Holdfast's own."""
        return self._acquire()

    async def fetch(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        """Run a verb on a pooled connection: sql/<verb>.sql, or the function of that name."""
        if self._pool is None:
            raise StoreUnavailable("the store is not open; call open() first")
        try:
            return await self._pool.fetch(statement(verb, self.schema, len(arguments)), *arguments)
        except Exception as error:
            # Written out, because it is on the way of every single job.
            found = translation(error)
            if found is None:
                raise
            raise found from error

    async def fetch_by_index(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        """Like fetch, for what reads a table that was small when it was last looked at, and has no pinned function."""
        async with self._acquire() as connection, connection.transaction():
            await connection.execute(BY_INDEX)
            return await connection.fetch(statement(verb, self.schema, len(arguments)), *arguments)

    async def fetch_for_maintenance(self, verb: str, *arguments: object) -> "list[asyncpg.Record]":
        """Like fetch, for statements of maintenance: they may take long, and count on read committed."""
        async with self.maintenance_transaction() as fetch:
            return await fetch(verb, *arguments)

    @asynccontextmanager
    async def maintenance_transaction(self) -> AsyncIterator["Fetch"]:
        """For statements of maintenance that belong together."""
        async with self._acquire() as connection, connection.transaction(isolation="read_committed"):

            async def fetch(verb: str, *arguments: object) -> "list[asyncpg.Record]":
                return await connection.fetch(
                    statement(verb, self.schema, len(arguments)), *arguments, timeout=_MAINTENANCE_SECONDS
                )

            yield fetch

    @around("enqueue")
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        if len(jobs) == 1 and jobs[0].key is None:
            await self.fetch("enqueue_one", *one_row(jobs[0]))
            return [Enqueued(jobs[0].id, is_new=True)]
        bulk = Bulk(jobs)
        if self._may_copy and bulk.is_worth_a_copy(self._round_trip):
            try:
                async with self._acquire() as connection:
                    await copy_jobs(connection, self.schema, jobs)
                return bulk.read([])
            except CopyRefused:
                self._may_copy = False
        try:
            return bulk.read(await self.fetch(bulk.verb, *bulk.parameters))
        except LeaseLocked as error:
            if not bulk.has_keys:
                raise
            raise KeyLocked.of([job.key for job in jobs if job.key is not None]) from error

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        return await self._claims.claim(request)

    async def leases_of(self, holder: UUID) -> list[Lease]:
        return [Lease(row["id"], row["fence"], holder) for row in await self.fetch("leases_of", holder)]

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        async with self._acquire() as connection:
            return await PostgresRenewer(connection, self.schema).renew(renewals)

    async def finish(self, finishes: Sequence[Finish]) -> list[Fenced]:
        if not finishes:
            return []
        plain = [finish for finish in finishes if _is_plain(finish.transition)]
        rest = finishes if not plain else [finish for finish in finishes if not _is_plain(finish.transition)]
        done: set[int] = set()
        if plain:
            done.update(await self._finish_plain([finish.lease for finish in plain]))
        if rest:
            if plain:
                reach("finish.between")
            done.update(await self._finish_any(rest))
        return await self._fenced([finish.lease for finish in finishes], done)

    async def _finish_plain(self, leases: Sequence[Lease]) -> Iterable[int]:
        """Most jobs succeed without a result, and then three columns say it all."""
        ids, fences, holders = _lease_columns(leases)
        try:
            ((refused,),) = await self.fetch("finish_succeeded", ids, fences, holders)
        except LeaseLocked:
            return await self._finish_any([Finish(lease, PLAIN_SUCCESS) for lease in leases])
        return fences if not refused else set(fences).difference(refused)

    async def _finish_any(self, finishes: Sequence[Finish]) -> Iterable[int]:
        """The fences of those that were finished."""
        leases = [finish.lease for finish in finishes]
        transitions = [finish.transition for finish in finishes]
        try:
            rows = await self._write(leases, transitions)
        finally:
            if any(transition.event is Event.RELEASE for transition in transitions):
                # Not before: a claim beside it would look where they are not back yet, and remember that.
                self._claims.forget()
        return [row[1] for row in rows]

    async def _write(self, leases: Sequence[Lease], transitions: Sequence[Transition]) -> "list[asyncpg.Record]":
        return await self.fetch(
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

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        return await self.finish([Finish(lease, Transition(Event.RELEASE)) for lease in leases])

    async def _fenced(self, leases: Sequence[Lease], done: set[int]) -> list[Fenced]:
        missing = [lease for lease in leases if lease.fence not in done]
        if not missing:
            return [Fenced.DONE] * len(leases)
        rows = await self.fetch("why_not_held", *_lease_columns(missing))
        reasons = dict(zip(missing, (Fenced(row["fenced"]) for row in rows), strict=True))
        return [reasons.get(lease, Fenced.DONE) for lease in leases]

    async def rescue(self, limit: int) -> list[Rescued]:
        rows = await self.fetch("rescue", limit, MAX_LOSSES, encode(LEASE_LOST.as_dict()), KEPT_ERRORS)
        if rows:
            self._claims.forget()
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

    async def look(self, queues: Sequence[str], kinds: Sequence[str], *, shard: Shard | None = None) -> Looked:
        return await self._claims.look(queues, kinds, shard=shard)

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
                statement("renew", self._schema, 5),
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
                sql = statement("why_not_held", self._schema, 3)
                why = await self._connection.fetch(sql, *_lease_columns(missing))
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
        (row,) = await self._store.fetch("now")
        now: datetime = row["now"]
        return now

    async def freeze(self, at: datetime) -> None:
        await self._store.fetch("clock_freeze", at)

    async def advance(self, by: timedelta) -> None:
        await self._store.fetch("clock_advance", by)


def _lease_columns(leases: Sequence[Lease]) -> tuple[list[UUID], list[int], list[UUID]]:
    return [lease.id for lease in leases], [lease.fence for lease in leases], [lease.holder for lease in leases]


async def _is_pooled(pool: Pool) -> bool:
    async with pool.acquire() as connection:
        return await is_pooled(connection)  # type: ignore[arg-type]


def _is_plain(transition: Transition) -> bool:
    return transition is PLAIN_SUCCESS or transition == PLAIN_SUCCESS


def _error_text(transition: Transition) -> str | None:
    return None if transition.error is None else encode(transition.error.as_dict())
