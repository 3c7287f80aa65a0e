"""A kind of job: its name, payload type and result type. Producers and workers share this one value.

Neighbors: handlers.py has the functions that run jobs of a kind, and producer/ enqueues them.
"""

import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Generic, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import to_json
from typing_extensions import TypeVar

from holdfast.domain.dead_job import DeadJobReader, reader_of
from holdfast.domain.errors import HandlerSignal, InvalidInput
from holdfast.domain.job import DEFAULT_QUEUE, check_name
from holdfast.domain.json_text import Json, decode, encode
from holdfast.domain.versions import FIRST_VERSION, check_version

Payload = TypeVar("Payload", default=Any)
Result = TypeVar("Result", default=Any, covariant=True)

Reader = TypeAdapter[Any] | DeadJobReader
NOTHING = type(None)
_EMPTY = Json("{}")


@dataclass(frozen=True, slots=True, init=False)
class Kind(Generic[Payload, Result]):
    """`Kind("invoice.send", Invoice, returns=Sent)`: pass the same one to `@app.handler` and to `app.enqueue`.

    Without a payload type, its jobs have no payload; without `returns`, they have no result. They go to `queue`.
    """

    name: str
    payload: Any
    returns: Any
    queue: str
    version: int
    read_payload: Callable[[Json], Payload] = field(repr=False, compare=False)
    """Returns the typed payload. Raises pydantic's ValidationError if it does not fit."""
    _payload_adapter: Reader | None = field(repr=False, compare=False)
    _result_adapter: Reader | None = field(repr=False, compare=False)

    @overload
    def __init__(self: "Kind[None, None]", name: str, *, queue: str = ..., version: int = ...) -> None: ...

    @overload
    def __init__(
        self: "Kind[None, Result]", name: str, *, returns: type[Result], queue: str = ..., version: int = ...
    ) -> None: ...

    @overload
    def __init__(
        self: "Kind[Payload, None]", name: str, payload: type[Payload], *, queue: str = ..., version: int = ...
    ) -> None: ...

    @overload
    def __init__(
        self, name: str, payload: type[Payload], *, returns: type[Result], queue: str = ..., version: int = ...
    ) -> None: ...

    # A type checker may know only that `A | B` is a union.
    @overload
    def __init__(
        self: "Kind[Any, Any]",
        name: str,
        payload: type[Any] | UnionType | None = ...,
        *,
        returns: type[Any] | UnionType | None = ...,
        queue: str = ...,
        version: int = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        payload: Any = NOTHING,
        *,
        returns: Any = NOTHING,
        queue: str = DEFAULT_QUEUE,
        version: int = FIRST_VERSION,
    ) -> None:
        check_name("kind", name)
        payload_adapter = _adapter(f"payload type of {name!r}", payload)
        values = {
            "name": name,
            "payload": NOTHING if payload is None else payload,
            "returns": NOTHING if returns is None else returns,
            "queue": check_name("queue", queue),
            "version": check_version(version),
            "read_payload": _reader(payload, payload_adapter),
            "_payload_adapter": payload_adapter,
            "_result_adapter": _adapter(f"result type of {name!r}", returns),
        }
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    def __reduce__(self) -> tuple[object, ...]:
        # The type adapters cannot be pickled.
        return _made, (self.name, self.payload, self.returns, self.queue, self.version)

    @classmethod
    def inferred(cls, name: str, payload: Any, returns: Any, *, queue: str, version: int) -> "Kind[Any, Any]":  # noqa: ANN401
        """Create a kind from annotations. If the result type cannot be checked, results are plain JSON."""
        result = _without_signals(returns)
        try:
            _adapter("result", result)
        except (InvalidInput, NameError):
            result = Any
        return Kind(name, payload, returns=result, queue=queue, version=version)

    def encode_payload(self, payload: object) -> Json:
        """The payload as JSON text, checked against the type; None becomes an empty object."""
        if self.payload is NOTHING:
            if payload is not None:
                raise InvalidInput(f"payload of {self.name!r}: the kind takes none; give the kind a payload type")
            return _EMPTY
        text = _EMPTY if payload is None else encode(payload)
        if self._payload_adapter is not None and self.payload is not object:
            try:
                self._payload_adapter.validate_json(text)
            except ValidationError as error:
                raise InvalidInput(f"payload of {self.name!r}: {describe_validation(error)}") from error
        return text

    def read_result(self, value: object) -> Result:
        """The typed form of `job.result`."""
        if self._result_adapter is None:
            # This includes kinds without a result type, because their handlers may pass a result to `finish_in`.
            result: Any = value
        else:
            try:
                # Validated as JSON, not as a Python value: strict types accept times and ids as text only from JSON.
                result = self._result_adapter.validate_json(to_json(value).decode())
            except ValidationError as error:
                raise InvalidInput(f"result of {self.name!r}: {describe_validation(error, 'value')}") from error
        typed: Result = result
        return typed


def _made(name: str, payload: Any, returns: Any, queue: str, version: int) -> Kind[Any, Any]:  # noqa: ANN401
    return Kind(name, payload, returns=returns, queue=queue, version=version)


def encode_payload(kind: Kind[Any, Any] | None, payload: object) -> Json:
    """The payload as JSON text, checked if the kind is known; None becomes an empty object."""
    return encode({} if payload is None else payload) if kind is None else kind.encode_payload(payload)


def kind_name(kind: Kind[Any, Any] | str) -> str:
    return kind.name if isinstance(kind, Kind) else kind


def read_payload(type: Any, text: Json) -> Any:  # noqa: ANN401
    """Like `Kind.read_payload`, where only the type is known, as in a child process."""
    return _reader(type, _adapter("payload", type))(text)


def describe_validation(error: ValidationError, whole: str = "payload") -> str:
    """The invalid fields and their paths, in one line."""
    problems = []
    for problem in error.errors(include_url=False, include_input=False)[:5]:
        path = ".".join(str(part) for part in problem["loc"]) or f"(whole {whole})"
        problems.append(f"{path}: {problem['msg']}")
    return "; ".join(problems)


def _reader(type: Any, adapter: Reader | None) -> Callable[[Json], Any]:  # noqa: ANN401
    if isinstance(adapter, TypeAdapter):
        # The adapter's own method checks options that we do not set, for longer than it takes to read a small payload.
        validate: Callable[[Json], Any] = adapter.validator.validate_json
        return validate
    if adapter is not None:
        return adapter.validate_json
    if type is Json:
        return str
    return _read_nothing if type in (None, NOTHING) else decode


def _read_nothing(text: Json) -> None:
    """The payload of a kind that has none."""


def _adapter(what: str, type: Any) -> Reader | None:  # noqa: ANN401
    """The reader for a type, or None if there is nothing to check: no payload, any JSON, or unparsed JSON text."""
    if type in (None, NOTHING, Any, Json):
        return None
    try:
        return reader_of(type)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise InvalidInput(
            f"{what}: {type!r} cannot be checked; use a dataclass, a pydantic model, a TypedDict or dict "
            f"({str(error).splitlines()[0]})"
        ) from error


def _without_signals(returns: Any) -> Any:  # noqa: ANN401
    """Remove signals such as Snooze: a handler may return them, but they are not results."""
    if typing.get_origin(returns) not in (typing.Union, UnionType):
        return returns
    kept = [
        each for each in typing.get_args(returns) if not (isinstance(each, type) and issubclass(each, HandlerSignal))
    ]
    return typing.Union[tuple(kept)] if kept else NOTHING  # noqa: UP007 - the members are only known at run time
