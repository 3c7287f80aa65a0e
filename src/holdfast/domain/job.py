"""The job in its three forms: as it is enqueued, while it is leased, and as it is read back.

Values only. The state transitions are in lifecycle.py, the storage is in store/.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self
from uuid import UUID

from typing_extensions import TypeVar
from uuid_utils.compat import uuid7

from holdfast.domain.duration import to_aware, to_timedelta
from holdfast.domain.errors import InvalidInput, shown
from holdfast.domain.json_text import Json, readable

if TYPE_CHECKING:
    from holdfast.domain.kinds import Kind

Result = TypeVar("Result", default=Any, covariant=True)

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
PRIORITIES = range(10)
ATTEMPTS = range(1, 1001)

# Key, tenant and kind form one index entry, and PostgreSQL limits those to 2,704 bytes.
_LONGEST_KEY_BYTES = 2_500
_LONGEST = {"kind": 200, "queue": 100, "tenant": 200, "key": 500, "correlation_id": 200}
_KNOWN_NAMES = 1024
"""The size of the cache of checked names. A producer uses a few kinds and queues over and over; other names are just
checked again."""


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
    """What to do if a job with the same key exists."""

    KEEP = "keep"
    """Return that job, in any state."""
    KEEP_LIVE = "keep_live"
    """Return that job if it is ready or running. If it is final, a new job takes the key."""
    REPLACE = "replace"
    """Replace its work if it is ready. If it has started, a new job takes the key."""

    @classmethod
    def of(cls, value: object) -> Self:
        if type(value) is cls:
            return value
        found = next((each for each in cls if isinstance(value, str) and each == value), None)
        if found is None:
            raise InvalidInput(
                f"if_exists: {shown(value)} is not known; use {', '.join(list(cls)[:-1])} or {list(cls)[-1]}"
            )
        return found


_KEEP = IfExists.KEEP


# Not frozen, because creating a frozen instance takes twice as long, an eighth of an enqueue without the server.
@dataclass(slots=True)
class NewJob(Generic[Result]):
    """A job to enqueue. All validation happens here, before a transaction begins."""

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
    typed: "Kind[Any, Any] | None" = field(default=None, compare=False, repr=False)
    """The job's kind, if known, for reading the result."""

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
            self.correlation_id = str(self.id)
        if not isinstance(self.priority, int) or isinstance(self.priority, bool) or self.priority not in PRIORITIES:
            raise InvalidInput(f"priority: {shown(self.priority)} is not a number from 0 (most urgent) to 9")
        if self.max_attempts is not None:
            check_attempts(self.max_attempts)
        if self.delay is not None and self.run_at is not None:
            raise InvalidInput("give a delay or a run_at, not both")
        if self.delay is not None:
            self.delay = to_timedelta(self.delay, "delay")
        if self.run_at is not None:
            self.run_at = to_aware(self.run_at, "run_at")

    def __hash__(self) -> int:
        return hash(self.id)

    def _check_key(self) -> None:
        self.if_exists = IfExists.of(self.if_exists)
        if self.window is not None:
            self.window = to_timedelta(self.window, "window")
            if not self.window:
                raise InvalidInput("window: is zero; give the time for which to hold the key, or leave it out")
            if self.if_exists is not IfExists.KEEP:
                raise InvalidInput(f'give if_exists="{self.if_exists}" or a window, not both')
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
    """The right of one claim to one job. `id` and `claim` identify it forever (claim.py); `fence` rises with each claim
    of the job and is meant for external systems."""

    id: UUID
    fence: int
    claim: UUID


class LeasedJob(NamedTuple):
    """A job as its claim returned it. A tuple, because a worker creates tens of thousands of them per second."""

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
    """The mapping and key if the job is a row in the application's own table; None for a job in Holdfast's tables."""

    @property
    def id(self) -> UUID:
        return self.lease.id


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """Why an attempt did not succeed. The store adds `attempt` and `at`, a time from its own clock."""

    code: str
    type: str = ""
    message: str = ""
    traceback: str = ""
    place: str = field(default="", compare=False)
    """The location of the application's innermost frame. It is logged, but not stored."""

    @property
    def summary(self) -> str:
        """Type and message in one line. The message alone can be cryptic: for a KeyError it is just the key."""
        return " ".join(f"{self.type}: {self.message}".split())

    def as_dict(self) -> dict[str, str]:
        return {"code": self.code, "type": self.type, "message": self.message, "traceback": self.traceback}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as it is read back, in any state. JSON from the store is converted to Python values.

    If Python cannot represent a value, its JSON text is returned: producers that use SQL may have written any JSON.
    """

    id: UUID
    kind: str
    queue: str
    priority: int
    state: JobState
    payload: Any
    headers: Any
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
    result: Any = None
    """The handler's return value; None if it returned nothing or did not succeed."""
    progress: Any = None
    errors: tuple[Any, ...] = ()
    suspicion: int = 0
    """How many lost leases may mean that the job kills its workers. At 2 or more, it runs alone."""

    @classmethod
    def read(
        cls,
        *,
        payload: Json,
        headers: Json | None,
        result: Json | None = None,
        progress: Json | None = None,
        errors: Iterable[Json] = (),
        **values: Any,  # noqa: ANN401
    ) -> Self:
        """Create a job from what a store keeps, which is JSON text."""
        return cls(
            payload=readable(payload),
            headers=None if headers is None else readable(headers),
            result=None if result is None else readable(result),
            progress=None if progress is None else readable(progress),
            errors=tuple(map(readable, errors)),
            **values,
        )

    @property
    def last_error(self) -> JobError | None:
        """The error of the latest failed attempt. The job may have succeeded since."""
        if not self.errors:
            return None
        kept = self.errors[-1]
        if not isinstance(kept, dict):
            # An application's own table may contain errors in another format.
            return JobError(code="", message=str(kept))
        return JobError(**{name: str(kept.get(name) or "") for name in ("code", "type", "message", "traceback")})

    def as_dict(self) -> Mapping[str, object]:
        """The job for `--json` and other machine-readable output, with times in ISO 8601."""
        values: dict[str, object] = {}
        for name in self.__slots__:
            match getattr(self, name):
                case datetime() as time:
                    values[name] = time.isoformat()
                case UUID() as id:
                    values[name] = str(id)
                case tuple() as listed:
                    values[name] = list(listed)
                case value:
                    values[name] = value
        return values


def check_name(field_name: str, value: object) -> str:
    """Check the name of a queue, kind, tenant or key: text that can be stored, shown and compared without surprises."""
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
        raise InvalidInput(f"{field_name}: {value!r} contains a control character or another unprintable character")


def _no_json_text(field_name: str, value: object) -> InvalidInput:
    return InvalidInput(f"{field_name}: {type(value).__name__} is not JSON text; app.job() converts any value")


def check_id(value: object) -> UUID:
    if not isinstance(value, UUID):
        raise InvalidInput(f"id: {shown(value)} is not a UUID; pass a uuid.UUID")
    return value


def check_attempts(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in ATTEMPTS:
        raise InvalidInput(f"attempts: {shown(value)} is not a number from {ATTEMPTS[0]} to {ATTEMPTS[-1]}")
    return value


def to_id(value: object) -> UUID:
    """The id of a job. Text is accepted too, because that is the form in requests and log lines."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise InvalidInput(f"job id: {shown(value)} is not a UUID; pass the id that enqueue returned") from None


def to_ids(values: object) -> list[UUID]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput("ids: give a list, even for one job: [id]")
    return [to_id(value) for value in values]
