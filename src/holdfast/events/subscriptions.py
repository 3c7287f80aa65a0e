"""Subscriptions from the application's side: those its code declares, and `app.subscriptions` for those in the store.

Neighbors: app.py offers `@app.on`, event.py has the rules of types and patterns, store/events.py keeps subscriptions.
"""

from collections.abc import Iterator

from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import patterns_of
from holdfast.domain.handlers import HandlerFunction, Handlers, name_of
from holdfast.domain.job import DEFAULT_PRIORITY
from holdfast.store.events import EventStore, NewSubscription, Subscription


class Subscribed:
    """All subscriptions in the application's code, by name, in the order of declaration."""

    def __init__(self) -> None:
        self._by_name: dict[str, NewSubscription] = {}

    def add(self, subscription: NewSubscription) -> None:
        if subscription.name in self._by_name:
            raise InvalidInput(
                f"subscription {subscription.name!r} is already declared; give each one its own name with name="
            )
        self._by_name[subscription.name] = subscription

    def kinds_of(self, type: str) -> list[str]:
        """The kinds of the jobs that an event of this type makes, according to this code."""
        patterns = patterns_of(type)
        return [subscription.name for subscription in self if subscription.pattern in patterns]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[NewSubscription]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)


class Subscriptions:
    """The subscriptions in the store, declared or not. Each process of the app saves those in its code on startup.

    An unknown name raises InvalidInput.
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
        """Add or change a subscription: each event that matches `pattern` makes a job of the kind `name`."""
        self._check_not_declared(name, "change")
        queue = self._handlers.queue_of(name) if queue is None else queue
        await self._store.declare([NewSubscription(name, pattern, queue, priority, attempts)])

    async def remove(self, name: str) -> None:
        """Remove a subscription; its jobs stay. If other code declares it, the next process to do so restores it."""
        self._check_not_declared(name, "remove")
        if not await self._store.remove(name):
            raise InvalidInput(
                f"subscription {name!r} is not known; `holdfast subscriptions list` shows those in the store"
            )

    async def list(self) -> list[Subscription]:
        """All subscriptions in the store, ordered by name."""
        return await self._store.list()

    def _check_not_declared(self, name: str, verb: str) -> None:
        if name in self._subscribed:
            raise InvalidInput(f"subscription {name!r} is declared in the app's code; {verb} it there")


def kind_for(handlers: Handlers, function: HandlerFunction, name: str | None) -> str:
    """The kind of a subscription: the given name, the one kind the function handles, or the function's name."""
    if name is not None:
        return name
    kinds = [handler.kind for handler in handlers.of(function)]
    return kinds[0] if len(kinds) == 1 else name_of(function)
