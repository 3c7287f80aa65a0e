"""Turns an event's job into an AMQP message."""

from typing import TYPE_CHECKING

from holdfast.domain.errors import Permanent
from holdfast.domain.event import EVENT_HEADER, PublishedEvent
from holdfast.domain.handlers import RunningJob
from holdfast.domain.json_text import Json, encode

if TYPE_CHECKING:
    from aio_pika.abc import AbstractMessage, HeadersType

# The limits of AMQP 0-9-1 for a text property and for a header's name.
_LONGEST_PROPERTY_BYTES = 255
_LONGEST_NAME_BYTES = 128
# RabbitMQ treats these headers as additional routing keys. It closes the channel if they hold text, and a list would
# send the message to queues that were not bound for it.
_ROUTING_HEADERS = frozenset({"CC", "BCC"})


def event_of(job: RunningJob[Json]) -> PublishedEvent:
    if job.event is None:
        raise Permanent("NOT_AN_EVENT", "the job was not made by an event; publish one instead of enqueuing this kind")
    return job.event


def message_of(job: RunningJob[Json]) -> "AbstractMessage":
    """The payload as published, with everything else in properties and headers."""
    import aio_pika

    event = event_of(job)
    return aio_pika.Message(
        job.payload.encode(),
        message_id=str(event.id),
        type=event.type,
        timestamp=event.published_at,
        correlation_id=job.correlation_id if _fits(job.correlation_id, _LONGEST_PROPERTY_BYTES) else None,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        headers=_headers(job, event),
    )


def _headers(job: RunningJob[Json], event: PublishedEvent) -> "HeadersType":
    """The relay's headers and the event's. An event's header with the name of a relay's gets the prefix `event.`."""
    own = {
        "tenant": job.tenant,
        "correlation_id": job.correlation_id,
        "published_at": event.as_header()["published_at"],
        "job_id": str(job.id),
    }
    given = {name: _header(name, value) for name, value in job.headers.items() if name != EVENT_HEADER}
    return {**{f"event.{name}" if name in own else name: value for name, value in given.items()}, **own}


def _header(name: str, value: object) -> str:
    """Return text as it is and everything else as JSON, because AMQP's number types would round some values."""
    if not _fits(name, _LONGEST_NAME_BYTES):
        raise Permanent(
            "NOT_RELAYABLE", f"the header {name[:20]!r}… has a name longer than {_LONGEST_NAME_BYTES} bytes"
        )
    if name in _ROUTING_HEADERS:
        raise Permanent("NOT_RELAYABLE", f"the header {name!r} is an address to RabbitMQ; give it another name")
    return value if isinstance(value, str) else encode(value, name="headers")


def _fits(text: str, most: int) -> bool:
    return len(text.encode()) <= most
