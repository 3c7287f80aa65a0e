"""An event's job as a message of AMQP."""

from typing import TYPE_CHECKING

from holdfast.domain.errors import Permanent
from holdfast.domain.event import EVENT_HEADER, PublishedEvent
from holdfast.domain.handlers import RunningJob
from holdfast.domain.json_text import Json, encode

if TYPE_CHECKING:
    from aio_pika.abc import AbstractMessage, HeadersType

# The limits of AMQP 0-9-1 for a text that is a property, and for the name of a header.
_LONGEST_PROPERTY_BYTES = 255
_LONGEST_NAME_BYTES = 128
# Further addresses to RabbitMQ. For a text it closes the channel, and a list would send the message to queues that
# nobody bound for it.
_ROUTING_HEADERS = frozenset({"CC", "BCC"})


def event_of(job: RunningJob[Json]) -> PublishedEvent:
    if job.event is None:
        raise Permanent("NOT_AN_EVENT", "the job was not made by an event; publish one instead of enqueuing this kind")
    return job.event


def message_of(job: RunningJob[Json]) -> "AbstractMessage":
    """The payload as it was published, the rest in properties and headers."""
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
    """Those of the relay, and those of the event. One of the event that has a name of the relay's gets another."""
    own = {
        "tenant": job.tenant,
        "correlation_id": job.correlation_id,
        "published_at": event.as_header()["published_at"],
        "job_id": str(job.id),
    }
    given = {name: _header(name, value) for name, value in job.headers.items() if name != EVENT_HEADER}
    return {**{f"event.{name}" if name in own else name: value for name, value in given.items()}, **own}


def _header(name: str, value: object) -> str:
    """Text as it is and everything else as JSON: AMQP has numbers of its own, which would round some of ours."""
    if not _fits(name, _LONGEST_NAME_BYTES):
        raise Permanent(
            "NOT_RELAYABLE", f"the header {name[:20]!r}… has a name longer than {_LONGEST_NAME_BYTES} bytes"
        )
    if name in _ROUTING_HEADERS:
        raise Permanent("NOT_RELAYABLE", f"the header {name!r} is an address to RabbitMQ; publish it by another name")
    return value if isinstance(value, str) else encode(value, name="headers")


def _fits(text: str, most: int) -> bool:
    return len(text.encode()) <= most
