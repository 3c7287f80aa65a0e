"""The verbs of an app for blocking code: `app.sync`, usable from every thread and after a fork.

With `conn` a verb runs on the thread and the connection of its caller. Without it the verb runs on the connection of
the app's framework, if it has one, else on the event loop of portal.py, in its own transaction.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload
from uuid import UUID

from holdfast.domain.connections import BlockingConnection
from holdfast.domain.duration import Duration
from holdfast.domain.enqueued import Enqueued, SyncEnqueued
from holdfast.domain.errors import InvalidInput, UnknownJob
from holdfast.domain.event_loop import finished
from holdfast.domain.framework import Framework
from holdfast.domain.job import Job, NewJob, to_ids
from holdfast.domain.kinds import Kind, Payload, Result
from holdfast.producer.arguments import check_jobs
from holdfast.producer.new_events import Published, new_event
from holdfast.producer.options import EnqueueOptions, PublishOptions
from holdfast.producer.portal import Portal, check_blocking
from holdfast.producer.sync_jobs import SyncJobReader
from holdfast.store.contract import Canceling, Deleting, JobReader, Retrying
from holdfast.store.opening import Applied, reader_on

if TYPE_CHECKING:
    from holdfast.producer.producer import Producer

Answer = TypeVar("Answer")


class SyncProducer:
    """`conn` is a blocking connection, session or cursor of psycopg, psycopg2, SQLAlchemy or Django.

    There is nothing to open. The first call without `conn` starts a thread and connects; `close` ends both early.
    """

    def __init__(self, app: "Producer") -> None:
        self._app = app
        self._portal = Portal(app)
        self.jobs = SyncJobReader(self._read)

    @overload
    def enqueue(
        self,
        kind: Kind[None, Result],
        payload: None = None,
        *,
        conn: BlockingConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> SyncEnqueued[Result]: ...

    @overload
    def enqueue(
        self,
        kind: Kind[Payload, Result],
        payload: Payload,
        *,
        conn: BlockingConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> SyncEnqueued[Result]: ...

    @overload
    def enqueue(self, kind: NewJob[Result], *, conn: BlockingConnection | None = None) -> SyncEnqueued[Result]: ...

    @overload
    def enqueue(
        self,
        kind: str,
        payload: object = None,
        *,
        conn: BlockingConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> SyncEnqueued: ...

    def enqueue(
        self,
        kind: Kind[Any, Any] | NewJob | str,
        payload: object = None,
        *,
        conn: BlockingConnection | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> SyncEnqueued:
        """Enqueue one job: a kind with its payload and options, or a job built by `app.job`."""
        (enqueued,) = self._enqueue((self._app._given(kind, payload, options),), "enqueue", conn)
        return enqueued

    def enqueue_many(
        self, jobs: Iterable[NewJob[Result]], *, conn: BlockingConnection | None = None
    ) -> list[SyncEnqueued[Result]]:
        """Enqueue all jobs or none, with one statement. Build them with `app.job`; answers are in the same order."""
        return self._enqueue(check_jobs(jobs), "enqueue_many", conn)

    def _enqueue(self, jobs: Sequence[NewJob], verb: str, conn: BlockingConnection | None) -> list[SyncEnqueued]:
        conn = self._connection(conn)
        answers = (
            self._run(lambda: self._app.enqueue_many(jobs), verb)
            if conn is None
            else self._app._transactions.enqueue(jobs).execute_blocking(conn, verb)
        )
        return [self._blocking(job, answer) for job, answer in zip(jobs, answers, strict=True)]

    def publish(
        self,
        type: str,
        payload: object = None,
        *,
        conn: BlockingConnection | None = None,
        **options: Unpack[PublishOptions],
    ) -> Published:
        """Publish one event: make one job for each matching subscription."""
        event = new_event(self._app.handlers, self._app.subscribed, type, payload, **options)
        conn = self._connection(conn)
        if conn is None:
            return self._run(lambda: self._app._publish_event(event), "publish")
        return Published(event.id, tuple(self._app._transactions.publish(event).execute_blocking(conn, "publish")))

    def cancel(self, ids: Iterable[UUID | str], *, conn: BlockingConnection | None = None) -> list[Canceling]:
        """Cancel jobs; return one answer for each ID, in the same order. See `app.cancel`."""
        given, conn = to_ids(ids), self._connection(conn)
        if conn is None:
            return self._run(lambda: self._app.cancel(given), "cancel")
        return self._app._transactions.cancel(given).execute_blocking(conn, "cancel")

    def retry(self, ids: Iterable[UUID | str], *, conn: BlockingConnection | None = None) -> list[Retrying]:
        """Retry final jobs; return one answer for each ID, in the same order. See `app.retry`."""
        given, conn = to_ids(ids), self._connection(conn)
        if conn is None:
            return self._run(lambda: self._app.retry(given), "retry")
        return self._app._transactions.retry(given).execute_blocking(conn, "retry")

    def delete(self, ids: Iterable[UUID | str], *, conn: BlockingConnection | None = None) -> list[Deleting]:
        """Delete final jobs; return one answer for each ID, in the same order. See `app.delete`."""
        given, conn = to_ids(ids), self._connection(conn)
        if conn is None:
            return self._run(lambda: self._app.delete(given), "delete")
        return self._app._transactions.delete(given).execute_blocking(conn, "delete")

    def wait(self, job_id: UUID | str, timeout: Duration = "30s") -> Job:
        """Wait until the job is final or the timeout passes, and return it. See `app.wait`."""
        return self._run(lambda: self._app.wait(job_id, timeout), "wait")

    def wait_many(self, job_ids: Iterable[UUID | str], timeout: Duration = "30s") -> dict[UUID, Job]:
        """Wait until all jobs are final or the timeout passes, and return them in the order of the IDs."""
        given = to_ids(job_ids)
        return self._run(lambda: self._app.wait_many(given, timeout), "wait_many")

    def wait_for(self, kind: Kind | str, key: str, timeout: Duration = "30s", *, tenant: str = "") -> Job:
        """Wait until the job with this key is final or the timeout passes, and return it. See `app.wait_for`."""
        return self._run(lambda: self._app.wait_for(kind, key, timeout, tenant=tenant), "wait_for")

    def migrate(self, *, grant: str | None = None) -> Applied:
        """Create Holdfast's tables in the database, or bring them up to date. See `app.migrate`."""
        return self._run(lambda: self._app.migrate(grant=grant), "migrate", opens=False)

    def run(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Run any other method of the app: `app.sync.run(lambda: app.schedules.list())`."""
        given: object = work
        if iscoroutine(given):
            # Otherwise Python warns that it was never awaited.
            given.close()
        if not callable(given):
            raise InvalidInput("work: pass a function: app.sync.run(lambda: app.schedules.list())")
        return self._run(work, "run")

    def close(self) -> None:
        """Close the connections and end the thread. The next call without `conn` starts them again."""
        self._portal.close()

    def _connection(self, conn: BlockingConnection | None) -> BlockingConnection | None:
        """The connection that a verb runs on; None for the portal."""
        framework = self._app._framework
        return framework.connection() if conn is None and framework is not None else conn

    def _read(self, work: Callable[[JobReader], Coroutine[Any, Any, Answer]], verb: str, /) -> Answer:
        framework = self._framework_in_use()
        if framework is None:
            return self._run(lambda: work(self._app.opened.reader), verb)
        check_blocking(verb)
        return finished(work(reader_on(framework, self._app.settings.db_schema)))

    def _framework_in_use(self) -> Framework | None:
        """None also if the app is under test in another store."""
        framework = self._app._framework
        return framework if framework is not None and framework.is_followed(self._app.settings.store) else None

    def _run(self, work: Callable[[], Awaitable[Answer]], verb: str, /, *, opens: bool = True) -> Answer:
        check_blocking(verb)
        framework = self._framework_in_use()
        if framework is not None:
            framework.check_use()
        try:
            return self._portal.run(work, opens=opens)
        except UnknownJob as error:
            if framework is None or not framework.is_in_transaction():
                raise
            raise UnknownJob(
                f"{error}; a job enqueued in this thread's open transaction is not visible and cannot run before the "
                f"commit: call app.sync.{verb} after the atomic block, with @transaction.non_atomic_requests if the "
                f"view has ATOMIC_REQUESTS, and in a TransactionTestCase instead of a TestCase"
            ) from error

    def _blocking(self, job: NewJob, answer: Enqueued) -> SyncEnqueued:
        return SyncEnqueued(answer.id, answer.is_new, answer.replaced, job.typed, self)
