"""Events as an application uses them: `@app.on`, `app.publish`, `job.event`, `app.subscriptions`."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import Holdfast, InvalidInput, JobState, Permanent, PublishedEvent, RunningJob
from holdfast.domain.event import EVENT_HEADER
from holdfast.domain.handlers import Isolation
from holdfast.domain.json_text import Json
from holdfast.store.events import NewSubscription
from tests.worker.harness import drained, final_job, working

PUBLISHED = "2030-01-01T12:00:00.000000Z"


@dataclass
class Invoice:
    number: int


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("memory:")


def test_a_function_becomes_the_handler_of_a_kind_with_its_name(app: Holdfast) -> None:
    @app.on("invoice.paid", priority=2, queue="mail", attempts=8)
    async def send_receipt(job: RunningJob[Invoice]) -> None: ...

    assert list(app.subscribed) == [NewSubscription("send_receipt", "invoice.paid", "mail", 2)]
    handler = app.handlers["send_receipt"]
    assert (handler.function, handler.queue, handler.attempts) == (send_receipt, "mail", 8)
    assert (handler.payload_type, handler.isolation) == (Invoice, Isolation.ASYNC)


def test_one_function_can_have_several_named_subscriptions(app: Holdfast) -> None:
    @app.on("invoice.*", name="book_invoice", attempts=9)
    @app.on("order.paid", name="book_order")
    def book(job: RunningJob[Any]) -> None: ...

    assert [(each.name, each.pattern) for each in app.subscribed] == [
        ("book_order", "order.paid"),
        ("book_invoice", "invoice.*"),
    ]
    assert [handler.kind for handler in app.handlers.of(book)] == ["book_order", "book_invoice"]
    assert app.handlers["book_invoice"].attempts == 9


def test_an_existing_handler_is_subscribed_as_it_is(app: Holdfast) -> None:
    @app.on("invoice.paid")
    @app.handler("receipt.send", queue="mail")
    async def send(job: RunningJob[Invoice]) -> None: ...

    assert list(app.subscribed) == [NewSubscription("receipt.send", "invoice.paid", "mail")]
    assert len(app.handlers) == 1


async def test_a_kind_is_renamed_by_handling_both_names_for_a_while(app: Holdfast) -> None:
    done = []

    @app.on("order.*", name="book_purchase")
    @app.handler("book_order")
    async def book(job: RunningJob[Any]) -> None:
        done.append(job.kind)

    async with app:
        await app.enqueue("book_order")
        await app.publish("order.paid")
        async with working(app):
            await drained(app)
    assert sorted(done) == ["book_order", "book_purchase"]


def test_invalid_uses_are_refused_at_the_declaration(app: Holdfast) -> None:
    @app.on("invoice.paid")
    async def send(job: RunningJob[Invoice]) -> None: ...

    with pytest.raises(InvalidInput, match=r"^subscription 'send' is already declared; .* name=$"):
        app.on("invoice.sent")(send)
    with pytest.raises(InvalidInput, match=r"^attempts: set this on the handler of 'send'$"):
        app.on("invoice.sent", name="send", attempts=3)(send)
    with pytest.raises(InvalidInput, match=r"^kind 'send' already has a handler"):
        app.on("invoice.sent", name="send")(lambda job: None)
    with pytest.raises(InvalidInput, match=r"^pattern: "):
        app.on("invoice*")
    with pytest.raises(InvalidInput, match=r'^name the events: write @app.on\("invoice.paid"\), not @app.on$'):
        app.on(send)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^a subscriber has no option 'priorty'; did you mean priority\?$"):
        app.on("invoice.sent", priorty=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match=r"^priority: "):
        app.on("invoice.sent", name="other", priority=11)(send)


def test_a_refused_declaration_leaves_nothing_and_can_be_corrected(app: Holdfast) -> None:
    async def send(job: RunningJob[Invoice]) -> None: ...

    with pytest.raises(InvalidInput, match=r"^priority: "):
        app.on("invoice.paid", priority=11)(send)
    with pytest.raises(InvalidInput, match=r"^kind: a lambda has no name; set name=$"):
        app.on("invoice.paid")(lambda job: None)
    with pytest.raises(InvalidInput, match=r"^kind: a lambda has no name; set name=$"):
        app.schedule("hourly")(lambda job: None)
    for wrong in ({"pattern": "a*"}, {"priority": 11}, {"queue": ""}, {"limit": 0}, {"url": "http://here"}):
        with pytest.raises(InvalidInput):
            app.relay(**{"pattern": "a.*", "exchange": "events", **wrong})  # type: ignore[arg-type]
    for exchange in (None, 5, "", "é" * 128):
        with pytest.raises(InvalidInput, match=r"^exchange: "):
            app.relay("a.*", exchange=exchange)  # type: ignore[arg-type]
    assert (len(app.handlers), len(app.subscribed)) == (0, 0)
    app.on("invoice.paid")(send)
    app.relay("a.*", exchange="events", url="amqp://one")
    with pytest.raises(InvalidInput, match=r"^kind 'relay\.events' already has a handler"):
        app.relay("b.*", exchange="events", url="amqp://another")
    assert app.relays._targets["relay.events"].url == "amqp://one"


async def test_subscribers_succeed_and_fail_independently(app: Holdfast) -> None:
    tries: list[str] = []

    @app.on("invoice.paid", attempts=3, backoff="steps 1ms")
    async def refuse(job: RunningJob[Invoice]) -> None:
        tries.append("refuse")
        raise ValueError("not today")

    @app.on("invoice.*")
    async def accept(job: RunningJob[Invoice]) -> int:
        tries.append("accept")
        return job.payload.number

    @app.on("*")
    async def give_up(job: RunningJob[Any]) -> None:
        raise Permanent("NOT_MINE")

    async with app:
        published = await app.publish("invoice.paid", Invoice(17))
        jobs = {job.subscription: job.id for job in published.jobs}
        async with working(app):
            assert await drained(app) == {JobState.DEAD: 1, JobState.SUCCEEDED: 1, JobState.FAILED: 1}
        assert (await final_job(app, jobs["refuse"])).attempt == 3
        assert (await final_job(app, jobs["accept"])).result == 17
        assert (await final_job(app, jobs["give_up"])).attempt == 1
    assert sorted(tries) == ["accept", "refuse", "refuse", "refuse"]


async def test_a_handler_learns_which_event_made_its_job(app: Holdfast) -> None:
    seen: dict[str, PublishedEvent | None] = {}

    @app.on("invoice.paid")
    @app.handler("receipt")
    async def receipt(job: RunningJob[Any]) -> None:
        seen[job.tenant] = job.event
        assert job.headers.get("trace") == (1 if job.event else None)

    @app.on("invoice.*")
    def book(job: RunningJob[Any]) -> None:
        seen["book"] = job.event

    async with app:
        await app.clock.freeze(datetime(2030, 1, 1, 12, tzinfo=UTC))
        published = await app.publish("invoice.paid", headers={"trace": 1}, tenant="of the event")
        await app.enqueue("receipt", tenant="of a job")
        assert (await app.tick()).is_fine
    event = PublishedEvent(published.event_id, "invoice.paid", datetime(2030, 1, 1, 12, tzinfo=UTC))
    assert seen == {"of the event": event, "of a job": None, "book": event}


@pytest.mark.parametrize(
    "header",
    [
        None, "text", {}, {"id": "7", "type": "a", "published_at": PUBLISHED},
        {"id": str(uuid4()), "type": 7, "published_at": PUBLISHED},
        {"id": str(uuid4()), "type": "a", "published_at": "yesterday"},
        {"id": str(uuid4()), "type": "a", "published_at": "2030-01-01T12:00:00"},
    ],
)  # fmt: skip
def test_a_header_with_another_format_is_not_an_event(header: object) -> None:
    assert PublishedEvent.of({EVENT_HEADER: header}) is None


async def test_a_payload_must_fit_every_subscriber_known_to_this_process(app: Holdfast) -> None:
    @app.on("invoice.*")
    async def book(job: RunningJob[Invoice]) -> None: ...

    async with app:
        with pytest.raises(InvalidInput, match=r"^payload of 'book': number: "):
            await app.publish("invoice.paid", {"number": "many"})
        assert (await app.jobs.count())[JobState.READY] == 0
        assert len((await app.publish("order.paid", {"number": "many"})).jobs) == 0


async def test_an_event_published_by_a_handler_inherits_its_tenant_and_correlation(app: Holdfast) -> None:
    heard: list[tuple[str, str]] = []

    @app.handler("pay")
    async def pay(job: RunningJob[Any]) -> None:
        await app.publish("invoice.paid")
        await app.publish("invoice.paid", tenant="other", correlation_id="c")

    @app.on("invoice.paid")
    async def listen(job: RunningJob[Any]) -> None:
        heard.append((job.tenant, job.correlation_id))

    async with app:
        await app.enqueue("pay", tenant="acme", correlation_id="order-4")
        async with working(app):
            await drained(app)
    assert sorted(heard) == [("acme", "order-4"), ("other", "c")]


async def test_publishing_without_subscribers_makes_no_jobs(app: Holdfast) -> None:
    async with app:
        published = await app.publish("invoice.paid")
    assert (published.jobs, published.new_ids) == ((), [])
    assert isinstance(published.event_id, UUID)
    assert published.event_id.version == 7


async def test_only_new_jobs_ring(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[UUID] = []

    async def ring(ids: list[UUID]) -> None:
        rung.extend(ids)

    monkeypatch.setattr(app, "ring", ring)

    @app.on("invoice.paid")
    async def listen(job: RunningJob[Any]) -> None: ...

    async with app:
        first = await app.publish("invoice.paid", key="17")
        again = await app.publish("invoice.paid", key="17")
    assert rung == first.new_ids == [again.jobs[0].id]
    assert again.new_ids == []


async def test_subscriptions_added_at_run_time_do_not_affect_declared_ones(app: Holdfast) -> None:
    @app.on("invoice.paid")
    async def receipt(job: RunningJob[Any]) -> None: ...

    @app.handler("archive", queue="slow")
    async def archive(job: RunningJob[Any]) -> None: ...

    async with app:
        await app.subscriptions.save("archive", "*", attempts=2)
        await app.subscriptions.save("elsewhere", "invoice.*", queue="there", priority=9)
        found = {each.name: (each.pattern, each.queue, each.max_attempts) for each in await app.subscriptions.list()}
        assert found == {
            "archive": ("*", "slow", 2),
            "elsewhere": ("invoice.*", "there", None),
            "receipt": ("invoice.paid", "default", None),
        }
        with pytest.raises(InvalidInput, match=r"^subscription 'receipt' is declared in the app's code; change it"):
            await app.subscriptions.save("receipt", "*")
        with pytest.raises(InvalidInput, match=r"^subscription 'receipt' is declared in the app's code; remove it"):
            await app.subscriptions.remove("receipt")
        with pytest.raises(InvalidInput, match=r"^subscription 'nobody' is not known; `holdfast subscriptions list`"):
            await app.subscriptions.remove("nobody")
        await app.subscriptions.remove("archive")
        assert [job.subscription for job in (await app.publish("invoice.paid")).jobs] == ["elsewhere", "receipt"]


def read_apart(job: RunningJob[Json]) -> list[str]:
    """Runs in another process, so it must be at the top of the module."""
    assert job.event is not None
    return [job.payload, job.event.type]


async def test_a_handler_of_json_gets_the_text_as_published(app: Holdfast) -> None:
    @app.on("a")
    async def read(job: RunningJob[Json]) -> list[str]:
        assert job.event is not None
        return [job.payload, job.event.type]

    app.on("a", isolation="process")(read_apart)
    async with app:
        published = await app.publish("a", {"price": 1.10, "name": "ü"})
        assert (await app.tick(runners=["queue"])).is_fine
        for made in published.jobs:
            assert (await final_job(app, made.id)).result == ['{"price":1.1,"name":"ü"}', "a"]
