"""Events of the reference store: a dictionary of subscriptions, by the clock of the jobs' store."""

import threading
from collections.abc import Sequence

from holdfast.domain.event import EVENT_HEADER, NewEvent, PublishedEvent, patterns_of
from holdfast.domain.job import NewJob
from holdfast.domain.json_text import Json, decode, encode
from holdfast.store.events import EventJob, NewSubscription, Subscription
from holdfast.store.memory.store import MemoryStore


class MemoryEvents:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._subscriptions: dict[str, Subscription] = {}

    async def declare(self, subscriptions: Sequence[NewSubscription]) -> None:
        with self._lock:
            now = self._store.clock.read()
            for new in subscriptions:
                kept = self._subscriptions.get(new.name)
                if kept is None or _as_new(kept) != new:
                    self._subscriptions[new.name] = Subscription(
                        name=new.name,
                        pattern=new.pattern,
                        queue=new.queue,
                        priority=new.priority,
                        max_attempts=new.max_attempts,
                        created_at=kept.created_at if kept else now,
                        updated_at=now,
                    )

    async def remove(self, name: str) -> bool:
        with self._lock:
            return self._subscriptions.pop(name, None) is not None

    async def publish(self, event: NewEvent) -> list[EventJob]:
        with self._lock:
            patterns = patterns_of(event.type)
            matching = [subscription for subscription in await self.list() if subscription.pattern in patterns]
            headers = self._headers(event)
            enqueued = await self._store.enqueue([_job(event, subscription, headers) for subscription in matching])
            return [
                EventJob(subscription.name, job.id, job.is_new)
                for subscription, job in zip(matching, enqueued, strict=True)
            ]

    async def list(self) -> list[Subscription]:
        with self._lock:
            return sorted(self._subscriptions.values(), key=lambda subscription: subscription.name)

    def _headers(self, event: NewEvent) -> Json:
        """The text that was given, with one more at its end."""
        published = PublishedEvent(event.id, event.type, self._store.clock.read())
        added = encode({EVENT_HEADER: published.as_header()}, name="headers")
        given = event.headers or "{}"
        return Json(f"{given[:-1]},{added[1:]}") if decode(given) else added


def _as_new(kept: Subscription) -> NewSubscription:
    return NewSubscription(kept.name, kept.pattern, kept.queue, kept.priority, kept.max_attempts)


def _job(event: NewEvent, subscription: Subscription, headers: Json) -> NewJob:
    return NewJob(
        kind=subscription.name,
        payload=event.payload,
        queue=subscription.queue,
        priority=subscription.priority,
        tenant=event.tenant,
        key=event.key,
        correlation_id=event.correlation_id,
        max_attempts=subscription.max_attempts,
        headers=headers,
    )
