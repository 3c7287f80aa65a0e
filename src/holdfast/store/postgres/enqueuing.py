"""Enqueuing: one job or many, with keys or without, each by the cheapest statement that does it.

`Bulk` chooses the statement, also for producer/enqueue.py, which runs it in a caller's transaction. copying.py takes
over where a COPY is faster.
"""

from collections.abc import Iterable, Sequence
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

# A COPY takes as long as the statement for 300 jobs, 0.85 of its time for 1,000, and half for 20,000.
_LEAST_COPIED = 300
# A COPY saves so much of a job's time, and asks so many times more than a statement, which asks once.
_SAVED_BY_COPY = timedelta(microseconds=3)
_MORE_ROUND_TRIPS = 5

_COLUMNS = (
    "id", "kind", "queue", "priority", "delay", "run_at", "tenant", "correlation_id", "max_attempts", "payload",
    "headers",
)  # fmt: skip
one_row = attrgetter(*_COLUMNS)
_columns = [attrgetter(name) for name in _COLUMNS]


class Enqueuing(ConnectedStore):
    _may_copy = True

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


class Bulk:
    """Keys cost a function call per job, so jobs of which none has one have statements of their own."""

    __slots__ = ("has_keys", "jobs")

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.jobs = jobs
        self.has_keys = any(job.key is not None for job in jobs)

    def is_worth_a_copy(self, round_trip: timedelta) -> bool:
        return not self.has_keys and is_copy_faster(len(self.jobs), round_trip)

    @property
    def verb(self) -> str:
        if self.has_keys:
            return "enqueue_keyed"
        return "enqueue_one" if len(self.jobs) == 1 else "enqueue"

    @property
    def parameters(self) -> Parameters:
        if len(self.jobs) == 1 and not self.has_keys:
            one: Parameters = one_row(self.jobs[0])
            return one
        columns = tuple(list(map(column, self.jobs)) for column in _columns)
        return (*columns, *self._key_columns) if self.has_keys else columns

    @property
    def _key_columns(self) -> Parameters:
        return (
            [job.key for job in self.jobs],
            [job.if_exists.value for job in self.jobs],
            [job.window for job in self.jobs],
        )

    def read(self, rows: Rows) -> list[Enqueued]:
        """In the order of the jobs."""
        if not self.has_keys:
            return [Enqueued(job.id, is_new=True) for job in self.jobs]
        # A new job has the id that it was given, and reading one from text takes longer than all the rest here.
        return [
            Enqueued(job.id, is_new=True) if is_new else read_enqueued((id, is_new, replaced))
            for job, (_, id, is_new, replaced) in zip(self.jobs, rows, strict=True)
        ]


def is_copy_faster(jobs: int, round_trip: timedelta) -> bool:
    """Faster than one statement. Next door it takes hundreds of jobs, across a country tens of thousands."""
    return jobs >= _LEAST_COPIED and jobs * _SAVED_BY_COPY > _MORE_ROUND_TRIPS * round_trip


def read_enqueued(row: Iterable[object]) -> Enqueued:
    """From the columns that the function `enqueue` returns."""
    id, is_new, replaced = row
    return Enqueued(UUID(text_of(id)), bool(is_new), bool(replaced))
