"""From a row's key to the job id that everything else speaks of, and back.

A UUID is its own id. A number is the second half of one, after a hash of the mapping's name. A text is only hashed:
what this process claimed it remembers, anything else it looks for by the hash.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast.store.rows.access import RowTable
from holdfast.store.rows.columns import INTEGERS
from holdfast.store.rows.rare_sql import keys_of_ids
from holdfast.store.rows.terms import id_prefix

if TYPE_CHECKING:
    from holdfast.store.rows.access import Connection

_HALF = 1 << 63


class Keys:
    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._claimed: dict[UUID, str] = {}

    async def remember(self, id: UUID, key: str) -> None:
        if not await self._are_reversible():
            self._claimed[id] = key

    def forget(self, ids: Iterable[UUID]) -> None:
        for id in ids:
            self._claimed.pop(id, None)

    async def of(self, ids: Iterable[UUID], *, on: "Connection | None" = None) -> Mapping[UUID, str]:
        """The keys as text; an id that can be no row's is left out."""
        ids = list(dict.fromkeys(ids))
        key_type = (await self._table.sql(on)).terms.key_type
        if key_type == "uuid":
            return {id: str(id) for id in ids}
        if key_type in INTEGERS:
            prefix = id_prefix(self._table.rows.name)
            return {id: str(_signed(int(id.hex[16:], 16))) for id in ids if id.hex.startswith(prefix)}
        known = {id: self._claimed[id] for id in ids if id in self._claimed}
        if unknown := [id for id in ids if id not in known]:
            rows = await self._table.fetch(keys_of_ids, unknown, on=on)
            known.update({row["id"]: row["key"] for row in rows})
        return known

    async def _are_reversible(self) -> bool:
        key_type = (await self._table.sql()).terms.key_type
        return key_type == "uuid" or key_type in INTEGERS


def _signed(number: int) -> int:
    return number - 2 * _HALF if number >= _HALF else number
