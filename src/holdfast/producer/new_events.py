"""Builds events from the arguments of a producer."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from holdfast.domain.event import NewEvent
from holdfast.domain.handlers import CURRENT_JOB, Handlers
from holdfast.domain.json_text import encode
from holdfast.domain.options import options_of
from holdfast.events.subscriptions import Subscribed
from holdfast.producer.arguments import encoded_headers
from holdfast.store.events import EventJob


@dataclass(frozen=True, slots=True)
class Published:
    """The jobs that an event made: one for each matching subscription, ordered by name, or none.

    With a key, jobs that already existed keep the event that made them, which has a different ID.
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
    """Build and check an event. Inside a handler it inherits the tenant and correlation ID of the running job.

    The payload must fit every subscriber in this code; for other subscribers it is checked when their jobs run.
    """
    parent = CURRENT_JOB.get()
    # Omitted instead of None, so NewEvent generates an ID.
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
