"""RabbitMQ stopped and started in the middle of work: nothing is lost, and nobody is told more than once."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast import Holdfast, JobState, RunningJob
from tests.databases import Servers
from tests.wake.broker import PrivateBroker
from tests.wake.conftest import Lines
from tests.worker.harness import drained, until

pytestmark = [pytest.mark.postgres, pytest.mark.fault]

JOBS = 2_000
BATCH = 20


async def test_a_broker_stopped_and_started_during_a_run_loses_nothing(
    private_broker: PrivateBroker, servers: Servers, lines: Lines
) -> None:
    await asyncio.to_thread(private_broker.start)
    with servers.get("embedded-18").fresh_database() as database:
        app = Holdfast(database.url)
        app.settings = app.settings.changed(rabbitmq_url=private_broker.url, listen=False)
        runs: Counter[str] = Counter()

        @app.handler("do")
        async def do(job: RunningJob[Any]) -> None:
            runs[str(job.id)] += 1

        async with app:
            process = app.worker()
            subscriber = process.subscriber
            assert subscriber is not None
            running = asyncio.create_task(process.run())
            await until(lambda: subscriber.is_connected, "the worker is connected to the broker")
            for number in range(JOBS // BATCH):
                if number == 30:
                    await asyncio.to_thread(private_broker.stop)
                if number == 60:
                    await asyncio.to_thread(private_broker.start)
                await app.enqueue_many([app.job("do") for _ in range(BATCH)])
            assert await drained(app) == {JobState.SUCCEEDED: JOBS}
            await until(lambda: subscriber.is_connected, "the worker is connected again")
            await _woken_again(app, process)
            process.stop()
            assert await asyncio.wait_for(running, 30) == 0
    assert max(runs.values()) == 1
    # One outage, told once by the worker that listens and at most once by the producer that publishes.
    assert 1 <= lines.outages <= 2, lines.warnings
    assert len(lines.warnings) == lines.outages


async def _woken_again(app: Holdfast, process: Any) -> None:  # noqa: ANN401
    """A job is followed by a wake-up again, which polling does not give."""
    heard = 0
    background_wake = process._background.wake

    def count(name: str | None = None) -> None:
        nonlocal heard
        heard += 1
        background_wake(name)

    process._background.wake = count

    async def published() -> bool:
        await app.enqueue("do")
        return heard > 0

    await until(published, "a wake-up for a new job")
    assert await drained(app)
