"""What a worker can be told. Read from the environment by settings.py, or given in code."""

from dataclasses import dataclass
from datetime import timedelta

from holdfast.errors import InvalidInput
from holdfast.handlers import check_lease
from holdfast.job import check_name
from holdfast.store.contract import Shard


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """`queues` empty means the queues of the registered handlers."""

    concurrency: int = 32
    queues: tuple[str, ...] = ()
    lease: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(seconds=1)
    shutdown: timedelta = timedelta(seconds=30)
    most_ahead: int = 1000
    renew: timedelta | None = None
    shard: Shard | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= 10_000:
            raise InvalidInput(f"concurrency: {self.concurrency} is not a number from 1 to 10000")
        check_lease(self.lease)
        if self.poll < timedelta(milliseconds=10):
            raise InvalidInput("poll: shorter than 10ms; that would keep the database busy with nothing")
        if self.most_ahead < 0:
            raise InvalidInput("most_ahead: is negative")
        if self.renew is not None and not timedelta(0) < self.renew <= self.lease / 2:
            raise InvalidInput("renew: give at most half the lease, so that one lost renewal does not cost it")
        for queue in self.queues:
            check_name("queue", queue)

    @property
    def renew_at(self) -> float:
        """The share of a lease after which it is renewed."""
        return 1 / 3 if self.renew is None else self.renew / self.lease

    @property
    def rescue_every(self) -> timedelta:
        return min(max(self.lease / 3, timedelta(milliseconds=200)), timedelta(seconds=10))
