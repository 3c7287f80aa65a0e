"""Builds jobs from what a producer says, and the statements that enqueue them inside a caller's own transaction."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from uuid_utils.compat import uuid7

from holdfast.domain.duration import Duration, to_timedelta
from holdfast.domain.handlers import CURRENT_JOB, Handlers
from holdfast.domain.job import DEFAULT_PRIORITY, IfExists, NewJob, check_name
from holdfast.domain.options import options_of
from holdfast.domain.statement import Statement
from holdfast.producer.arguments import encoded_headers
from holdfast.store.contract import Enqueued
from holdfast.store.postgres.enqueuing import Bulk
from holdfast.store.postgres.sql_files import statement


@options_of("a job")
def new_job(
    handlers: Handlers,
    kind: str,
    payload: object = None,
    *,
    queue: str | None = None,
    priority: int = DEFAULT_PRIORITY,
    delay: Duration | None = None,
    run_at: datetime | None = None,
    tenant: str | None = None,
    key: str | None = None,
    if_exists: str = IfExists.KEEP,
    window: Duration | None = None,
    correlation_id: str | None = None,
    attempts: int | None = None,
    headers: Mapping[str, object] | None = None,
    id: UUID | None = None,
) -> NewJob:
    """A job to enqueue, checked. Inside a handler it inherits the tenant and correlation id of the running job."""
    check_name("kind", kind)
    parent = CURRENT_JOB.get()
    return NewJob(
        id=uuid7() if id is None else id,
        kind=kind,
        payload=handlers.encode_payload(kind, payload),
        queue=handlers.queue_of(kind) if queue is None else queue,
        priority=priority,
        delay=None if delay is None else to_timedelta(delay, "delay"),
        run_at=run_at,
        tenant=tenant if tenant is not None else parent.tenant if parent else "",
        key=key,
        if_exists=IfExists.of(if_exists),
        window=None if window is None else to_timedelta(window, "window"),
        correlation_id=correlation_id if correlation_id not in (None, "") else parent.correlation_id if parent else "",
        max_attempts=attempts,
        headers=encoded_headers(headers),
    )


def enqueue_statement(schema: str, job: NewJob) -> Statement[Enqueued]:
    """Enqueues in the caller's transaction: commit makes the job visible, rollback leaves nothing."""
    bulk = Bulk([job])
    return Statement.in_text(
        statement(bulk.verb, schema), bulk.parameters, lambda rows: bulk.read(rows)[0], "app.enqueue_statement(job)"
    )


def enqueue_many_statement(schema: str, jobs: Sequence[NewJob]) -> Statement[list[Enqueued]]:
    """The same for any number of jobs: all of them or none."""
    bulk = Bulk(jobs)
    return Statement.in_text(
        statement(bulk.verb, schema), bulk.parameters, bulk.read, "app.enqueue_statement(job) for each job"
    )
