"""A handler that blocks the event loop is reported, by name and place, once."""

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Holdfast, RunningJob
from tests.worker.harness import drained, fast, until, working

SOON = fast(log_blocked=timedelta(milliseconds=100))
CANARY = "4111-canary"
BLOCKS = "a handler is blocking the event loop"


def reports(caplog: pytest.LogCaptureFixture, beginning: str = BLOCKS) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.getMessage().startswith(beginning)]


def blocks_until(condition: Any) -> None:  # noqa: ANN401
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


async def test_a_blocking_handler_is_reported_while_it_blocks_with_job_and_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Holdfast("memory:")

    @app.handler("rude")
    async def rude(job: RunningJob[object]) -> None:
        card = job.payload
        await asyncio.sleep(0)
        blocks_until(lambda: reports(caplog) or not card)

    async with app, working(app, SOON):
        id = (await app.enqueue("rude", {"card": CANARY}, headers={"key": CANARY})).id
        await drained(app)
        await until(lambda: reports(caplog, "the event loop is no longer blocked"), "its end is logged")
    (report,) = reports(caplog)
    assert (report["levelname"], report["job_id"], report["kind"]) == ("WARNING", str(id), "rude")
    assert report["blocked_seconds"] >= 0.1
    assert " in blocks_until" in report["at"] or " in <lambda>" in report["at"]
    assert "in rude" in report["stack_info"]
    assert "/holdfast/" not in report["stack_info"]
    assert "Traceback" not in caplog.text
    assert CANARY not in caplog.text


async def test_blocking_in_the_first_step_of_the_only_job_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = Holdfast("memory:")

    @app.handler("rude")
    async def rude(job: RunningJob[object]) -> None:
        blocks_until(lambda: reports(caplog))

    async with app, working(app, SOON):
        await app.enqueue("rude")
        await drained(app)
    assert [report["kind"] for report in reports(caplog)] == ["rude"]


async def test_the_stack_of_a_task_created_by_a_handler_starts_at_the_tasks_frames(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Holdfast("memory:")

    async def part() -> None:
        blocks_until(lambda: reports(caplog, "something is blocking") or reports(caplog))

    @app.handler("delegates")
    async def delegates(job: RunningJob[object]) -> None:
        await asyncio.create_task(part())

    async with app, working(app, SOON):
        await app.enqueue("delegates")
        await drained(app)
    (report,) = reports(caplog) or reports(caplog, "something is blocking")
    first = report["stack_info"].splitlines()[0]
    assert first.endswith("in part")


async def test_blocking_is_reported_once_per_kind_and_not_for_each_job(caplog: pytest.LogCaptureFixture) -> None:
    app, seen = Holdfast("memory:"), list[bool]()

    @app.handler("rude")
    async def rude(job: RunningJob[object]) -> None:
        blocks_until(lambda: reports(caplog))
        end = time.monotonic() + 0.8
        blocks_until(lambda: time.monotonic() > end)
        seen.append(True)

    async with app, working(app, SOON):
        await app.enqueue_many([app.job("rude") for _ in range(3)])
        await drained(app)
    assert (len(reports(caplog)), len(seen)) == (1, 3)


async def test_a_handler_that_waits_or_works_in_a_thread_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    app, go_on = Holdfast("memory:"), threading.Event()

    @app.handler("waits")
    async def waits(job: RunningJob[object]) -> None:
        await asyncio.to_thread(go_on.wait)

    @app.handler("works")
    def works(job: RunningJob[object]) -> None:
        go_on.wait()

    async with app, working(app, SOON):
        await app.enqueue_many([app.job("waits"), app.job("works")])
        await asyncio.sleep(0.8)
        go_on.set()
        await drained(app)
    assert caplog.messages == []
