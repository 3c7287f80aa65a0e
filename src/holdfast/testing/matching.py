"""Compares jobs with a test's expectations, and shows jobs on one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta

from holdfast.domain.duration import to_text
from holdfast.domain.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, Job
from holdfast.domain.json_text import decode, encode

_CLOSE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A field that is None is not compared. Payload and headers are compared only in the given parts."""

    kind: str | None = None
    payload: object = None
    queue: str | None = None
    tenant: str | None = None
    key: str | None = None
    priority: int | None = None
    delay: timedelta | None = None
    headers: Mapping[str, object] | None = None

    def matches(self, job: Job) -> bool:
        plain = ("kind", "queue", "tenant", "key", "priority")
        return (
            all(getattr(self, name) in (None, getattr(job, name)) for name in plain)
            and (self.payload is None or is_part_of(_plain(self.payload), job.payload))
            and (self.headers is None or is_part_of(_plain(self.headers), job.headers or {}))
            and (self.delay is None or abs(_delay(job) - self.delay) < _CLOSE)
        )

    def __str__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        parts = [self.kind or "any kind"]
        if self.payload is not None:
            parts.append(f"with {encode(self.payload)}")
        if self.delay is not None:
            given["delay"] = to_text(self.delay)
        skipped = ("kind", "payload")
        parts += [f"{name}={value!r}" for name, value in given.items() if value is not None and name not in skipped]
        return " ".join(parts)


def is_part_of(expected: object, value: object) -> bool:
    """Whether `value` has everything expected. Objects may have more; lists must have the same length."""
    match expected, value:
        case Mapping(), Mapping():
            return all(name in value and is_part_of(part, value[name]) for name, part in expected.items())
        case list(), list():
            return len(expected) == len(value) and all(map(is_part_of, expected, value))
        case _:
            return (type(expected) is type(value) and expected == value) or _same_number(expected, value)


def listed(jobs: Sequence[Job]) -> str:
    return "\n".join(f"  {shown(job)}" for job in jobs) or "  nothing"


def shown(job: Job) -> str:
    """Show kind and payload, and other fields only if they differ from the default."""
    notes = []
    if job.queue != DEFAULT_QUEUE:
        notes.append(f"queue={job.queue!r}")
    if job.priority != DEFAULT_PRIORITY:
        notes.append(f"priority={job.priority}")
    if job.tenant:
        notes.append(f"tenant={job.tenant!r}")
    if job.key is not None:
        notes.append(f"key={job.key!r}")
    if _delay(job) > _CLOSE:
        notes.append(f"delay={to_text(_delay(job))!r}")
    if job.headers:
        notes.append(f"headers={encode(job.headers)}")
    return " ".join([job.kind, encode(job.payload), *notes])


def _delay(job: Job) -> timedelta:
    """The job's delay; zero for a job that has ended, because its `run_at` is gone."""
    return timedelta(0) if job.run_at is None else job.run_at - job.created_at


def _plain(value: object) -> object:
    """The value as the store would have it: models and dataclasses as objects, times as text."""
    return decode(encode(value))


def _same_number(expected: object, value: object) -> bool:
    numbers = isinstance(expected, int | float) and isinstance(value, int | float)
    return numbers and not isinstance(expected, bool) and not isinstance(value, bool) and expected == value
