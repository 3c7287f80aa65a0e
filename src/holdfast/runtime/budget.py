"""How much one pass may take: seconds and items. A budget inside another never allows more than the outer one."""

import math
import time


class Budget:
    def __init__(self, seconds: float | None = None, items: int | None = None, outer: "Budget | None" = None) -> None:
        self._deadline = math.inf if seconds is None else time.monotonic() + seconds
        self._outer = outer
        self.items_left = items
        """None: no limit."""

    @property
    def seconds_left(self) -> float:
        """Infinite: no limit."""
        left = max(0.0, self._deadline - time.monotonic())
        return left if self._outer is None else min(left, self._outer.seconds_left)

    @property
    def is_spent(self) -> bool:
        return self.items_left == 0 or self.seconds_left == 0

    def take(self, items: int) -> None:
        if self.items_left is not None:
            self.items_left = max(0, self.items_left - items)

    def end(self) -> None:
        """Nothing more may be begun, within this budget or one inside it."""
        self._deadline = -math.inf

    def inner(self, seconds: float | None, items: int | None) -> "Budget":
        """A runner's share of a tick's budget."""
        return Budget(seconds, items, self)
