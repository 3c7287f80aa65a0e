"""Subscriptions to events: `app.subscriptions` and the types it returns."""

from holdfast.events.subscriptions import Subscriptions
from holdfast.store.events import EventJob, Subscription

__all__ = ["EventJob", "Subscription", "Subscriptions"]
