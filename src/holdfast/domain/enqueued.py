"""What an enqueue returns, and how to wait for the result of the job.

Neighbors: stores make the answers; producer/ adds the app, which can wait for the job.
"""

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol
from uuid import UUID

from holdfast.domain.duration import Duration, to_text, to_timedelta
from holdfast.domain.errors import InvalidInput, JobFailed
from holdfast.domain.job import Job, JobState, Result
from holdfast.domain.kinds import Kind

RESULT_TIMEOUT = "30s"


class Waiting(Protocol):
    async def wait(self, job_id: UUID, timeout: Duration = ...) -> Job: ...


class BlockingWaiting(Protocol):
    def wait(self, job_id: UUID, timeout: Duration = ...) -> Job: ...


# Not frozen, because creating a frozen instance takes twice as long, and there is one for each job.
@dataclass(slots=True, eq=False)
class _Answer(Generic[Result]):
    id: UUID
    is_new: bool
    replaced: bool = False
    _kind: Kind[Any, Any] | None = field(default=None, repr=False)
    """The job's kind, if known. With None, its result is read as plain JSON."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Answer) and self._told == other._told

    def __hash__(self) -> int:
        return hash(self._told)

    @property
    def _told(self) -> tuple[UUID, bool, bool]:
        return self.id, self.is_new, self.replaced


@dataclass(slots=True, eq=False)
class Enqueued(_Answer[Result]):
    """`is_new` is False if a job with the same tenant, kind and key existed; `id` is then the ID of that job.

    `replaced`: the existing job was replaced with the new work.
    """

    _app: Waiting | None = field(default=None, repr=False)

    async def result(self, timeout: Duration = RESULT_TIMEOUT) -> Result:
        """Wait for the handler's return value. The app must be open, and the job's transaction committed.

        Raises JobFailed if the job ended without success, and TimeoutError if it has not ended by the timeout.
        """
        if self._app is None:
            raise InvalidInput("this Enqueued has no app to wait with; wait for the job with app.wait(id)")
        result: Result = result_of(await self._app.wait(self.id, timeout), self._kind, timeout)
        return result


@dataclass(slots=True, eq=False)
class SyncEnqueued(_Answer[Result]):
    """What `app.sync` returns: like `Enqueued`, but `result` blocks."""

    _app: BlockingWaiting | None = field(default=None, repr=False)

    def result(self, timeout: Duration = RESULT_TIMEOUT) -> Result:
        """Wait for the handler's return value. The job's transaction must have committed.

        Raises JobFailed if the job ended without success, and TimeoutError if it has not ended by the timeout.
        """
        if self._app is None:
            raise InvalidInput("this SyncEnqueued has no app to wait with; wait for the job with app.sync.wait(id)")
        result: Result = result_of(self._app.wait(self.id, timeout), self._kind, timeout)
        return result


def result_of(job: Job, kind: Kind[Any, Any] | None, timeout: Duration) -> Any:  # noqa: ANN401
    """Return the typed result of a job that was waited for, or raise an error that says why there is none."""
    if job.state is JobState.SUCCEEDED:
        return job.result if kind is None else kind.read_result(job.result)
    if job.state.is_final:
        raise JobFailed(job)
    waited = to_text(to_timedelta(timeout, "timeout"))
    raise TimeoutError(f"job {job.id} of kind {job.kind!r} is still {job.state} after {waited}")
