"""Kinds of the reference store: a dictionary."""

from collections.abc import Collection, Mapping


class MemoryKinds:
    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    async def declare(self, versions: Mapping[str, int]) -> None:
        self._versions.update(versions)

    async def undeclared(self, kinds: Collection[str]) -> set[str]:
        return set(kinds) - self._versions.keys()
