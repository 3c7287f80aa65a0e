"""What a job is: as it is enqueued, while it is leased, and as a person reads it.

Values only. What may happen to a job is in lifecycle.py, where jobs live in store/.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Self
from uuid import UUID

from uuid_utils.compat import uuid7

from holdfast.domain.duration import to_aware, to_timedelta
from holdfast.domain.errors import InvalidInput, shown
from holdfast.domain.json_text import Json, decode, readable

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
PRIORITIES = range(10)
ATTEMPTS = range(1, 1001)

# Key, tenant and kind make one entry of an index, which PostgreSQL cannot make longer than 2,704 bytes.
_LONGEST_KEY_BYTES = 2_500
_LONGEST = {"kind": 200, "queue": 100, "tenant": 200, "key": 500, "correlation_id": 200}
_KNOWN_NAMES = 1024
"""A producer has few kinds and queues and says them over and over. A tenant or key too many is only checked again."""


class JobState(StrEnum):
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    CANCELED = "canceled"

    @property
    def is_final(self) -> bool:
        return self not in _LIVE

    @property
    def is_dead_letter(self) -> bool:
        return self in _DEAD_LETTERS


_LIVE = frozenset({JobState.READY, JobState.RUNNING})
_DEAD_LETTERS = frozenset({JobState.FAILED, JobState.DEAD})


class IfExists(StrEnum):
    """What to do when a job with the same key is there."""

    KEEP = "keep"
    REPLACE = "replace"

    @classmethod
    def of(cls, value: object) -> Self:
        if type(value) is cls:
            return value
        found = next((each for each in cls if isinstance(value, str) and each == value), None)
        if found is None:
            raise InvalidInput(f"if_exists: {shown(value)} is not known; use {' or '.join(cls)}")
        return found


_KEEP = IfExists.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be enqueued. Everything that could be refused is refused here, before a transaction begins."""

    kind: str
    payload: Json
    id: UUID = field(default_factory=uuid7)
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    delay: timedelta | None = None
    run_at: datetime | None = None
    tenant: str = ""
    correlation_id: str = ""
    max_attempts: int | None = None
    key: str | None = None
    if_exists: IfExists = IfExists.KEEP
    window: timedelta | None = None
    headers: Json | None = None

    def __post_init__(self) -> None:
        check_id(self.id)
        check_name("kind", self.kind)
        check_name("queue", self.queue)
        if not isinstance(self.payload, str):
            raise _no_json_text("payload", self.payload)
        if self.headers is not None and not isinstance(self.headers, str):
            raise _no_json_text("headers", self.headers)
        if self.tenant != "":
            check_name("tenant", self.tenant)
        if self.key is not None or self.window is not None or self.if_exists is not _KEEP:
            self._check_key()
        if self.correlation_id != "":
            check_name("correlation_id", self.correlation_id)
        else:
            object.__setattr__(self, "correlation_id", str(self.id))
        if not isinstance(self.priority, int) or isinstance(self.priority, bool) or self.priority not in PRIORITIES:
            raise InvalidInput(f"priority: {shown(self.priority)} is not a number from 0 (most urgent) to 9")
        if self.max_attempts is not None:
            check_attempts(self.max_attempts)
        if self.delay is not None and self.run_at is not None:
            raise InvalidInput("give a delay or a run_at, not both")
        if self.delay is not None:
            object.__setattr__(self, "delay", to_timedelta(self.delay, "delay"))
        if self.run_at is not None:
            object.__setattr__(self, "run_at", to_aware(self.run_at, "run_at"))

    def _check_key(self) -> None:
        object.__setattr__(self, "if_exists", IfExists.of(self.if_exists))
        if self.window is not None:
            object.__setattr__(self, "window", to_timedelta(self.window, "window"))
            if not self.window:
                raise InvalidInput("window: is zero; give the time for which the key is to be held, or leave it out")
            if self.if_exists is IfExists.REPLACE:
                raise InvalidInput('give if_exists="replace" or a window, not both')
        if self.key is not None:
            check_name("key", self.key)
            size = len((self.tenant + self.kind + self.key).encode())
            if size > _LONGEST_KEY_BYTES:
                raise InvalidInput(
                    f"key: {size:,} bytes with its tenant and kind are over the limit of {_LONGEST_KEY_BYTES:,}"
                )
        elif self.window is not None:
            raise InvalidInput("window needs a key; give one with key=")
        elif self.if_exists is not IfExists.KEEP:
            raise InvalidInput(f'if_exists="{self.if_exists}" needs a key; give one with key=')


class Lease(NamedTuple):
    """The right of one claim to one job. `id` and `claim` name it for ever (claim.py); `fence` rises with each claim of
    the job, and is for the outside world."""

    id: UUID
    fence: int
    claim: UUID


class LeasedJob(NamedTuple):
    """A job as its claim returned it. A tuple, because a worker makes tens of thousands of them in a second."""

    lease: Lease
    kind: str
    queue: str
    priority: int
    payload: Json
    headers: Json | None
    tenant: str
    correlation_id: str
    attempt: int
    losses: int
    max_attempts: int | None
    created_at: datetime
    row: str | None = None
    """The mapping and the key of the application's row that this job is; None for a job of Holdfast's own."""

    @property
    def id(self) -> UUID:
        return self.lease.id


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """Why an attempt did not succeed. `attempt` and `at` are added by the store, from its own clock."""

    code: str
    type: str = ""
    message: str = ""
    traceback: str = ""

    @property
    def summary(self) -> str:
        """One line: a KeyError's message alone, for example, would be only the key."""
        return " ".join(f"{self.type}: {self.message}".split())

    def as_dict(self) -> dict[str, str]:
        return {"code": self.code, "type": self.type, "message": self.message, "traceback": self.traceback}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as a person reads it, in any state."""

    id: UUID
    kind: str
    queue: str
    priority: int
    state: JobState
    payload: Json
    headers: Json | None
    tenant: str
    correlation_id: str
    key: str | None
    attempt: int
    losses: int
    max_attempts: int | None
    created_at: datetime
    run_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    fence: int | None = None
    holder: UUID | None = None
    lease_until: datetime | None = None
    cancel_requested: bool = False
    result: Json | None = None
    progress: Json | None = None
    errors: tuple[Json, ...] = ()
    suspicion: int = 0
    """Lost leases that may mean that the job kills its workers; from 2 on it runs alone."""

    @property
    def value(self) -> Any:  # noqa: ANN401
        """What the handler returned, as JSON knows it; None if it returned nothing or did not succeed."""
        return None if self.result is None else decode(self.result)

    @property
    def last_error(self) -> JobError | None:
        """Why the newest attempt that failed did so. A job may have succeeded since."""
        if not self.errors:
            return None
        kept = decode(self.errors[-1])
        if not isinstance(kept, dict):
            # An application may keep errors of its own in its table.
            return JobError(code="", message=str(kept))
        return JobError(**{name: str(kept.get(name) or "") for name in ("code", "type", "message", "traceback")})

    def as_dict(self) -> Mapping[str, object]:
        """For `--json` and other machines: JSON values decoded, times in ISO 8601."""
        values: dict[str, object] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            match name, value:
                case (("payload" | "headers" | "result" | "progress"), str()):
                    values[name] = readable(value)
                case "errors", _:
                    values[name] = [readable(error) for error in value]
                case _, datetime():
                    values[name] = value.isoformat()
                case _, UUID():
                    values[name] = str(value)
                case _:
                    values[name] = value
        return values


def check_name(field_name: str, value: object) -> str:
    """Queue, kind, tenant and key names: text that can be stored, shown and compared without surprises."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field_name}: {shown(value)} is not text")
    _check_text(field_name, value)
    return value


@lru_cache(_KNOWN_NAMES)
def _check_text(field_name: str, value: str) -> None:
    longest = _LONGEST.get(field_name, 200)
    if not value:
        raise InvalidInput(f"{field_name}: is empty; give it at least one character")
    if len(value) > longest:
        raise InvalidInput(f"{field_name}: {len(value)} characters are over the limit of {longest}")
    if not value.isprintable():
        raise InvalidInput(f"{field_name}: {value!r} contains a control character or another that cannot be shown")


def _no_json_text(field_name: str, value: object) -> InvalidInput:
    return InvalidInput(f"{field_name}: {type(value).__name__} is not JSON text; app.job() makes it of any value")


def check_id(value: object) -> UUID:
    if not isinstance(value, UUID):
        raise InvalidInput(f"id: {shown(value)} is not a UUID; pass a uuid.UUID")
    return value


def check_attempts(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in ATTEMPTS:
        raise InvalidInput(f"attempts: {shown(value)} is not a number from {ATTEMPTS[0]} to {ATTEMPTS[-1]}")
    return value


def to_id(value: object) -> UUID:
    """The id of a job, which may be text: that is how requests and log lines have it."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise InvalidInput(f"job id: {shown(value)} is not a UUID; pass the id that enqueue returned") from None


def to_ids(values: object) -> list[UUID]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput("ids: give a list, also for one job: [id]")
    return [to_id(value) for value in values]
