"""`@app.on_dead` as an application uses it, with a worker."""

from dataclasses import dataclass
from typing import Any, Unpack
from uuid import UUID

import pytest

from holdfast import DeadJob, Holdfast, InvalidInput, JobState, Kind, Permanent, RunningJob
from holdfast.declaring import HandlerOptions
from holdfast.domain.json_text import Json
from holdfast.store.contract import JobFilter
from holdfast.store.events import NewSubscription
from tests.databases import Database, connected
from tests.wake.ear import Ear
from tests.wake.ear import listening as hearing
from tests.worker.harness import drained, until, working


@dataclass
class Invoice:
    number: int


@pytest.fixture
def app() -> Holdfast:
    return Holdfast("memory:")


def mourning(app: Holdfast, **options: Unpack[HandlerOptions]) -> list[RunningJob[DeadJob[Invoice]]]:
    seen: list[RunningJob[DeadJob[Invoice]]] = []

    @app.on_dead("invoice.send", **options)
    async def mourn(job: RunningJob[DeadJob[Invoice]]) -> None:
        seen.append(job)

    return seen


def test_the_handler_accepts_every_option_and_its_own_kind(app: Holdfast) -> None:
    mourning(app, queue="mail", attempts=8)
    assert list(app.subscribed) == [NewSubscription("invoice.send.dead", "holdfast.dead.invoice.send", "mail")]
    assert (app.handlers["invoice.send.dead"].queue, app.handlers["invoice.send.dead"].attempts) == ("mail", 8)


def test_a_kind_can_be_passed_instead_of_its_name(app: Holdfast) -> None:
    @app.on_dead(Kind("invoice.send", Invoice, queue="mail"))
    async def mourn(job: RunningJob[DeadJob[Invoice]]) -> None: ...

    assert list(app.subscribed) == [NewSubscription("invoice.send.dead", "holdfast.dead.invoice.send")]
    assert app.handlers["invoice.send.dead"].payload_type == DeadJob[Invoice]


def test_one_function_serves_several_kinds(app: Holdfast) -> None:
    @app.on_dead("invoice.send")
    @app.on_dead("order.*", name="orders")
    def mourn(job: RunningJob[Any]) -> None: ...

    assert {(each.name, each.pattern) for each in app.subscribed} == {
        ("invoice.send.dead", "holdfast.dead.invoice.send"),
        ("orders", "holdfast.dead.order.*"),
    }


async def test_invalid_uses_are_refused_at_the_declaration(app: Holdfast) -> None:
    mourning(app)
    with pytest.raises(
        InvalidInput, match=r"^subscription 'invoice.send.dead' is already declared|already has a handler"
    ):
        mourning(app)
    with pytest.raises(InvalidInput, match=r'^name the kind: write @app.on_dead\("invoice.send"\), not @app.on_dead$'):
        app.on_dead(lambda job: None)  # type: ignore[call-overload]
    for kinds in ("*", "invoice.*"):
        with pytest.raises(InvalidInput, match=r"^on_dead: '.*' matches several kinds; use name= "):
            app.on_dead(kinds)
    for kind in ("a..b", "a*", ".a", "a" * 250):
        with pytest.raises(InvalidInput, match=r"^(on_dead|kind): "):
            app.on_dead(kind, name="x")
    with pytest.raises(InvalidInput, match=r"^on_dead: jobs of kind 'invoice.send.dead' are made by deaths themselves"):
        app.on_dead("invoice.send.dead")(lambda job: None)
    with pytest.raises(InvalidInput, match=r"^event type: .* which is reserved for the store$"):
        await app.publish("holdfast.dead.invoice.send")


async def test_a_permanent_error_runs_it_with_the_typed_payload(app: Holdfast) -> None:
    seen = mourning(app)

    @app.handler("invoice.send")
    async def send(job: RunningJob[Invoice]) -> None:
        raise Permanent("NO_ADDRESS", "there is none")

    async with app:
        enqueued = await app.enqueue("invoice.send", Invoice(7), tenant="acme", correlation_id="order-4")
        async with working(app):
            await drained(app)
    (job,) = seen
    assert job.payload == DeadJob(
        id=enqueued.id,
        kind="invoice.send",
        payload=Invoice(7),
        code="NO_ADDRESS",
        message="there is none",
        state=JobState.FAILED,
        attempts=1,
        tenant="acme",
        correlation_id="order-4",
    )
    assert (job.tenant, job.correlation_id, job.kind) == ("acme", "order-4", "invoice.send.dead")
    assert job.event is not None
    assert job.event.type == "holdfast.dead.invoice.send"


async def test_exhausted_attempts_run_it_once(app: Holdfast) -> None:
    seen = mourning(app)

    @app.handler("invoice.send", attempts=3, backoff="steps 0s")
    def send(job: RunningJob[Invoice]) -> None:
        raise ValueError("down")

    async with app:
        await app.enqueue("invoice.send", Invoice(7))
        async with working(app):
            await drained(app)
    ((dead),) = [job.payload for job in seen]
    assert (dead.state, dead.attempts, dead.code, dead.message) == (JobState.DEAD, 3, "ERROR", "down")


@pytest.mark.parametrize("isolation", ["async", "process"])
@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
@pytest.mark.parametrize(
    ("payload", "read"),
    [
        ('{"number": "many"}', {"number": "many"}),
        ('{"number": "\\ud800"}', {"number": "\ud800"}),
        ('"\\u0000"', "\0"),
        ("[" * 300 + "]" * 300, None),
        ("[" * 5_000 + "]" * 5_000, "[" * 5_000 + "]" * 5_000),
        ('{"number": ' + "9" * 5_000 + "}", '{"number": ' + "9" * 5_000 + "}"),
    ],
    ids=["another type", "a lone surrogate", "a NUL character", "300 deep", "5,000 deep", "5,000 digits"],
)
@pytest.mark.postgres
async def test_a_payload_that_does_not_fit_is_passed_unchanged(
    database: Database, payload: str, read: object, isolation: str
) -> None:
    app = Holdfast(database.url)
    seen: list[DeadJob[Invoice]] = []

    @app.handler("invoice.send")
    async def send(job: RunningJob[Invoice]) -> None: ...

    if isolation == "async":

        @app.on_dead("invoice.send")
        async def mourn(job: RunningJob[DeadJob[Invoice]]) -> None:
            seen.append(job.payload)
    else:
        app.on_dead("invoice.send", isolation="process")(mourn_in_process)

    async with app:
        await app.declare()
        async with connected(database.url) as connection:
            id = await connection.fetchval("SELECT id FROM holdfast.enqueue('invoice.send', $1::text::json)", payload)
        async with working(app):
            counts = await drained(app)
        assert counts == {JobState.FAILED: 1, JobState.SUCCEEDED: 1}
        if isolation == "async":
            (dead,) = seen
            assert (dead.id, dead.code) == (id, "VALIDATION_ERROR")
            assert read is None or dead.payload == read


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
@pytest.mark.postgres
async def test_a_handler_of_deaths_with_any_annotation_reads_every_payload(database: Database) -> None:
    app = Holdfast(database.url)
    seen: list[object] = []

    @app.handler("invoice.send")
    async def send(job: RunningJob[Invoice]) -> None: ...

    @app.on_dead("invoice.send", name="plain", attempts=1)
    async def plain(job) -> None:  # type: ignore[no-untyped-def]
        seen.append(job.payload["payload"])

    @app.on_dead("invoice.send", name="mapping", attempts=1)
    async def mapping(job: RunningJob[dict[str, object]]) -> None:
        seen.append(job.payload["payload"])

    deep = "[" * 5_000 + "]" * 5_000
    async with app:
        await app.declare()
        async with connected(database.url) as connection:
            for payload in ('"\\ud800"', deep):
                await connection.execute("SELECT holdfast.enqueue('invoice.send', $1::text::json)", payload)
        async with working(app):
            assert await drained(app) == {JobState.FAILED: 2, JobState.SUCCEEDED: 4}
    assert sorted(map(repr, seen)) == sorted(map(repr, ["\ud800", "\ud800", deep, deep]))


def mourn_in_process(job: RunningJob[DeadJob[Invoice]]) -> None:
    assert isinstance(job.payload, DeadJob)
    assert isinstance(job.payload.id, UUID)


@pytest.mark.postgres
@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_a_death_wakes_a_worker_sleeping_on_the_queue(database: Database) -> None:
    app = Holdfast(database.url)

    @app.handler("x")
    async def fail(job: RunningJob[Json]) -> None:
        raise Permanent("NO")

    async with app, hearing(database.url) as ear:
        await app.opened.events.declare([NewSubscription("x.dead", "holdfast.dead.x", queue="mourning")])
        await ear.asleep("mourning")
        await app.enqueue("x")
        async with working(app):
            await until(lambda: seen_ring(ear), "a ring")
        assert [job.kind for job in await app.jobs.list(JobFilter(state=JobState.READY), 10)] == ["x.dead"]


async def seen_ring(ear: Ear) -> bool:
    return any(ring.queue == "mourning" for ring in await ear.rings())
