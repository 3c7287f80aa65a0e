"""The store contract on an application's own table, as far as the table has a place for it (`Rows.parts`)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from holdfast.domain.claim import claims_of, holder_of, new_claim
from holdfast.domain.enqueued import Enqueued
from holdfast.domain.errors import DuplicateJob, InvalidInput
from holdfast.domain.handlers import FinishInTransaction
from holdfast.domain.job import JobError, JobState, Lease, LeasedJob, NewJob
from holdfast.domain.json_text import Json, encode
from holdfast.domain.lifecycle import Move, Transition
from holdfast.logs.records import get_logger
from holdfast.store.contract import (
    Canceling,
    ClaimRequest,
    Deleting,
    Ended,
    Fenced,
    Finish,
    Looked,
    Renewal,
    Renewed,
    Rescued,
    Retrying,
    Shard,
)
from holdfast.store.postgres.leasing import lease_columns
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.rows import rare_sql
from holdfast.store.rows.access import Choose, RowLocked, RowRefused, RowTable
from holdfast.store.rows.claim import ClaimedRow, RowClaim
from holdfast.store.rows.enqueue import check_jobs, columns_of, insert_statement
from holdfast.store.rows.fit import ensure_fits
from holdfast.store.rows.mapping import Rows
from holdfast.store.rows.reader import RowReader
from holdfast.store.rows.rescue import RowRescue

if TYPE_CHECKING:
    import asyncpg

    from holdfast.store.rows.access import Connection

log = get_logger("holdfast.rows")

Answer = TypeVar("Answer")

_LOCKED_TRIES = 20
_LOCKED_SECONDS = 0.05


class RowStore:
    """Uses the pool of a PostgreSQL store, because the table is in the database with Holdfast's schema."""

    def __init__(self, store: PostgresStore, mapping: Rows) -> None:
        self.mapping = mapping
        self.table = RowTable(store, mapping)
        self._rescue = RowRescue(self.table)
        self._claim = RowClaim(self.table)

    async def check(self) -> None:
        """Raise a one-line SchemaMismatch if the mapping and its table do not fit together."""
        await ensure_fits(self.table.store, self.mapping)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Raise InvalidInput for values that the table has no place for; see enqueue.py."""
        if jobs:
            check_jobs(self.mapping, jobs)
            try:
                await self.table.fetch(insert_statement, *columns_of(jobs), by_index=False)
            except RowRefused as refused:
                if refused.duplicate is None:
                    raise
                raise DuplicateJob(f"{refused.duplicate.rstrip('.')}; use a new id") from None
        return [Enqueued(job.id, is_new=True) for job in jobs]

    async def claim(self, request: ClaimRequest) -> list[LeasedJob]:
        kinds = {kind: claim for kind, claim in request.kinds.items() if self.mapping.kind in (None, kind)}
        if request.limit <= 0 or not kinds or not self._serves(request.queues, suspects=request.suspects):
            return []
        before = (
            list(kinds),
            [min(claim.limit, request.limit) for claim in kinds.values()],
            [claim.lease for claim in kinds.values()],
            request.limit,
        )
        after = (str(holder_of(request.holder)), *_shard(request.shard))
        while True:
            claim_id = new_claim(request.holder, request.seconds)
            claimed = await self._claim(
                *before, claim_id, *after, suspects=request.suspects, most_bytes=request.most_bytes
            )
            leased = await self._readable(claimed, claim_id)
            if leased or not claimed:
                return leased

    async def _readable(self, claimed: Sequence[ClaimedRow], claim: UUID) -> list[LeasedJob]:
        """Return the jobs with a payload. Jobs too large for one claim are released. Jobs with an unreadable payload
        fail, because no attempt could succeed."""
        leased, ended = [], []
        for each in claimed:
            lease = Lease(each.row["id"], each.row["fence"], claim)
            if isinstance(each.payload, JobError):
                ended.append(Finish(lease, Transition(Move.FAIL, error=each.payload)))
            elif each.payload is None:
                ended.append(Finish(lease, Transition(Move.RELEASE)))
            else:
                leased.append(self._leased(each.row, claim, Json(each.payload)))
        try:
            await self.finish(ended)
        except RowRefused as refused:
            # Their leases will expire, and the rescue gets the same refusal. The readable rows must not be lost too.
            log.warning("rows with unreadable payloads could not be marked as failed", error=str(refused))
        return leased

    def _serves(self, queues: Sequence[str], *, suspects: bool) -> bool:
        """A table without suspicion has no suspects."""
        return self.mapping.queue in queues and not (suspects and self.mapping.suspicion is None)

    def _leased(self, row: "asyncpg.Record", claim: UUID, payload: Json) -> LeasedJob:
        return LeasedJob(
            lease=Lease(row["id"], row["fence"], claim),
            kind=row["kind"],
            queue=self.mapping.queue,
            priority=row["priority"],
            payload=payload,
            headers=row["headers"],
            tenant=row["tenant"],
            correlation_id=row["correlation_id"],
            attempt=row["attempt"],
            losses=row["losses"],
            max_attempts=row["max_attempts"],
            created_at=row["created_at"],
            row=self.table.row(row["key"]),
        )

    async def leases_of(self, holder: UUID) -> list[Lease]:
        return [Lease(*row) for row in await self.table.fetch(rare_sql.leases_of, *claims_of(holder))]

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        async with self.table.store.acquired() as connection:
            return await RowRenewer(self.table, connection).renew(renewals)

    @asynccontextmanager
    async def renewer(self) -> AsyncIterator["RowRenewer"]:
        """Renews on a separate connection, for the lease keeper's thread."""
        async with self.table.store.connection_of_its_own() as connection:
            yield RowRenewer(self.table, connection)

    def finish_in(self) -> FinishInTransaction | None:
        """The statement with which a handler finishes its row in its own transaction; None before the first claim."""
        sql = self.table.known_sql
        return None if sql is None else FinishInTransaction(sql.finish_in)

    @property
    def jobs(self) -> RowReader:
        return RowReader(self.table)

    async def finish(self, finishes: Sequence[Finish]) -> list[Fenced]:
        return await _finish(self.table, finishes)

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        async with self.table.store.acquired() as connection:
            return await RowRenewer(self.table, connection).release(leases)

    async def now(self) -> datetime:
        return await self.table.store.now()

    async def rescue(self, limit: int, ended: Ended | None = None) -> list[Rescued]:
        return await self._rescue(limit, ended)

    async def run_alone(self, lease: Lease, crash_limit: int) -> Fenced:
        try:
            if await self.table.change(rare_sql.run_alone, lease.id, lease.claim, crash_limit):
                return Fenced.DONE
        except RowLocked:
            return Fenced.LOCKED
        (row,) = await self.table.fetch(lambda sql: sql.why_not_held, *lease_columns([lease]))
        return Fenced(row["fenced"])

    async def absolve(self, leases: Sequence[Lease]) -> None:
        if self.mapping.suspicion is not None and self.mapping.error is not None:

            async def absolve(some: Sequence[Lease]) -> list[None]:
                await self.table.change(rare_sql.absolve, *lease_columns(some))
                return [None] * len(some)

            await _each(absolve, leases, None)

    async def cancel(self, ids: Sequence[UUID]) -> list[Canceling]:
        answers = await self._until_unlocked(rare_sql.cancel, ids)
        return [Canceling(answers[id]) for id in ids]

    async def retry(self, ids: Sequence[UUID]) -> list[Retrying]:
        answers = await self._until_unlocked(rare_sql.retry, ids)
        return [Retrying(answers[id]) for id in ids]

    async def delete(self, ids: Sequence[UUID]) -> list[Deleting]:  # noqa: ARG002 - the contract's
        raise InvalidInput(f"rows {self.mapping.name!r}: the rows are your application's; delete them with SQL")

    async def _until_unlocked(self, choose: Choose, ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """Retry for locked rows, which both verbs skip. A claim's lock is brief; a finishing transaction's may last."""
        answers: dict[UUID, str] = {}
        wanted = ids
        for _ in range(_LOCKED_TRIES):
            if not wanted:
                break
            answers.update({row["id"]: row["answer"] for row in await self.table.fetch(choose, wanted)})
            wanted = [id for id, answer in answers.items() if answer == "locked"]
            if wanted:
                await asyncio.sleep(_LOCKED_SECONDS)
        return answers

    async def look(self, queues: Sequence[str], kinds: Sequence[str], *, shard: Shard | None = None) -> Looked:
        wanted = [kind for kind in kinds if self.mapping.kind in (None, kind)]
        if not wanted or self.mapping.queue not in queues:
            return Looked()
        left_alone = self._claim.left_alone
        (row,) = await self.table.fetch(
            lambda sql: sql.look(past=bool(left_alone)),
            wanted,
            *_shard(shard),
            *((left_alone, None) if left_alone else ()),
        )
        return Looked(_not_negative(row["due_in"]), _not_negative(row["suspect_due_in"]))


class RowRenewer:
    """Renews and releases on a single connection."""

    def __init__(self, table: RowTable, connection: "Connection") -> None:
        self._table = table
        self._connection = connection

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        """Progress is dropped, because the table has no place for it."""
        if not renewals:
            return []
        leases = [renewal.lease for renewal in renewals]
        table, on = self._table, self._connection
        columns = lease_columns(leases)
        try:
            rows = await table.change(lambda sql: sql.renew, *columns, [renewal.extend for renewal in renewals], on=on)
        except RowLocked:
            if len(leases) > 1:
                raise
            return [Renewed(leases[0], Fenced.LOCKED)]
        requests = {row["number"] - 1: row["cancel_requested"] for row in rows}
        done = {number: Renewed(leases[number], Fenced.DONE, asked) for number, asked in requests.items()}
        if len(done) == len(leases):
            return [done[number] for number in range(len(leases))]
        why = await table.fetch(lambda sql: sql.why_not_held, *columns, on=on)
        return [
            done.get(number) or Renewed(lease, Fenced(row["fenced"]))
            for number, (lease, row) in enumerate(zip(leases, why, strict=True))
        ]

    async def release(self, leases: Sequence[Lease]) -> list[Fenced]:
        async def release(some: Sequence[Lease]) -> list[Fenced]:
            released = [Finish(lease, Transition(Move.RELEASE)) for lease in some]
            return await _finish(self._table, released, self._connection)

        return await _each(release, leases, Fenced.LOCKED)


async def _each(
    change: Callable[[Sequence[Lease]], Awaitable[list[Answer]]], leases: Sequence[Lease], refused: Answer
) -> list[Answer]:
    """Change all rows but those that their table refuses to change. Splits into halves, because very few are to blame.

    No refusal is logged here: a row that cannot be released is reported when it cannot be rescued either.
    """
    try:
        return await change(leases)
    except RowRefused:
        if len(leases) == 1:
            return [refused]
    half = len(leases) // 2
    return [*await _each(change, leases[:half], refused), *await _each(change, leases[half:], refused)]


async def _finish(table: RowTable, finishes: Sequence[Finish], on: "Connection | None" = None) -> list[Fenced]:
    if not finishes:
        return []
    leases = [finish.lease for finish in finishes]
    transitions = [finish.transition for finish in finishes]
    values = [table.mapping.value_of(transition) for transition in transitions]
    errors = [transition.error for transition in transitions]
    fetched = table.change(
        lambda sql: sql.finish,
        *lease_columns(leases),
        [transition.move.value for transition in transitions],
        [transition.state is JobState.READY for transition in transitions],
        [transition.delay for transition in transitions],
        [transition.at for transition in transitions],
        values,
        [table.mapping.completes(value) for value in values],
        [error and error.code for error in errors],
        [error and error.message for error in errors],
        [error and encode(error.as_dict()) for error in errors],
        [transition.result for transition in transitions],
        on=on,
    )
    try:
        rows = await fetched
    except RowLocked:
        if len(leases) > 1:
            raise
        return [Fenced.LOCKED]
    # Two finishes of one lease change its row once, and both count as done.
    done = {leases[row["number"] - 1] for row in rows}
    answers = [Fenced.DONE] * len(leases)
    missing = [number for number, lease in enumerate(leases) if lease not in done]
    if missing:
        columns = lease_columns([leases[number] for number in missing])
        rows = await table.fetch(lambda sql: sql.why_not_held, *columns, on=on)
        for number, row in zip(missing, rows, strict=True):
            answers[number] = Fenced(row["fenced"])
    return answers


def _shard(shard: Shard | None) -> tuple[int | None, int | None]:
    return (None, None) if shard is None else (shard.index, shard.count)


def _not_negative(due_in: timedelta | None) -> timedelta | None:
    return None if due_in is None else max(timedelta(0), due_in)
