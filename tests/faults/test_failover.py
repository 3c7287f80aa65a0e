"""A server with a standby: what the promoted standby contains, depending on how commits waited for it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from holdfast_lab.faults.failover import FailoverServer

pytestmark = [pytest.mark.fault, pytest.mark.postgres]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FailoverServer]:
    async with FailoverServer.opened_pair(tmp_path / "pair") as server:
        await server.execute("CREATE TABLE kept (name text)")
        yield server


async def names(server: FailoverServer) -> set[str]:
    """Read through the clients' address, no matter which server is the primary."""
    connection = await asyncpg.connect(server.url, timeout=10)
    try:
        return {row["name"] for row in await connection.fetch("SELECT name FROM kept")}
    finally:
        await connection.close()


async def insert(server: FailoverServer, name: str) -> None:
    await server.execute(f"INSERT INTO kept VALUES ('{name}')")


async def test_a_promoted_asynchronous_standby_lacks_late_commits_and_says_since_when(
    server: FailoverServer,
) -> None:
    await server.add_standby(is_synchronous=False)
    await insert(server, "before")
    heard = time.monotonic()
    await server.heard()
    server.hold_back()
    await insert(server, "meanwhile")
    last_kept = await server.fail_over()
    assert await names(server) == {"before"}
    assert last_kept <= heard
    await insert(server, "after")
    assert await names(server) == {"before", "after"}


async def test_no_commit_succeeds_that_a_synchronous_standby_lacks(server: FailoverServer) -> None:
    await server.add_standby(is_synchronous=True)
    await insert(server, "before")
    server.hold_back()
    told = asyncio.create_task(insert(server, "meanwhile"))
    await server.waits_for_standby()
    await server.fail_over()
    with suppress(Exception):
        await told
    assert told.exception() is not None
    assert await names(server) == {"before"}


async def test_one_standby_after_another_can_take_over(server: FailoverServer) -> None:
    for number in range(2):
        await server.add_standby(is_synchronous=True)
        await insert(server, f"{number}")
        await server.fail_over()
    assert await names(server) == {"0", "1"}
