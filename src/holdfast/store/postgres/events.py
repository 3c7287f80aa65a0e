"""Events on PostgreSQL: the subscriptions, and publishing in a separate transaction."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from holdfast.domain.connections import text_of
from holdfast.domain.crash_points import around
from holdfast.domain.errors import KeyLocked
from holdfast.domain.event import NewEvent
from holdfast.store.events import EventJob, NewSubscription, Subscription
from holdfast.store.postgres.driver import LeaseLocked
from holdfast.store.postgres.store import PostgresStore


class PostgresEvents:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def declare(self, subscriptions: Sequence[NewSubscription]) -> None:
        if subscriptions:
            await self._store.fetch(
                "subscription_declare",
                [subscription.name for subscription in subscriptions],
                [subscription.pattern for subscription in subscriptions],
                [subscription.queue for subscription in subscriptions],
                [subscription.priority for subscription in subscriptions],
                [subscription.max_attempts for subscription in subscriptions],
            )

    async def remove(self, name: str) -> bool:
        return bool(await self._store.fetch("subscription_remove", name))

    @around("publish")
    async def publish(self, event: NewEvent) -> list[EventJob]:
        try:
            has_key = event.key is not None
            rows = await self._store.fetch_for_producer("publish", *publish_parameters(event), with_keys=has_key)
            return event_jobs(rows)
        except LeaseLocked as error:
            if event.key is None:
                raise
            raise KeyLocked.of([event.key]) from error

    async def list(self) -> list[Subscription]:
        return [Subscription(**row) for row in await self._store.fetch("subscription_list")]


def event_jobs(rows: Iterable[Iterable[object]]) -> list[EventJob]:
    """Read the rows of sql/publish.sql from any driver, and sort them: the database may sort names by other rules."""
    made = [EventJob(text_of(name), UUID(text_of(id)), bool(is_new)) for name, id, is_new in rows]
    return sorted(made, key=lambda job: job.subscription)


def publish_parameters(event: NewEvent) -> tuple[object, ...]:
    """Return the parameters of sql/publish.sql."""
    return event.type, event.payload, event.tenant, event.key, event.correlation_id, event.headers, event.id
