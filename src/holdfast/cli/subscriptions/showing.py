"""How a subscription is shown, and how one is changed and shown again."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

from holdfast.cli.output import print_json, printable

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.events.subscriptions import Subscriptions
    from holdfast.store.events import Subscription


def change_subscription(
    app: "Holdfast", name: str, change: "Callable[[Subscriptions], Awaitable[None]]", done: str, *, as_json: bool
) -> None:
    """Change one subscription, and say that it is `done`."""
    import asyncio

    async def run() -> "Subscription | None":
        async with app:
            await change(app.subscriptions)
            found = [each for each in await app.subscriptions.list() if each.name == name]
            return found[0] if found else None

    subscription = asyncio.run(run())
    if as_json:
        print_json({"name": name, "removed": True} if subscription is None else as_dict(subscription))
    else:
        typer.echo(f"{printable(name)}  {done}")


def as_dict(subscription: "Subscription") -> dict[str, object]:
    return {
        "name": subscription.name,
        "pattern": subscription.pattern,
        "queue": subscription.queue,
        "priority": subscription.priority,
        "attempts": subscription.max_attempts,
        "created_at": subscription.created_at.isoformat(),
        "updated_at": subscription.updated_at.isoformat(),
    }
