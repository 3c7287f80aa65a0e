"""The store contract on PostgreSQL: each verb is one statement over arrays; copying.py has the exception.

A group of verbs is a file: enqueuing.py, claiming.py, leasing.py, finishing.py, changing.py.
"""

from datetime import datetime, timedelta

from holdfast.store.postgres.changing import Changing
from holdfast.store.postgres.enqueuing import Enqueuing
from holdfast.store.postgres.finishing import Finishing
from holdfast.store.postgres.leasing import Leasing


class PostgresStore(Enqueuing, Leasing, Finishing, Changing):
    """Every verb is in the file of its group."""


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
