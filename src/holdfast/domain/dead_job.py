"""The event for a job that ended `failed` or `dead`: its type, and the payload of the jobs made for it.

Neighbors: `@app.on_dead` subscribes to it (events/deaths.py), and the statement that ends a job publishes it
(`schema/functions/publish_deaths.sql`, memory/events.py).
"""

import json
import re
from collections.abc import Collection, Iterator
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
_ANY_FORM = "holdfast.dead_job"
"""Annotates a payload type other than `DeadJob` that reads such a job. Text, because it is sent to child processes."""
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')


def _typed_or_plain(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    """Fall back to plain JSON: a payload that does not fit its type may be the reason that the job failed."""
    try:
        return validate(value)
    except ValidationError:
        return value


@dataclass(frozen=True, slots=True)
class DeadJob(Generic[Payload]):
    """A job that ended `failed` or `dead`: the payload of jobs made by `@app.on_dead`.

    `code` and `message` come from its last error. A payload that does not fit its type is plain JSON here, or text if
    Python cannot represent it, such as arrays nested a thousand deep.
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

    def validate_json(self, text: str) -> Any:  # noqa: ANN401
        try:
            return self._adapter.validate_json(text)
        except ValidationError:
            # For example lone surrogates or deeply nested arrays.
            return self._adapter.validate_python(_plain(text))


def _plain(text: str) -> object:
    """The value in this text. If Python cannot represent it, the members that are to blame are left as text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {name: _plain_or_text(member) for name, member in _members(text)}


def _plain_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _members(text: str) -> Iterator[tuple[str, str]]:
    """The names and the text of the members of this JSON object."""
    depth = start = 0
    name = last = ""
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in ("]", "}"):
            depth -= 1
        if name and (token, depth) in ((",", 1), ("}", 0)):
            yield name, text[start : found.start()].strip()
        elif (token, depth) == (":", 1):
            name, start = json.loads(last), found.end()
        elif token in ("[", "{"):
            depth += 1
        last = token


def for_deaths(payload_type: Any) -> Any:  # noqa: ANN401
    """The payload type of a handler of deaths, marked so that it can read every one of them."""
    return payload_type if _is_dead_job(payload_type) else Annotated[payload_type, _ANY_FORM]


def reader_of(payload_type: Any) -> TypeAdapter[Any] | DeadJobReader:  # noqa: ANN401
    """The reader for a handler's payload type."""
    adapter = TypeAdapter(payload_type)
    is_for_deaths = _is_dead_job(payload_type) or _ANY_FORM in getattr(payload_type, "__metadata__", ())
    return DeadJobReader(adapter) if is_for_deaths else adapter


def _is_dead_job(payload_type: Any) -> bool:  # noqa: ANN401
    return DeadJob in (payload_type, get_origin(payload_type))


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
