"""Rescues expired leases. A lease that the store refuses to change is reported once and left alone for a while, so it
does not keep others from being rescued."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

from holdfast.domain.errors import DuplicateJob, Unstorable
from holdfast.store.contract import Ended, Rescued

Key = TypeVar("Key")

_REFUSALS = (Unstorable, DuplicateJob)
"""Errors that a single row may cause."""
_FIRST_SECONDS = 5.0
_LONGEST_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    times: int
    not_before: float


class Rescue(ABC, Generic[Key]):
    """Works on anything that can rescue several leases at once and identifies each by a key."""

    def __init__(self) -> None:
        self._refused: dict[Key, _Refusal] = {}

    @abstractmethod
    async def rescue(
        self, limit: int, left_alone: list[Key], only: list[Key] | None, ended: Ended | None
    ) -> list[Rescued]:
        """Rescue in one statement, which fails as a whole if a single row fails."""

    @abstractmethod
    async def expired(self, limit: int, left_alone: list[Key], ended: Ended | None) -> list[Key]: ...

    @abstractmethod
    def tell(self, key: Key, error: Exception) -> None:
        """Report that this lease cannot be rescued."""

    async def __call__(self, limit: int, ended: Ended | None) -> list[Rescued]:
        now = monotonic()
        waiting = {key: refusal for key, refusal in self._refused.items() if refusal.not_before > now}
        try:
            rescued = await self.rescue(limit, list(waiting), None, ended)
        except _REFUSALS:
            return await self._each(await self.expired(limit, list(waiting), ended), ended)
        self._refused = waiting
        return rescued

    async def _each(self, keys: Sequence[Key], ended: Ended | None) -> list[Rescued]:
        """Split into halves until the bad leases are found, because very few are to blame."""
        if not keys:
            return []
        try:
            rescued = await self.rescue(len(keys), [], list(keys), ended)
        except _REFUSALS as error:
            if len(keys) == 1:
                self._leave_alone(keys[0], error)
                return []
            half = len(keys) // 2
            return [*await self._each(keys[:half], ended), *await self._each(keys[half:], ended)]
        for key in keys:
            self._refused.pop(key, None)
        return rescued

    def _leave_alone(self, key: Key, error: Exception) -> None:
        before = self._refused.get(key)
        times = 1 if before is None else before.times + 1
        seconds = min(_FIRST_SECONDS * 2 ** min(times - 1, 10), _LONGEST_SECONDS)
        self._refused[key] = _Refusal(times, monotonic() + seconds)
        if before is None:
            self.tell(key, error)
