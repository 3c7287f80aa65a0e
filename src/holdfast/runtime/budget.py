"""How much one pass may take: seconds and items. A budget inside another never allows more than the outer one."""

import time
from typing import Self


class Budget:
    def __init__(self, seconds: float | None = None, items: int | None = None) -> None:
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self.items_left = items
        """None: no limit."""

    @property
    def seconds_left(self) -> float | None:
        """None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    @property
    def is_spent(self) -> bool:
        return self.items_left == 0 or self.seconds_left == 0

    def take(self, items: int) -> None:
        if self.items_left is not None:
            self.items_left = max(0, self.items_left - items)

    def inner(self, seconds: float | None, items: int | None) -> Self:
        """A runner's share of a tick's budget."""
        limits = [limit for limit in (seconds, self.seconds_left) if limit is not None]
        return type(self)(min(limits, default=None), items)
