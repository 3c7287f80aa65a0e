"""Builds events from what a producer says, and publishes them inside any driver's transaction."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from holdfast.domain.connections import Rows
from holdfast.domain.event import NewEvent
from holdfast.domain.handlers import CURRENT_JOB, Handlers
from holdfast.domain.json_text import encode
from holdfast.domain.options import options_of
from holdfast.domain.statement import Statement
from holdfast.events.subscriptions import Subscribed
from holdfast.producer.arguments import encoded_headers
from holdfast.store.events import EventJob
from holdfast.store.postgres.events import event_jobs, publish_parameters
from holdfast.store.postgres.sql_files import statement


@dataclass(frozen=True, slots=True)
class Published:
    """What became of an event: one job for each subscription, by name; none if nobody listens.

    With a key, jobs that were there already keep the event that made them, whose id is another one.
    """

    event_id: UUID
    jobs: tuple[EventJob, ...]

    @property
    def new_ids(self) -> list[UUID]:
        return [job.id for job in self.jobs if job.is_new]


@options_of("an event")
def new_event(
    handlers: Handlers,
    subscribed: Subscribed,
    type: str,
    payload: object = None,
    *,
    tenant: str | None = None,
    key: str | None = None,
    correlation_id: str | None = None,
    headers: Mapping[str, object] | None = None,
    id: UUID | None = None,
) -> NewEvent:
    """An event to publish, checked. Inside a handler it inherits the tenant and correlation id of the running job.

    The payload must fit every subscriber that this code knows; for the others it is checked when their jobs run.
    """
    parent = CURRENT_JOB.get()
    # Left out, not None, so that NewEvent makes an id of its own.
    named_id = {} if id is None else {"id": id}
    event = NewEvent(
        type=type,
        payload=encode({} if payload is None else payload),
        tenant=tenant if tenant is not None else parent.tenant if parent else "",
        key=key,
        correlation_id=correlation_id if correlation_id not in (None, "") else parent.correlation_id if parent else "",
        headers=encoded_headers(headers),
        **named_id,
    )
    for kind in subscribed.kinds_of(event.type):
        handlers.encode_payload(kind, payload)
    return event


def publish_statement(schema: str, event: NewEvent) -> Statement[Published]:
    """Publishes in the caller's transaction: commit makes the jobs visible, rollback leaves nothing."""
    return Statement.in_text(
        statement("publish", schema),
        publish_parameters(event),
        partial(_published, event.id),
        "app.publish_statement(type, payload)",
    )


def _published(event_id: UUID, rows: Rows) -> Published:
    return Published(event_id, tuple(event_jobs(rows)))
