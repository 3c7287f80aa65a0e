"""What both sources of wake-ups share: reconnecting, reporting outages, and limits on waiting."""

import asyncio
import time
from datetime import timedelta
from random import Random

import pytest

from holdfast.domain.event_loop import any_done
from holdfast.wake.link import Link, LinkLost, Stopped
from tests.wake.conftest import Lines
from tests.worker.harness import PATIENCE


class NotedBackoff:
    """Has no delay, but records the failure counts for which it was asked for one."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def delay(self, n: int, random: Random) -> timedelta:
        self.asked.append(n)
        return timedelta(0)


async def test_the_first_retry_is_immediate_and_an_outage_is_logged_once(lines: Lines) -> None:
    backoff = NotedBackoff()
    tries = 0

    async def session() -> None:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise LinkLost("nobody is there")
        link.up()
        link.stop()

    link = Link("test", session, backoff)
    await link.run()
    assert backoff.asked == [1, 2, 3]
    assert (lines.outages, lines.returns, len(lines.warnings)) == (1, 1, 1)


async def test_a_server_that_accepts_and_drops_connections_is_retried_with_pauses() -> None:
    backoff = NotedBackoff()
    tries = 0

    async def session() -> None:
        nonlocal tries
        tries += 1
        link.up()
        if tries == 5:
            link.stop()
        raise LinkLost("thrown out")

    link = Link("test", session, backoff)
    await link.run()
    assert backoff.asked == [1, 2, 3]


async def test_a_bug_is_logged_with_its_traceback_and_does_not_end_the_link(
    lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    async def session() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("a bug")
        link.stop()

    link = Link("test", session, NotedBackoff())
    await link.run()
    assert tries == 2
    assert "a bug" in lines.warnings[0]
    assert "Traceback" in caplog.text


async def test_a_wait_ends_when_it_takes_too_long_or_the_link_is_stopped() -> None:
    async def session() -> None:
        raise NotImplementedError

    link = Link("test", session, NotedBackoff())
    with pytest.raises(LinkLost, match=r"no answer within 0\.01 s"):
        await link.within(0.01, asyncio.Event().wait())
    waiting = asyncio.create_task(link.within(PATIENCE, asyncio.Event().wait()))
    await asyncio.sleep(0)
    link.stop()
    with pytest.raises(Stopped):
        await waiting


async def test_time_during_which_a_handler_blocked_the_event_loop_does_not_count() -> None:
    async def answer() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    task = asyncio.create_task(answer())
    asyncio.get_running_loop().call_soon(time.sleep, 0.3)
    await any_done([task], 0.1)
    assert task.done()
