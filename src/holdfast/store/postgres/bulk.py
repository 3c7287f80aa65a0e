"""Jobs to enqueue by one statement: which one, its parameters, and what its rows mean.

The store runs it on its pool, producer/enqueue.py in a caller's transaction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from holdfast.connections import Parameters, Rows, text_of
from holdfast.job import NewJob
from holdfast.store.contract import Enqueued


@dataclass(frozen=True, slots=True)
class Bulk:
    """Keys cost a function call per job, so jobs of which none has one have a statement of their own."""

    jobs: Sequence[NewJob]

    @property
    def has_keys(self) -> bool:
        return any(job.key is not None for job in self.jobs)

    @property
    def verb(self) -> str:
        return "enqueue_keyed" if self.has_keys else "enqueue"

    @property
    def parameters(self) -> Parameters:
        columns = (
            [job.id for job in self.jobs],
            [job.kind for job in self.jobs],
            [job.queue for job in self.jobs],
            [job.priority for job in self.jobs],
            [job.delay for job in self.jobs],
            [job.run_at for job in self.jobs],
            [job.tenant for job in self.jobs],
            [job.correlation_id for job in self.jobs],
            [job.max_attempts for job in self.jobs],
            [job.payload for job in self.jobs],
            [job.headers for job in self.jobs],
        )
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


def read_enqueued(row: Iterable[object]) -> Enqueued:
    """From the columns that the function `enqueue` returns."""
    id, is_new, replaced = row
    return Enqueued(UUID(text_of(id)), bool(is_new), bool(replaced))
