"""An app that publishes wake-ups: enqueueing does not wait for the broker, and no wake-up is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from holdfast import Holdfast, RunningJob
from holdfast.backoff import steps
from holdfast.rabbitmq import subscriber as rabbitmq
from holdfast.rabbitmq.publisher import Publisher
from holdfast.rabbitmq.subscriber import Broker, Trigger
from holdfast_lab.faults.proxy import Proxy
from tests.databases import no_task_left
from tests.rabbitmq.test_subscriber import running, through
from tests.wake.conftest import Lines
from tests.worker.harness import PATIENCE, until

NOBODY = "amqp://guest:guest@127.0.0.1:1/"


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    async with no_task_left():
        yield


class HeldBroker:
    """Answers only when the test allows it."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.tries: list[UUID] = []

    async def publish(self, job_ids: Sequence[UUID]) -> bool:
        self.tries += job_ids
        await self.answers.wait()
        return True


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldBroker:
    held = HeldBroker()
    monkeypatch.setattr(Trigger, "publish", lambda _self, job_ids, **_: held.publish(job_ids))
    return held


def app_with(url: str, exchange: str = "holdfast") -> Holdfast:
    app = Holdfast("memory:")
    app.settings = app.settings.changed(rabbitmq_url=url, rabbitmq_exchange=exchange)
    app.handler("do")(do)
    return app


async def do(job: RunningJob[object]) -> None:
    """Registered so that nothing is logged about an unknown kind."""


async def test_enqueueing_does_not_wait_for_the_broker(held: HeldBroker) -> None:
    async with app_with(NOBODY) as app:
        async with asyncio.timeout(PATIENCE):
            first = await app.enqueue("do")
            await until(lambda: held.tries, "a try")
            await asyncio.gather(*(app.enqueue("do") for _ in range(50)))
            await app.enqueue_many([app.job("do") for _ in range(50)])
            await app.ring([uuid4()])
            await app.ring([last := uuid4()])
        assert held.tries == [first.id]
        held.answers.set()
        await until(lambda: len(held.tries) > 1, "a second message")
    assert held.tries == [first.id, last], "one message stands for all that came while the first was under way"


async def test_a_ring_from_another_threads_event_loop_is_handed_over(held: HeldBroker) -> None:
    held.answers.set()
    async with app_with(NOBODY) as app:
        await asyncio.to_thread(lambda: asyncio.run(app.ring([job := uuid4()])) or job)
        await until(lambda: held.tries, "a try")


async def test_a_wake_up_for_a_job_enqueued_just_before_the_app_closes_is_published(url: str, exchange: str) -> None:
    async with running(url, exchange) as at:
        await at.connected()
        at.calls.clear()
        async with app_with(url, exchange) as app:
            await app.enqueue("do")
        await at.woken()


@pytest.mark.fault
async def test_a_wake_up_during_an_outage_is_sent_when_the_broker_is_back(
    url: str, exchange: str, broker_proxy: Proxy, lines: Lines
) -> None:
    async with running(url, exchange) as at, app_with(through(broker_proxy), exchange) as app:
        await at.connected()
        broker_proxy.refuse()
        await app.enqueue("do")
        await until(lambda: lines.outages == 1, "one warning")
        at.calls.clear()
        broker_proxy.flow()
        await at.woken()
        await until(lambda: lines.returns == 1, "one line when it is over")
    assert len(lines.warnings) == 1
    assert "polling continues" not in lines.warnings[0], "a producer does not poll"


@pytest.mark.fault
@pytest.mark.parametrize("trouble", ["refuse", "swallow"])
async def test_an_app_closes_even_if_the_broker_is_down_or_hangs(
    broker_proxy: Proxy, exchange: str, lines: Lines, trouble: str
) -> None:
    getattr(broker_proxy, trouble)()
    async with asyncio.timeout(PATIENCE):
        async with app_with(through(broker_proxy), exchange) as app:
            await app.enqueue("do")
        await app.ring([uuid4()])
    assert len(lines.warnings) <= 1


@pytest.mark.fault
async def test_closing_tries_once_more_despite_a_pause_after_a_failure(
    url: str, exchange: str, broker_proxy: Proxy, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq, "_BACKOFF", steps("1h"))
    trigger = Trigger(Broker(through(broker_proxy), exchange))
    publisher = Publisher(trigger, patience=timedelta(seconds=PATIENCE))
    async with running(url, exchange) as at:
        await at.connected()
        broker_proxy.refuse()
        publisher.hand_over([uuid4()])
        await until(lambda: lines.outages == 1, "the first try failed")
        at.calls.clear()
        broker_proxy.flow()
        await publisher.close()
        await at.woken()
