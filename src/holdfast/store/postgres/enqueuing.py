"""Enqueuing: one job or many, with keys or without, each by the cheapest statement that does it.

`Bulk` chooses the statement, also for producer/enqueue.py, which runs it in a caller's transaction. copying.py takes
over where a COPY is faster.
"""

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from uuid import UUID

from holdfast.domain.connections import Parameters, Rows, text_of
from holdfast.domain.crash_points import around
from holdfast.domain.errors import KeyLocked
from holdfast.domain.job import NewJob
from holdfast.store.contract import Enqueued
from holdfast.store.postgres.connected import ConnectedStore
from holdfast.store.postgres.copying import copy_jobs
from holdfast.store.postgres.driver import CopyRefused, LeaseLocked

# A COPY takes 0.95 of the statement's time for 300 jobs, 0.87 for 1,000, and half for 5,000.
_LEAST_COPIED = 300
# A COPY saves so much of a job's time, and asks so many times more than a statement, which asks once.
_SAVED_BY_COPY = timedelta(microseconds=3)
_MORE_ROUND_TRIPS = 5

_COLUMNS = (
    "id", "kind", "queue", "priority", "delay", "run_at", "tenant", "correlation_id", "max_attempts", "payload",
    "headers",
)  # fmt: skip
_COLUMNS_WITH_KEYS = (*_COLUMNS, "key", "if_exists.value", "window")
_one_row = attrgetter(*_COLUMNS)
_one_row_with_key = attrgetter(*_COLUMNS_WITH_KEYS)


class Enqueuing(ConnectedStore):
    _may_copy = True
    """Until the server refuses a COPY."""

    @around("enqueue")
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
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


class Bulk:
    """Jobs to enqueue by one statement: which one, its parameters, and what its rows mean.

    Four statements, for one job or many, with keys or without. A single job in arrays takes the server a sixth to a
    quarter longer. Jobs without keys take it 6 to 13 % longer in a statement that can also call the function for keys.
    """

    __slots__ = ("has_keys", "jobs")

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.jobs = jobs
        self.has_keys = any(job.key is not None for job in jobs)

    def is_worth_a_copy(self, round_trip: timedelta) -> bool:
        return not self.has_keys and is_copy_faster(len(self.jobs), round_trip)

    @property
    def verb(self) -> str:
        amount = "enqueue_one" if len(self.jobs) == 1 else "enqueue_many"
        return f"{amount}_keyed" if self.has_keys else amount

    @property
    def parameters(self) -> Parameters:
        if len(self.jobs) == 1:
            one: Parameters = (_one_row_with_key if self.has_keys else _one_row)(self.jobs[0])
            return one
        columns = _COLUMNS_WITH_KEYS if self.has_keys else _COLUMNS
        return tuple(list(map(attrgetter(column), self.jobs)) for column in columns)

    def read(self, rows: Rows) -> list[Enqueued]:
        """In the order of the jobs."""
        if not self.has_keys:
            return [Enqueued(job.id, is_new=True) for job in self.jobs]
        # A new job has the id that it was given, and reading one from text takes longer than all the rest here.
        return [
            Enqueued(job.id if is_new else UUID(text_of(id)), bool(is_new), bool(replaced))
            for job, (id, is_new, replaced) in zip(self.jobs, rows, strict=True)
        ]


def is_copy_faster(jobs: int, round_trip: timedelta) -> bool:
    """Faster than one statement. Next door it takes hundreds of jobs, across a country tens of thousands."""
    return jobs >= _LEAST_COPIED and jobs * _SAVED_BY_COPY > _MORE_ROUND_TRIPS * round_trip
