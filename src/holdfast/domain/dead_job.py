"""The event for a job that ended `failed` or `dead`: its type, and the payload of the jobs made for it.

Neighbors: `@app.on_dead` subscribes to it (events/deaths.py), and the statement that ends a job publishes it
(`schema/functions/publish_deaths.sql`, memory/events.py).
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, get_origin
from uuid import UUID

from pydantic import TypeAdapter, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import check_pattern, patterns_of
from holdfast.domain.job import JobState, check_name

Payload = TypeVar("Payload")

DEATHS = "holdfast.dead."
"""The prefix of these event types; the kind of the job follows."""


def _typed_or_plain(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    """Fall back to plain JSON: a payload that does not fit its type may be the reason that the job failed."""
    try:
        return validate(value)
    except ValidationError:
        return value


@dataclass(frozen=True, slots=True)
class DeadJob(Generic[Payload]):
    """A job that ended `failed` or `dead`: the payload of jobs made by `@app.on_dead`.

    `code` and `message` come from its last error. A payload that does not fit its type is plain JSON here.
    """

    id: UUID
    kind: str
    payload: Annotated[Payload, WrapValidator(_typed_or_plain)]
    code: str
    message: str
    state: JobState
    attempts: int
    tenant: str
    correlation_id: str


class DeadJobReader:
    """Reads the payload of jobs made by deaths. It may contain JSON that PostgreSQL accepts and pydantic rejects."""

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._adapter = adapter

    def validate_json(self, text: str | bytes) -> Any:  # noqa: ANN401
        try:
            return self._adapter.validate_json(text)
        except ValidationError:
            # For example lone surrogates or deeply nested arrays.
            return self._adapter.validate_python(json.loads(text))


def reader_of(payload_type: Any) -> TypeAdapter[Any] | DeadJobReader:  # noqa: ANN401
    """The reader for a handler's payload type."""
    adapter = TypeAdapter(payload_type)
    return DeadJobReader(adapter) if DeadJob in (payload_type, get_origin(payload_type)) else adapter


def pattern_of_deaths(kinds: str) -> str:
    """The pattern for deaths of one kind, of all kinds with a prefix (`invoice.*`) or of every kind (`*`)."""
    check_name("kind", kinds)
    try:
        return check_pattern(DEATHS + kinds)
    except InvalidInput:
        raise InvalidInput(
            f"on_dead: {kinds!r} is not a kind made of words separated by dots, such as invoice.send or invoice.*"
        ) from None


def patterns_of_death(kind: str) -> Collection[str]:
    """Every pattern that matches the death of a job of this kind. `*` and `holdfast.*` are not among them."""
    return [DEATHS + pattern for pattern in patterns_of(kind)]
