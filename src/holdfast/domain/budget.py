"""Limits how many seconds and items one pass may use. A nested budget never allows more than its outer one."""

import math
import time


class Budget:
    def __init__(self, seconds: float | None = None, items: int | None = None, outer: "Budget | None" = None) -> None:
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds
        self._outer = outer
        self._items = items

    @property
    def items_left(self) -> int | None:
        """None means no limit."""
        outer = None if self._outer is None else self._outer.items_left
        if self._items is None or outer is None:
            return outer if self._items is None else self._items
        return min(self._items, outer)

    @property
    def seconds_left(self) -> float:
        """Infinity means no limit."""
        left = math.inf if self._deadline == math.inf else max(0.0, self._deadline - time.monotonic())
        return left if self._outer is None else min(left, self._outer.seconds_left)

    @property
    def is_spent(self) -> bool:
        return self.items_left == 0 or self.seconds_left == 0

    def take(self, items: int) -> None:
        if self._items is not None:
            self._items = max(0, self._items - items)
        if self._outer is not None:
            self._outer.take(items)

    def end(self) -> None:
        """Allow nothing more to begin, in this budget or one nested in it."""
        self._deadline = -math.inf

    def inner(self, seconds: float | None, items: int | None) -> "Budget":
        """A runner's share of a tick's budget."""
        return Budget(seconds, items, self)
