"""Events as they are published and as subscribers' jobs carry them, and the patterns that match an event type.

Values and rules only. Subscriptions are kept in store/; `holdfast.publish` has the same rules in SQL.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self
from uuid import UUID

from uuid_utils.compat import uuid7

from holdfast.domain.errors import InvalidInput, shown
from holdfast.domain.job import check_id, check_name
from holdfast.domain.json_text import Json

EVENT_HEADER = "holdfast.event"
"""The job header that names the event the job was made for: an object with `id`, `type` and `published_at`."""

LARGEST_HEADERS = 16 * 1024

# The limit for an AMQP routing key, so that every event can be relayed.
_LONGEST_TYPE_BYTES = 255
_RESERVED = "holdfast."
_TYPE = re.compile(r"(?:[^.*]+\.)*[^.*]+")
_PATTERN = re.compile(r"(?:[^.*]+\.)*(?:[^.*]+|\*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to publish. All validation happens here, before a transaction begins."""

    type: str
    payload: Json
    id: UUID = field(default_factory=uuid7)
    tenant: str = ""
    key: str | None = None
    correlation_id: str = ""
    headers: Json | None = None

    def __post_init__(self) -> None:
        check_event_type(self.type)
        check_id(self.id)
        if self.tenant != "":
            check_name("tenant", self.tenant)
        if self.key is not None:
            check_name("key", self.key)
        if self.correlation_id != "":
            check_name("correlation_id", self.correlation_id)
        else:
            object.__setattr__(self, "correlation_id", str(self.id))


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """The event that a job was made for. All jobs of one `publish` share its id; the time is from the store's clock."""

    id: UUID
    type: str
    published_at: datetime

    def as_header(self) -> dict[str, str]:
        at = self.published_at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {"id": str(self.id), "type": self.type, "published_at": at}

    @classmethod
    def of(cls, headers: Mapping[str, object]) -> Self | None:
        """The event in these headers, or None if the job was enqueued in another way or the header is malformed."""
        match headers.get(EVENT_HEADER):
            case {"id": str(id), "type": str(type), "published_at": str(published_at)}:
                try:
                    at = datetime.fromisoformat(published_at)
                    return cls(UUID(id), type, at) if at.tzinfo is not None else None
                except ValueError:
                    return None
            case _:
                return None


def check_event_type(type: object) -> str:
    """Accept words separated by dots, such as `invoice.paid`."""
    _check_text("event type", type)
    if not _TYPE.fullmatch(str(type)):
        raise InvalidInput(f"event type: {type!r} is not made of words separated by dots, such as invoice.paid")
    if str(type).startswith(_RESERVED):
        raise InvalidInput(f"event type: {type!r} begins with {_RESERVED!r}, which is reserved for the store")
    return str(type)


def check_pattern(pattern: object) -> str:
    """Accept a type, a prefix such as `invoice.*`, or `*` for all types."""
    _check_text("pattern", pattern)
    if not _PATTERN.fullmatch(str(pattern)):
        raise InvalidInput(f"pattern: {pattern!r} is not valid; write a type (invoice.paid), a prefix (invoice.*) or *")
    return str(pattern)


def patterns_of(type: str) -> list[str]:
    """Every pattern that matches the type. There are only a few, so a store can find subscriptions by equality."""
    words = type.split(".")
    prefixes = [".".join([*words[:count], "*"]) for count in range(len(words))]
    return [*prefixes, type]


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidInput(f"{name}: {shown(value)} is not text")
    if not value.isprintable():
        raise InvalidInput(f"{name}: {value!r} contains a control character or another unprintable character")
    size = len(value.encode())
    if size > _LONGEST_TYPE_BYTES:
        raise InvalidInput(f"{name}: {size} bytes are over the limit of {_LONGEST_TYPE_BYTES}")
