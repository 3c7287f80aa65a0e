"""A worker's settings. They are read from the environment by settings.py, or given in code."""

import os
from dataclasses import dataclass
from datetime import timedelta

from holdfast.domain.errors import InvalidInput
from holdfast.domain.job import check_name
from holdfast.domain.limits import CLAIM_BYTES, at_least, check_concurrency, check_lease, check_poll, check_renewal
from holdfast.store.contract import Shard
from holdfast.worker.child import ProcessLimits

POLLS_WHEN_TOLD = 3
"""How many poll intervals an idle worker waits at most if producers notify it of new work, unless configured."""
POLLS_IN_A_CROWD = 10


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """`queues` empty means the queues of the registered handlers."""

    concurrency: int = 32
    queues: tuple[str, ...] = ()
    lease: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(seconds=1)
    idle_backoff_max: timedelta | None = None
    shutdown: timedelta = timedelta(seconds=30)
    most_ahead: int = 2000
    claim_max: int | None = None
    claim_bytes: int = CLAIM_BYTES
    renew: timedelta | None = None
    shard: Shard | None = None
    processes: int | None = None
    process_jobs: int | None = None
    process_megabytes: int | None = None
    log_attempts: str | None = None
    log_tracebacks: bool | None = None
    log_blocked: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        check_concurrency(self.concurrency)
        check_lease(self.lease)
        check_poll(self.poll)
        if self.idle_backoff_max is not None and self.idle_backoff_max < self.poll:
            raise InvalidInput("idle_backoff_max: must be at least `poll`, the interval that it extends")
        at_least("most_ahead", self.most_ahead, 0)
        for name in ("claim_max", "claim_bytes", "processes", "process_jobs", "process_megabytes"):
            value = getattr(self, name)
            if value is not None:
                at_least(name, value, 1)
        if self.renew is not None:
            check_renewal(self.lease, self.renew)
        for queue in self.queues:
            check_name("queue", queue)

    @property
    def renew_at(self) -> float:
        """The share of a lease after which it is renewed."""
        return 1 / 3 if self.renew is None else self.renew / self.lease

    @property
    def longest_wait(self) -> timedelta:
        """The longest time between two looks of a worker that has nothing to do."""
        return POLLS_WHEN_TOLD * self.poll if self.idle_backoff_max is None else self.idle_backoff_max

    @property
    def longest_wait_in_a_crowd(self) -> timedelta:
        """The same for a worker among many that can take the same jobs."""
        return POLLS_IN_A_CROWD * self.poll if self.idle_backoff_max is None else self.idle_backoff_max

    @property
    def process_limits(self) -> ProcessLimits:
        most = min(self.processes or _cores(), self.concurrency)
        return ProcessLimits(most, self.process_jobs, self.process_megabytes)

    @property
    def rescue_every(self) -> timedelta:
        return min(max(self.lease / 3, timedelta(milliseconds=200)), timedelta(seconds=10))


def _cores() -> int:
    """The cores that this process may use, if the system reports them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
