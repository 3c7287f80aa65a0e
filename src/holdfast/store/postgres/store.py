"""The store contract on PostgreSQL: each verb is one statement over arrays; copying.py is the exception.

Each group of verbs has its own file: enqueuing.py, claiming.py, leasing.py, finishing.py, changing.py.
"""

from datetime import datetime, timedelta

from holdfast.store.postgres.changing import Changing
from holdfast.store.postgres.enqueuing import Enqueuing
from holdfast.store.postgres.finishing import Finishing
from holdfast.store.postgres.leasing import Leasing


class PostgresStore(Enqueuing, Leasing, Finishing, Changing):
    """Combines the groups of verbs."""


class PostgresClock:
    """The clock row. Only tests move it."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def now(self) -> datetime:
        return await self._store.now()

    async def freeze(self, at: datetime) -> None:
        await self._store.fetch("clock_freeze", at)

    async def advance(self, by: timedelta) -> None:
        await self._store.fetch("clock_advance", by)
