"""docs/sqlalchemy.md is true: its handler and its sessions work as described."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from holdfast import JobState
from tests.databases import Database
from tests.docs.pages import module_of


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_every_order_of_the_page_is_confirmed_when_its_job_ends(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.url)
    # A fork in another test must not affect this test's engine.
    monkeypatch.setattr(os, "register_at_fork", lambda **functions: functions["after_in_child"])
    page: Any = module_of("sqlalchemy.md", tmp_path)

    def place_blocking() -> None:
        page.Base.metadata.create_all(page.engine)
        with page.open_session() as session:
            assert page.place_order_blocking(session) == 1
        page.engine.dispose()

    await asyncio.to_thread(place_blocking)
    async with page.app:
        async with page.open_sessions(page.app) as sessions, sessions() as session:
            assert (await page.place_order(session)).id == 2
        assert (await page.app.tick(runners=["queue"])).is_fine
        counts = await page.app.jobs.count()
    assert (counts[JobState.SUCCEEDED], counts[JobState.READY]) == (2, 2)
    with Session(page.engine) as read:
        assert [order.is_confirmed for order in read.query(page.Order)] == [True, True]
    page.engine.dispose()
