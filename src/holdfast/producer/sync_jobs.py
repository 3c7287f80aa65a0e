"""The blocking reader behind `app.sync.jobs`."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

from holdfast.domain.job import Job, JobState
from holdfast.domain.kinds import Kind
from holdfast.store.contract import MOST_DUE, Backlog, JobFilter, JobReader

Answer = TypeVar("Answer")


class Read(Protocol):
    def __call__(self, work: Callable[[JobReader], Coroutine[Any, Any, Answer]], name: str, /) -> Answer: ...


class SyncJobReader:
    """The same methods as `app.jobs`."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def get(self, id: UUID | str) -> Job | None:
        return self._read(lambda jobs: jobs.get(id), "jobs.get")

    def find(self, kind: Kind | str, key: str, tenant: str = "") -> Job | None:
        """The newest job that holds this key: for its window if it has one, or else until the job is removed."""
        return self._read(lambda jobs: jobs.find(kind, key, tenant), "jobs.find")

    def list(self, filter: JobFilter, limit: int) -> list[Job]:
        """The jobs that match, newest first by ID."""
        return self._read(lambda jobs: jobs.list(filter, limit), "jobs.list")

    def list_ids(self, filter: JobFilter, limit: int) -> Sequence[UUID]:
        """The ids of the jobs that `list` would return."""
        return self._read(lambda jobs: jobs.list_ids(filter, limit), "jobs.list_ids")

    def count(self) -> Mapping[JobState, int]:
        return self._read(lambda jobs: jobs.count(), "jobs.count")

    def backlog(self, limit: int = MOST_DUE) -> Sequence[Backlog]:
        """One entry per queue with due jobs, ordered by name; at most `limit` jobs are counted per queue."""
        return self._read(lambda jobs: jobs.backlog(limit), "jobs.backlog")
