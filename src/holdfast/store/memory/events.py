"""Events of the reference store: a dictionary of subscriptions, on the clock of the job store."""

import threading
from collections.abc import Sequence

from uuid_utils.compat import uuid7

from holdfast.domain.dead_job import DEATHS, patterns_of_death
from holdfast.domain.event import EVENT_HEADER, NewEvent, PublishedEvent, patterns_of
from holdfast.domain.job import Job, NewJob
from holdfast.domain.json_text import Json, decode, encode
from holdfast.store.events import EventJob, NewSubscription, Subscription
from holdfast.store.memory.store import MemoryStore


class MemoryEvents:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._subscriptions: dict[str, Subscription] = {}
        store.on_death.append(self._publish_death)

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

    def _publish_death(self, dead: Job, payload: Json) -> None:
        with self._lock:
            own = self._subscriptions.get(dead.kind)
            if own is not None and own.pattern.startswith(DEATHS):
                return
            patterns = patterns_of_death(dead.kind)
            headers = self._event_header(PublishedEvent(uuid7(), DEATHS + dead.kind, self._store.clock.read()))
            self._store.enqueue_now(
                [
                    NewJob(
                        kind=subscription.name,
                        payload=_payload_of_death(dead, payload),
                        queue=subscription.queue,
                        priority=subscription.priority,
                        tenant=dead.tenant,
                        correlation_id=dead.correlation_id,
                        max_attempts=subscription.max_attempts,
                        headers=headers,
                    )
                    for subscription in self._subscriptions.values()
                    if subscription.pattern in patterns
                ]
            )

    def _event_header(self, published: PublishedEvent) -> Json:
        return encode({EVENT_HEADER: published.as_header()}, name="headers")

    def _headers(self, event: NewEvent) -> Json:
        """The given headers as text, with the event's header at the end."""
        added = self._event_header(PublishedEvent(event.id, event.type, self._store.clock.read()))
        given = event.headers or "{}"
        return Json(f"{given[:-1]},{added[1:]}") if decode(given) else added


def _as_new(kept: Subscription) -> NewSubscription:
    return NewSubscription(kept.name, kept.pattern, kept.queue, kept.priority, kept.max_attempts)


def _payload_of_death(dead: Job, payload: Json) -> Json:
    """The same payload as in publish_deaths.sql, with the job's payload exactly as its producer wrote it."""
    error = dead.last_error
    said = encode(
        {
            "id": dead.id,
            "kind": dead.kind,
            "code": error.code if error else "",
            "message": error.message if error else "",
            "state": dead.state,
            "attempts": dead.attempt,
            "tenant": dead.tenant,
            "correlation_id": dead.correlation_id,
        }
    )
    return Json(f'{said[:-1]},"payload":{payload}}}')


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
