"""`await enqueued.result()`: the handler's return value with its type, or the reason why there is none."""

import asyncio
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict

from holdfast import Cancel, Enqueued, Holdfast, InvalidInput, JobFailed, Kind, Permanent, RunningJob
from tests.databases import Database, connected
from tests.waits.steps import ended
from tests.worker.harness import working


@dataclass
class Order:
    number: int


class Receipt(BaseModel):
    """Strict: it accepts a time and an id as text from JSON, but not from Python."""

    model_config = ConfigDict(strict=True)
    order: UUID
    at: datetime


AT = datetime(2030, 1, 2, tzinfo=UTC)
ID = UUID(int=7)
BUY = Kind("order.buy", Order, returns=Receipt)
COUNT = Kind("order.count", returns=int)
FORGET = Kind("order.forget", Order)


def handlers_of(app: Holdfast) -> None:
    @app.handler(BUY)
    async def buy(job: RunningJob[Order]) -> Receipt:
        if job.payload.number == 0:
            raise Permanent("NOTHING", "nothing to buy")
        if job.payload.number < 0:
            raise Cancel("changed my mind")
        return Receipt(order=ID, at=AT)

    @app.handler(COUNT)
    def count(job: RunningJob[None]) -> int:
        return 3 if job.payload is None else 0

    @app.handler(FORGET)
    async def forget(job: RunningJob[Order]) -> None: ...

    @app.handler("order.list")
    async def list_orders(job: RunningJob[dict[str, int]]) -> list[Order]:
        return [Order(job.payload["first"])]


async def test_a_result_has_the_type_that_its_kind_declares(app: Holdfast) -> None:
    handlers_of(app)
    async with working(app):
        bought = await app.enqueue(BUY, Order(17))
        assert await ended(bought.result("1h")) == Receipt(order=ID, at=AT)
        assert await ended((await app.enqueue(COUNT)).result("1h")) == 3
        nothing: object = await ended((await app.enqueue(FORGET, Order(1))).result("1h"))
        assert nothing is None
        many = await app.enqueue_many([app.job(BUY, Order(1)), app.job(COUNT)])
        assert await ended(asyncio.gather(*(each.result("1h") for each in many))) == [Receipt(order=ID, at=AT), 3]


async def test_a_kind_given_by_name_uses_the_types_of_its_local_handler(app: Holdfast) -> None:
    handlers_of(app)
    async with working(app):
        assert await ended((await app.enqueue("order.list", {"first": 5})).result("1h")) == [Order(5)]


async def test_without_a_declared_kind_the_result_is_plain_json(app: Holdfast) -> None:
    handlers_of(app)
    async with working(app):
        enqueued = await app.enqueue("order.list", {"first": 5})
        stranger: Enqueued[object] = Enqueued(enqueued.id, is_new=True, _app=app)
        assert await ended(stranger.result("1h")) == [{"number": 5}]


@pytest.mark.parametrize(
    ("number", "state", "code", "message"),
    [(0, "failed", "NOTHING", "nothing to buy"), (-1, "canceled", "CANCELED", "changed my mind")],
)
async def test_a_job_that_did_not_succeed_has_no_result(
    app: Holdfast, number: int, state: str, code: str, message: str
) -> None:
    handlers_of(app)
    async with working(app):
        enqueued = await app.enqueue(BUY, Order(number))
        with pytest.raises(JobFailed) as failed:
            await ended(enqueued.result("1h"))
    assert (failed.value.job.id, failed.value.code, failed.value.message) == (enqueued.id, code, message)
    assert str(failed.value).startswith(f"job {enqueued.id} of kind 'order.buy' ended {state}: {code}: ")
    again = pickle.loads(pickle.dumps(failed.value))  # noqa: S301 - our own
    assert (str(again), again.job) == (str(failed.value), failed.value.job)


async def test_a_result_that_times_out_can_be_awaited_again(app: Holdfast) -> None:
    handlers_of(app)
    enqueued = await app.enqueue(COUNT)
    with pytest.raises(TimeoutError, match=rf"^job {enqueued.id} of kind 'order.count' is still ready after 10ms$"):
        await enqueued.result("10ms")
    async with working(app):
        assert await ended(enqueued.result("1h")) == 3


async def test_a_result_that_does_not_fit_the_declared_type_raises_a_one_line_error(app: Holdfast) -> None:
    app.handler("order.count")(lambda job: "three")
    async with working(app):
        enqueued = await app.enqueue(COUNT)
        with pytest.raises(
            InvalidInput, match=r"^result of 'order\.count': \(whole value\): Input should be a valid int"
        ):
            await ended(enqueued.result("1h"))


async def test_a_job_enqueued_in_a_transaction_can_be_awaited_after_the_commit(emptied: Database) -> None:
    app = Holdfast(emptied.url)
    handlers_of(app)
    async with app, working(app), connected(emptied.url) as connection:
        async with connection.transaction():
            enqueued = await app.enqueue(BUY, Order(17), conn=connection)
        assert await ended(enqueued.result("1h")) == Receipt(order=ID, at=AT)


async def test_a_result_cannot_be_awaited_without_an_open_app(app: Holdfast) -> None:
    enqueued = await app.enqueue(COUNT)
    await app.close()
    with pytest.raises(InvalidInput, match="the app is not open"):
        await enqueued.result()
    with pytest.raises(InvalidInput, match=r"wait for the job with app\.wait\(id\)"):
        await Enqueued(enqueued.id, is_new=True).result()
