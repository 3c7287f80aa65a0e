"""Maintenance of PostgreSQL: each call of a function in schema/functions/ is a short transaction."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.domain.crash_points import reach
from holdfast.domain.errors import HoldfastError, StoreUnavailable
from holdfast.logs.records import get_logger
from holdfast.store.maintenance import Batch
from holdfast.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    import asyncpg

log = get_logger("holdfast.maintenance")

_DAYS_AHEAD = 8
_BATCH = 1_000
_LEDGER_BATCH = 100_000
# Moving this many jobs, or this many bytes, takes about a fifth of a second, during which every other session waits.
_MOST_MOVED = 10_000
_MOST_BYTES = 4_000_000
# How long a drop waits for its locks, while everything else waits behind it. Producers whose transactions take a second
# never leave a gap of a tenth, so an overdue drop waits for them to end.
_PATIENCE = timedelta(milliseconds=100)
_OVERDUE_PATIENCE = timedelta(seconds=2)
# For the locks and for the work under them. An overdue drop may take this plus its patience.
_DROP_SECONDS = 1.0
_DROP_TRIES = 2
_DROP_PAUSE = 0.3
_BESIDE_JOB = ("key", "attempt_error", "progress")
_BUSY = Batch(skipped="another process is doing it", is_busy=True)
_ONE_BY_ONE = ", so its jobs are pruned one by one"
_PRUNED_ONE_BY_ONE = ("crowded", "slow", "referenced", "refused")
_OTHER = "the default partition"
_FIRST = UUID(int=0)
_FIRST_TIME = datetime.min.replace(tzinfo=UTC)
# A job that the database refuses to delete is tried alone. After this many, the next pass continues.
_MOST_REFUSED = 1_000


class PostgresMaintenance:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        # If a pass runs out of time, the next one continues it. Otherwise it would never reach the end of a long table.
        self._pruned_up_to: dict[str, UUID] = {}
        self._dead_letters_pruned_up_to = _FIRST_TIME, _FIRST
        # A process that died after dropping a day may have left rows behind.
        self._must_sweep = True

    async def since_done(self) -> dict[str, timedelta]:
        return {row["chore"]: row["ago"] for row in await self._store.fetch("chores_done")}

    async def mark_done(self, chore: str, trouble: str | None = None) -> None:
        await self._store.fetch("mark_chore_done", chore, trouble)

    async def mark_failed(self, chore: str, error: str) -> None:
        await self._store.fetch("mark_chore_failed", chore, error)

    async def troubles(self) -> dict[str, str]:
        return {row["chore"]: row["trouble"] for row in await self._store.fetch("doctor_maintenance")}

    async def add_partitions(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        # Remove a guard left behind by a process that died.
        await self._store.fetch_for_maintenance("lift_guard")
        (row,) = await self._store.fetch_for_maintenance("add_partitions", _DAYS_AHEAD, retention)
        if row["added"] is None:
            yield _BUSY
            return
        yield Batch({"partitions_added": row["added"]})
        if row["default_is_large"]:
            yield await self._add_guarded(retention)

    async def _add_guarded(self, retention: timedelta) -> Batch:
        """Add partitions although the default partition is too large to scan while everything waits:
        guard_default.sql."""
        (guard,) = await self._store.fetch_for_maintenance("guard_default", _DAYS_AHEAD, retention)
        if guard["day"] is None:
            return Batch()
        try:
            (check,) = await self._store.fetch_for_maintenance("check_guard")
            if not check["check_guard"]:
                return Batch()
            (row,) = await self._store.fetch_for_maintenance("add_guarded_partitions", *guard, retention)
        finally:
            await self._store.fetch_for_maintenance("lift_guard")
        return _BUSY if row["added"] is None else Batch({"partitions_added": row["added"]})

    async def prune_jobs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        may_drop = True
        for row in await self._store.fetch_for_maintenance("past_days", retention):
            day, outcome = row["day"], "kept"
            if row["is_foreign"]:
                yield Batch(skipped=f"{day}: the bounds of its partitions are not what Holdfast makes{_ONE_BY_ONE}")
            if row["is_past"] and may_drop:
                outcome, batch = await self._drop(day, retention, is_overdue=row["is_overdue"])
                yield batch
                if outcome == "busy":
                    return
                # What blocks one day most likely blocks all of them, and each attempt makes others wait.
                may_drop = outcome not in ("locked", "slow")
            if outcome in _PRUNED_ONE_BY_ONE or (row["is_overdue"] and outcome != "dropped"):
                async for batch in _as_far_as_allowed(str(day), self._prune_part(f"{day:%Y%m%d}", retention, str(day))):
                    yield batch
        for what, batches in (
            (_OTHER, self._prune_part("other", retention, _OTHER)),
            ("keys", self._forget_keys()),
            ("rows of removed jobs", self._sweep(retention)),
        ):
            async for batch in _as_far_as_allowed(what, batches):
                yield batch

    async def _drop(self, day: date, retention: timedelta, *, is_overdue: bool) -> tuple[str, Batch]:
        outcome = "locked"
        for number in range(1 if is_overdue else _DROP_TRIES):
            if number:
                await asyncio.sleep(_DROP_PAUSE)
            reach("drop.before")
            try:
                outcome, counts = await drop_day(
                    self._store, day, retention, _OVERDUE_PATIENCE if is_overdue else _PATIENCE
                )
            except StoreUnavailable:
                raise
            except HoldfastError as error:
                return "refused", Batch(skipped=f"{day}: {_told(error)}{_ONE_BY_ONE}", is_refused=True)
            if outcome == "dropped":
                reach("drop.after")
                self._must_sweep = True
                return outcome, Batch({"partitions_dropped": 2, **counts})
            if outcome not in ("locked", "changed"):
                break
        if outcome == "busy":
            return outcome, _BUSY
        reasons = {
            "crowded": f"{day}: too many jobs must stay to drop its partitions{_ONE_BY_ONE}",
            "referenced": f"{day}: a foreign key refers to its jobs{_ONE_BY_ONE}",
            "slow": f"{day}: moving the jobs that must stay took too long{_ONE_BY_ONE}",
            "changed": f"{day}: its jobs keep changing",
            "locked": f"{day}: its partitions are in use{_ONE_BY_ONE if is_overdue else ''}",
        }
        return outcome, Batch(skipped=reasons[outcome])

    async def _prune_part(self, part: str, retention: timedelta, name: str) -> AsyncGenerator[Batch, None]:
        refused = 0
        after: UUID | None = self._pruned_up_to.get(part, _FIRST)
        while after is not None:
            (row,) = await self._store.fetch_for_maintenance("prune_part", part, retention, after, _BATCH)
            after = row["last_id"]
            self._pruned_up_to.pop(part, None)
            if after is not None:
                self._pruned_up_to[part] = after
            yield _BUSY if row["outcome"] == "busy" else _pruned("jobs_pruned", f"{name}: jobs", row)
            refused += row["refused"]
            if refused >= _MOST_REFUSED:
                return

    async def _forget_keys(self) -> AsyncGenerator[Batch, None]:
        forgotten = _BATCH
        while forgotten == _BATCH:
            (row,) = await self._store.fetch_for_maintenance("forget_keys", _BATCH)
            forgotten = row["forgotten"]
            yield _BUSY if row["outcome"] == "busy" else Batch({"keys_forgotten": forgotten})

    async def _sweep(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        if not self._must_sweep:
            return
        for side in _BESIDE_JOB:
            after: UUID | None = _FIRST
            while after is not None:
                (row,) = await self._store.fetch_for_maintenance("sweep", side, retention, after, _BATCH)
                if row["outcome"] == "busy":
                    yield _BUSY
                    return
                after = row["last_id"]
                yield Batch({"rows_swept": row["swept"]})
        self._must_sweep = False

    async def overdue_days(self, retention: timedelta) -> list[date]:
        return [row["day"] for row in await self._store.fetch("overdue_days", retention)]

    async def prune_dead_letters(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        refused = 0
        is_over = False
        while not is_over and refused < _MOST_REFUSED:
            after = self._dead_letters_pruned_up_to
            (row,) = await self._store.fetch_for_maintenance("prune_dead_letters", retention, *after, _BATCH)
            is_over = row["last_id"] is None
            self._dead_letters_pruned_up_to = (_FIRST_TIME, _FIRST) if is_over else (row["last_at"], row["last_id"])
            refused += row["refused"]
            yield _BUSY if row["outcome"] == "busy" else _pruned("dead_letters_pruned", "dead letters", row)

    async def prune_runs(self, retention: timedelta) -> AsyncGenerator[Batch, None]:
        after: int | None = 0
        while after is not None:
            (row,) = await self._store.fetch_for_maintenance("prune_runs", retention, after, _BATCH)
            after = row["last_id"]
            yield _BUSY if row["outcome"] == "busy" else Batch({"runs_pruned": row["pruned"]})

    async def compact_counts(self) -> AsyncGenerator[Batch, None]:
        (newest,) = await self._store.fetch_for_maintenance("newest_entry")
        after: int | None = 0
        while after is not None:
            (row,) = await self._store.fetch_for_maintenance("compact_ledger", after, newest["number"], _LEDGER_BATCH)
            after = row["last_number"]
            yield _BUSY if row["outcome"] == "busy" else Batch({"entries_merged": row["merged"]})


async def _as_far_as_allowed(what: str, batches: AsyncGenerator[Batch, None]) -> AsyncGenerator[Batch, None]:
    """These batches up to the first that the database refuses, which must not end the rest of the chore."""
    try:
        async for batch in batches:
            yield batch
    except StoreUnavailable:
        raise
    except HoldfastError as error:
        yield Batch(skipped=f"{what}: {_told(error)}", is_refused=True)


def _told(error: HoldfastError) -> str:
    """The error, with the objects that PostgreSQL names only in the detail."""
    detail = getattr(error.__cause__, "detail", None)
    return f"{error} ({'; '.join(detail.splitlines())})" if detail else str(error)


def _pruned(counted: str, what: str, row: "asyncpg.Record") -> Batch:
    """Without a number, the same line comes with every batch, and is reported once."""
    counts = {counted: row["pruned"]}
    if not row["refused"]:
        return Batch(counts)
    return Batch(counts, skipped=f"{what} that must stay: {row['refusal']}", is_refused=True)


async def drop_day(
    store: PostgresStore, day: date, retention: timedelta, patience: timedelta = _PATIENCE
) -> tuple[str, dict[str, int]]:
    """Return the outcome, and how many jobs were pruned and moved."""
    async with store.maintenance_transaction() as fetch:
        (look,) = await fetch("look_at_day", day, retention, _MOST_MOVED, _MOST_BYTES)
        if look["outcome"] != "droppable":
            return look["outcome"], {}
        seconds = _DROP_SECONDS + (patience - _PATIENCE).total_seconds()
        await fetch("drop_bounds", f"{seconds * 1000:.0f}", f"{_DROP_SECONDS * 1000:.0f}")
        (row,) = await fetch("drop_day", day, look["entries"], look["recent"], _MOST_MOVED, _MOST_BYTES, patience)
        reach("drop.before_commit")
        return row["outcome"], {"jobs_pruned": row["pruned"], "jobs_moved": row["moved"]}
