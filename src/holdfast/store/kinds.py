"""Which kinds workers have declared. It serves only for warnings; no decision depends on it."""

from collections.abc import Collection, Mapping
from typing import Protocol


class KindStore(Protocol):
    async def declare(self, versions: Mapping[str, int]) -> None:
        """Record that this process has handlers for these kinds, with these versions. The latest declaration counts."""

    async def undeclared(self, kinds: Collection[str]) -> set[str]:
        """Return the kinds that no process has ever declared."""
