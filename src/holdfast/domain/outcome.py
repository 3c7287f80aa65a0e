"""How an attempt ended, as a value. The executor returns it; lifecycle.py decides what it means for the job."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.domain.job import JobError
from holdfast.domain.json_text import Json


@dataclass(frozen=True, slots=True)
class Succeeded:
    result: Json | None = None


@dataclass(frozen=True, slots=True)
class Retried:
    """Failed, but may be retried: after the handler's backoff, unless `after` or `at` is set."""

    error: JobError
    after: timedelta | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    after: timedelta | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Failed in a way that a retry cannot fix."""

    error: JobError


@dataclass(frozen=True, slots=True)
class Canceled:
    error: JobError


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Stopped by a shutdown or an outage. This is not the job's fault, so the attempt does not count."""

    error: JobError


@dataclass(frozen=True, slots=True)
class Unstarted:
    """The worker could not start the handler. This is not the job's fault, so the attempt does not count."""

    error: JobError
    """For the worker's log. The job's own errors would be pushed out by one that can repeat all night."""


Outcome = Succeeded | Retried | Snoozed | Failed | Canceled | Interrupted | Unstarted
