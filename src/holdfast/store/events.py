"""What a store promises about events and subscriptions; `contract.py` has the verbs of jobs.

A subscription says that each event of some types makes one job of a kind. It is kept in the store, so that whoever
publishes need not know who listens.
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
    """`name` is the kind of the jobs that it makes. `max_attempts` is None for as many as their handler says."""

    name: str
    pattern: str
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        # A subscription that makes no valid job would fail everybody who publishes, so it is refused here.
        check_name("subscription", self.name)
        check_pattern(self.pattern)
        check_name("queue", self.queue)
        if not isinstance(self.priority, int) or isinstance(self.priority, bool) or self.priority not in PRIORITIES:
            raise InvalidInput(f"priority: {self.priority!r} is not a number from 0 (most urgent) to 9")
        if self.max_attempts is not None:
            check_attempts(self.max_attempts)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription as the store has it. `updated_at` is when it became what it is now."""

    name: str
    pattern: str
    queue: str
    priority: int
    max_attempts: int | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class EventJob:
    """What an event became for one subscription: a new job, or with a key the one that was there."""

    subscription: str
    id: UUID
    is_new: bool


class EventStore(Protocol):
    async def declare(self, subscriptions: Sequence[NewSubscription]) -> None:
        """Add what is new; change what differs. Idempotent and cheap, for every start of every process.

        Events that are published after this has committed are seen, earlier ones are not.
        """

    async def remove(self, name: str) -> bool:
        """No more jobs for it; those that it made stay. False if there is none of that name."""

    async def publish(self, event: NewEvent) -> list[EventJob]:
        """One job for each subscription whose pattern matches, all or none, by name.

        Each has the event's payload, tenant, correlation id and headers, and the header `holdfast.event`. With a key,
        a subscription that has a job with that key and tenant gets no other.
        """

    async def list(self) -> list[Subscription]:
        """All of them, by name."""
