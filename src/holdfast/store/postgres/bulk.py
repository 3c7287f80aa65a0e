"""Jobs to enqueue by one statement: which one, its parameters, and what its rows mean.

The store runs it on its pool, producer/enqueue.py in a caller's transaction.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from operator import attrgetter
from uuid import UUID

from holdfast.domain.connections import Parameters, Rows, text_of
from holdfast.domain.job import NewJob
from holdfast.store.contract import Enqueued

# However short a round trip is: what is asked before and after a COPY costs the server as much as it saves on so many.
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
