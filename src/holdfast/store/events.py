"""What a store promises about events and subscriptions; `contract.py` has the verbs for jobs.

A subscription says that each event of certain types creates one job of a kind. Subscriptions are kept in the store, so
publishers do not have to know who listens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import NewEvent, check_pattern
from holdfast.domain.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, PRIORITIES, check_attempts, check_name


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """`name` is the kind of the jobs it creates. If `max_attempts` is None, their handler's limit applies."""

    name: str
    pattern: str
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        # A subscription that creates invalid jobs would make every publish fail, so it is refused here.
        check_name("subscription", self.name)
        check_pattern(self.pattern)
        check_name("queue", self.queue)
        if not isinstance(self.priority, int) or isinstance(self.priority, bool) or self.priority not in PRIORITIES:
            raise InvalidInput(f"priority: {self.priority!r} is not a number from 0 (most urgent) to 9")
        if self.max_attempts is not None:
            check_attempts(self.max_attempts)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription as stored. `updated_at` is when it took its current form."""

    name: str
    pattern: str
    queue: str
    priority: int
    max_attempts: int | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class EventJob:
    """The job that one subscription got for an event: a new one, or with a key the existing one."""

    subscription: str
    id: UUID
    is_new: bool


class EventStore(Protocol):
    async def declare(self, subscriptions: Sequence[NewSubscription]) -> None:
        """Add new subscriptions and update changed ones. Idempotent and cheap enough for every process start.

        The subscriptions see events published after this has committed, but no earlier ones.
        """

    async def remove(self, name: str) -> bool:
        """Create no more jobs for it; existing jobs stay. Return False if no subscription has that name."""

    async def publish(self, event: NewEvent) -> list[EventJob]:
        """Create one job per subscription whose pattern matches, all or none, sorted by name.

        Each job has the event's payload, tenant, correlation id and headers, plus the header `holdfast.event`. With a
        key, a subscription that already has a job with that key and tenant gets no other.
        """

    async def list(self) -> list[Subscription]:
        """Return all subscriptions, sorted by name."""
