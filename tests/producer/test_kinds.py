"""Kinds: what producers and workers share, and what a decorated function can do besides being called."""

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from holdfast import Holdfast, InvalidInput, Kind, NewJob, Permanent, RunningJob, Snooze
from holdfast.testing import in_memory


@dataclass
class Invoice:
    number: int


class Sent(BaseModel):
    message_id: str


class Line(TypedDict):
    amount: int


SEND = Kind("invoice.send", Invoice, returns=Sent, queue="mail", version=2)


def test_a_kind_is_a_value() -> None:
    assert Kind("invoice.send", Invoice, returns=Sent, queue="mail", version=2) == SEND
    others: list[object] = [Kind("invoice.send", Invoice), Kind("invoice.send", Line), Kind("invoice.sent", Line)]
    assert len({SEND, *others}) == 4
    assert len({SEND, Kind("invoice.send", Invoice, returns=Sent, queue="mail", version=2)}) == 1
    assert (SEND.name, SEND.payload, SEND.returns, SEND.queue, SEND.version) == (
        "invoice.send",
        Invoice,
        Sent,
        "mail",
        2,
    )
    with pytest.raises(AttributeError):
        SEND.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda kind: kind(17, Invoice), "kind: 17 is not text"),
        (lambda kind: kind("", Invoice), "kind: is empty"),
        (lambda kind: kind("a", Invoice, queue=""), "queue: is empty"),
        (lambda kind: kind("a", Invoice, version=0), "version: 0 is not a number from 1 to 1,000,000"),
        (lambda kind: kind("a", Invoice, version="2"), "version: '2' is not a number from 1 to 1,000,000"),
        (lambda kind: kind("a", 5), "payload type of 'a': .* cannot be checked; use a dataclass"),
        (
            lambda kind: kind("a", Invoice, returns=object()),
            "result type of 'a': .* cannot be checked; use a dataclass",
        ),
    ],
)
def test_an_invalid_kind_is_refused_where_it_is_declared(build: Any, line: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidInput, match=f"^{line}"):
        build(Kind)


def test_a_producer_without_the_handler_checks_the_payload() -> None:
    app = Holdfast("memory:")
    job = app.job(SEND, Invoice(17), key="17")
    assert (job.kind, job.payload, job.queue, job.key) == ("invoice.send", '{"number":17}', "mail", "17")
    assert app.job(SEND, Invoice(17), queue="slow").queue == "slow"
    wrong: Any = {"number": "seventeen"}
    with pytest.raises(InvalidInput, match=r"^payload of 'invoice\.send': number: Input should be a valid integer"):
        app.job(SEND, wrong)
    nothing: Any = None
    with pytest.raises(InvalidInput, match=r"^payload of 'invoice\.send': number: Field required"):
        app.job(SEND, nothing)


def test_a_job_carries_the_version_of_its_kind() -> None:
    app = Holdfast("memory:")
    of_first_release = Kind("invoice.send", Invoice)
    assert app.job(SEND, Invoice(17)).headers == '{"holdfast.version":2}'
    assert app.job(of_first_release, Invoice(17)).headers is None
    app.handler(SEND, upgrades={1: dict})(lambda job: Sent(message_id="1"))
    assert app.handlers["invoice.send"].version == 2
    assert app.job("invoice.send", {"number": 17}).headers == '{"holdfast.version":2}'
    assert app.job(of_first_release, Invoice(17)).headers is None
    with pytest.raises(InvalidInput, match=r"^version: set this in Kind\('invoice\.send', …\), which workers use too$"):
        app.job(SEND, Invoice(17), version=1)


async def test_a_schedule_makes_jobs_with_the_version_of_its_handler() -> None:
    app = Holdfast("memory:")

    @app.schedule("every 1s", payload={"number": 17})
    @app.handler(SEND)
    async def send(job: RunningJob[Invoice]) -> Sent:
        return Sent(message_id="1")

    (declared,) = app.declarations
    assert declared.job is not None
    assert declared.job.headers == '{"holdfast.version":2}'


def test_a_kind_without_a_payload_refuses_one() -> None:
    app, sweep = Holdfast("memory:"), Kind("sweep")
    assert app.job(sweep).payload == "{}"
    something: Any = 5
    with pytest.raises(InvalidInput, match=r"^payload of 'sweep': the kind takes none"):
        app.job(sweep, something)


@pytest.mark.parametrize("isolation", ["async", "process"])
async def test_a_handler_without_a_payload_gets_none_even_if_the_producer_gave_one(isolation: str) -> None:
    app = Holdfast("memory:")
    app.handler("tell", isolation=isolation)(tells_payload)
    async with app:
        told = [
            await app.enqueue("tell"),
            (await app.enqueue_many([NewJob(kind="tell", payload=app.job("x", 5).payload)]))[0],
        ]
        assert (await app.tick(runners=["queue"])).is_fine
        assert [await each.result() for each in told] == ["None", "None"]


async def tells_payload(job: RunningJob[None]) -> str:
    return repr(job.payload)


async def test_a_decorated_function_is_still_a_function_and_can_enqueue() -> None:
    app = Holdfast()

    @app.handler(SEND, attempts=3)
    async def send(job: RunningJob[Invoice]) -> Sent:
        """Sends one."""
        return Sent(message_id=f"<{job.payload.number}>")

    @app.handler("invoice.print", queue="printer")
    def print_invoice(job: RunningJob[Invoice]) -> Sent | Snooze:
        return Sent(message_id="printed")

    assert (send.__name__, send.__doc__) == ("send", "Sends one.")
    assert send.kind is SEND
    assert print_invoice.kind == Kind("invoice.print", Invoice, returns=Sent, queue="printer")
    assert (app.handlers["invoice.send"].attempts, app.handlers["invoice.send"].queue) == (3, "mail")
    async with in_memory(app) as jobs:
        enqueued = await send.enqueue(Invoice(17), key="17")
        printed = await print_invoice.enqueue(Invoice(18), conn=StandIn())
        blocking = await asyncio.to_thread(print_invoice.sync.enqueue, Invoice(20), priority=1)
        assert print_invoice.job(Invoice(1), delay="1h").queue == "printer"
        await jobs.assert_enqueued(SEND, Invoice(17), key="17", queue="mail")
        await jobs.drain()
        assert await enqueued.result() == Sent(message_id="<17>")
        assert await printed.result() == Sent(message_id="printed")
        assert await asyncio.to_thread(blocking.result) == Sent(message_id="printed")
        with pytest.raises(InvalidInput, match=r"app\.sync\.enqueue would block .* use await app\.enqueue"):
            print_invoice.sync.enqueue(Invoice(21))
        assert await jobs.run(SEND, Invoice(19)) == Sent(message_id="<19>")


class StandIn:
    async def execute(self, sql: str) -> None: ...


async def test_a_function_with_two_kinds_enqueues_the_one_declared_last() -> None:
    app = Holdfast()

    @app.handler("outer")
    @app.handler("inner")
    async def both(job: RunningJob[Invoice]) -> None: ...

    assert both.kind.name == "outer"
    assert [handler.kind for handler in app.handlers.of(both)] == ["inner", "outer"]


def test_a_function_that_takes_no_attributes_can_still_be_a_handler() -> None:
    app = Holdfast()
    assert app.handler("print")(print) is print
    app.handler("method")(Holder().handle)
    assert {handler.kind for handler in app.handlers} == {"print", "method"}


class Holder:
    def handle(self, job: RunningJob[Invoice]) -> None: ...


def test_a_handler_of_a_kind_cannot_set_queue_payload_or_version() -> None:
    app: Any = Holdfast()
    for option in ({"queue": "other"}, {"payload": Invoice}, {"version": 2}):
        with pytest.raises(InvalidInput, match=r"set this in Kind\('invoice\.send', …\), which producers use too$"):
            app.handler(SEND, **option)(lambda job: None)


def test_annotations_that_cannot_be_checked_leave_the_result_as_json() -> None:
    app = Holdfast()

    @app.handler("odd")
    async def odd(job: RunningJob[Invoice]) -> "Unheard":  # type: ignore[name-defined]  # noqa: F821
        raise Permanent("NEVER")

    @app.handler("odder")
    async def odder(job: RunningJob[Invoice]) -> Holder:
        return Holder()

    assert (odd.kind.returns, odder.kind.returns) == (Any, Any)
    read: object = odder.kind.read_result({"a": 1})
    assert read == {"a": 1}


def test_a_kind_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(SEND)) == SEND  # noqa: S301 - our own
    assert pickle.loads(pickle.dumps(SEND)).read_payload('{"number":1}') == Invoice(1)  # noqa: S301
