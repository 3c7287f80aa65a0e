"""Enqueues one job or many, with keys or without, each with the cheapest statement for the case.

`Bulk` chooses the statement, also for producer/enqueue.py, which runs it in a caller's transaction. copying.py takes
over where a COPY is faster.
"""

from collections.abc import Sequence
from datetime import timedelta
from operator import attrgetter
from uuid import UUID

from holdfast.domain.connections import Parameters, Rows, text_of
from holdfast.domain.crash_points import around
from holdfast.domain.enqueued import Enqueued
from holdfast.domain.errors import KeyLocked
from holdfast.domain.job import NewJob
from holdfast.store.postgres.connected import ConnectedStore
from holdfast.store.postgres.copying import copy_jobs
from holdfast.store.postgres.driver import CopyRefused, LeaseLocked

# A COPY takes 0.95 of the statement's time for 300 jobs, 0.87 for 1,000, and half for 5,000.
_LEAST_COPIED = 300
# A COPY saves this much time per job but needs this many more round trips than a statement, which needs one.
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
    """True until the server refuses a COPY."""

    @around("enqueue")
    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        bulk = Bulk(jobs)
        if self._may_copy and bulk.is_worth_a_copy(self._round_trip):
            try:
                async with self._producers, self._acquire() as connection:
                    await copy_jobs(connection, self.schema, jobs)
                return bulk.read([])
            except CopyRefused:
                self._may_copy = False
        try:
            rows = await self.fetch_for_producer(bulk.verb, *bulk.parameters, with_keys=bulk.has_keys)
            return bulk.read(rows)
        except LeaseLocked as error:
            if not bulk.has_keys:
                raise
            raise KeyLocked.of([job.key for job in jobs if job.key is not None]) from error


class Bulk:
    """Jobs to enqueue with one statement: which statement, its parameters, and the meaning of its rows.

    There are four statements: for one job or many, with keys or without. With arrays, a single job takes the server a
    sixth to a quarter longer. Without keys, jobs take 6 to 13% longer in a statement that can also call the function
    for keys.
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
        """Return the results in the order of the jobs."""
        if not self.has_keys:
            return [Enqueued(job.id, is_new=True) for job in self.jobs]
        # A new job keeps the id it was given, and parsing an id from text takes longer than everything else here.
        return [
            Enqueued(job.id if is_new else UUID(text_of(id)), bool(is_new), bool(replaced))
            for job, (id, is_new, replaced) in zip(self.jobs, rows, strict=True)
        ]


def is_copy_faster(jobs: int, round_trip: timedelta) -> bool:
    """Whether a COPY beats one statement. With a server nearby it takes hundreds of jobs, across a country tens of
    thousands."""
    return jobs >= _LEAST_COPIED and jobs * _SAVED_BY_COPY > _MORE_ROUND_TRIPS * round_trip
