"""How an attempt ended, as a value. The executor returns one; lifecycle.py says what it means for the job."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.domain.job import JobError
from holdfast.domain.json_text import Json


@dataclass(frozen=True, slots=True)
class Succeeded:
    result: Json | None = None


@dataclass(frozen=True, slots=True)
class Retried:
    """Failed, may be tried again: after the handler's backoff unless `after` or `at` says otherwise."""

    error: JobError
    after: timedelta | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    after: timedelta | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Failed in a way that no further attempt can mend."""

    error: JobError


@dataclass(frozen=True, slots=True)
class Canceled:
    error: JobError


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Stopped by a shutdown or an outage, which is no fault of the job's: the attempt is given back."""

    error: JobError


Outcome = Succeeded | Retried | Snoozed | Failed | Canceled | Interrupted
