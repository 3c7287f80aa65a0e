"""Subscriptions from the application's side: what its code declares, and `app.subscriptions` for those in the store.

Neighbours: app.py offers `@app.on`, event.py has the rules of types and patterns, store/events.py keeps subscriptions.
"""

from collections.abc import Iterator

from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import patterns_of
from holdfast.domain.handlers import HandlerFunction, Handlers, name_of
from holdfast.domain.job import DEFAULT_PRIORITY
from holdfast.store.events import EventStore, NewSubscription, Subscription


class Subscribed:
    """Everything that the application's code subscribes to, by name, in its order."""

    def __init__(self) -> None:
        self._by_name: dict[str, NewSubscription] = {}

    def add(self, subscription: NewSubscription) -> None:
        if subscription.name in self._by_name:
            raise InvalidInput(
                f"subscription {subscription.name!r} is declared already; give each one a name of its own with name="
            )
        self._by_name[subscription.name] = subscription

    def kinds_of(self, type: str) -> list[str]:
        """The kinds of the jobs that an event of this type makes, as far as this code knows."""
        patterns = patterns_of(type)
        return [subscription.name for subscription in self if subscription.pattern in patterns]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[NewSubscription]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


class Subscriptions:
    """Subscriptions as they are in the store: those of code, which a process of the app puts there when it starts, and
    others.

    A name that is not known is InvalidInput.
    """

    def __init__(self, store: EventStore, subscribed: Subscribed, handlers: Handlers) -> None:
        self._store = store
        self._subscribed = subscribed
        self._handlers = handlers

    async def save(
        self,
        name: str,
        pattern: str,
        *,
        queue: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        attempts: int | None = None,
    ) -> None:
        """Let each event that matches make a job of the kind `name`, or change the subscription of that name."""
        self._check_not_declared(name, "change")
        queue = self._handlers.queue_of(name) if queue is None else queue
        await self._store.declare([NewSubscription(name, pattern, queue, priority, attempts)])

    async def remove(self, name: str) -> None:
        """Its jobs stay. One that code declares comes back with the next process that does."""
        self._check_not_declared(name, "remove")
        if not await self._store.remove(name):
            raise InvalidInput(
                f"subscription {name!r} is not known; `holdfast subscriptions list` shows those in the store"
            )

    async def list(self) -> list[Subscription]:
        """All in the store, by name."""
        return await self._store.list()

    def _check_not_declared(self, name: str, verb: str) -> None:
        if name in self._subscribed:
            raise InvalidInput(f"subscription {name!r} is declared in the app's code; {verb} it there")


def kind_for(handlers: Handlers, function: HandlerFunction, name: str | None) -> str:
    """The kind of a subscription with this function: as it is named, or the one that the function has, or its name."""
    if name is not None:
        return name
    kinds = [handler.kind for handler in handlers.of(function)]
    return kinds[0] if len(kinds) == 1 else name_of(function)
