"""The app of side_by_side.py in a process whose maintenance is due at once and takes a long time."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import holdfast.maintenance.runner
from holdfast.store.maintenance import Batch
from holdfast.store.postgres.maintenance import PostgresMaintenance
from tests.runtime.apps.effects import note, until_there
from tests.runtime.apps.side_by_side import app

__all__ = ["app"]


async def _slow_step(_maintenance: PostgresMaintenance, _retention: timedelta) -> AsyncGenerator[Batch, None]:
    await note("maintenance started")
    await until_there("gate")
    yield Batch()


holdfast.maintenance.runner.SPREAD_SECONDS = 0.0
PostgresMaintenance.add_partitions = _slow_step  # type: ignore[assignment, method-assign]
