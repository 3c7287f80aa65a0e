"""Registering handlers, and the payload types they can declare."""

import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from typing import Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from holdfast import Holdfast, InvalidInput, JobState, NewJob, RunningJob, Statement
from holdfast.domain.json_text import Json
from holdfast.domain.statement import nothing
from tests.worker.harness import errors, fast, final_job, job_in_state, until, working


@dataclass
class Line:
    amount: int


@dataclass
class Invoice:
    number: str
    lines: list[Line]


class InvoiceModel(BaseModel):
    number: str
    lines: list[Line]


class InvoiceDict(TypedDict):
    number: str
    lines: list[Line]


PAYLOAD = {"number": "A-1", "lines": [{"amount": 3}, {"amount": 4}]}


async def as_dataclass(job: RunningJob[Invoice]) -> int:
    return sum(line.amount for line in job.payload.lines)


async def as_model(job: RunningJob[InvoiceModel]) -> int:
    return sum(line.amount for line in job.payload.lines)


async def as_typed_dict(job: RunningJob[InvoiceDict]) -> int:
    return sum(line.amount for line in job.payload["lines"])


async def as_dict(job: RunningJob[dict[str, Any]]) -> int:
    return sum(line["amount"] for line in job.payload["lines"])


async def as_anything(job: RunningJob[Any]) -> int:
    return sum(line["amount"] for line in job.payload["lines"])


def in_thread(job: RunningJob[Invoice]) -> int:
    return sum(line.amount for line in job.payload.lines)


def unannotated(job):  # type: ignore[no-untyped-def]
    return sum(line.amount for line in job.payload.lines)


TYPED = [as_dataclass, as_model, as_typed_dict, in_thread]


@pytest.mark.parametrize("function", [*TYPED, as_dict, as_anything], ids=lambda function: function.__name__)
async def test_the_annotation_of_the_job_parameter_sets_the_payload_type(
    function: Callable[[RunningJob[Any]], Any],
) -> None:
    app = Holdfast("memory:")
    app.handler("sum")(function)
    async with app, working(app):
        job = await final_job(app, (await app.enqueue("sum", PAYLOAD)).id)
    assert (job.state, job.result) == (JobState.SUCCEEDED, 7)


async def test_the_payload_type_can_be_given_as_an_option() -> None:
    app = Holdfast("memory:")
    app.handler("sum", payload=Invoice)(unannotated)
    async with app, working(app):
        job = await final_job(app, (await app.enqueue("sum", Invoice("A-1", [Line(7)]))).id)
    assert (job.state, job.result) == (JobState.SUCCEEDED, 7)


@pytest.mark.parametrize("function", TYPED, ids=lambda function: function.__name__)
async def test_a_payload_that_does_not_fit_fails_the_job_before_its_handler_runs(
    function: Callable[[RunningJob[Any]], Any],
) -> None:
    app = Holdfast("memory:")
    ran = []

    async def handle(job: RunningJob[Any]) -> None:
        ran.append(job.id)

    handle.__annotations__ = function.__annotations__
    app.handler("sum")(handle)
    # A different version of the producer, or plain SQL, might have enqueued it like this.
    payload = Json('{"number": "A-1", "lines": [{"amount": 1}, {"amount": "two"}]}')
    new = NewJob(kind="sum", payload=payload)
    async with app, working(app):
        await app.enqueue_many([new])
        job = await final_job(app, new.id)
    (error,) = errors(job)
    assert job.state is JobState.FAILED
    assert error["code"] == "VALIDATION_ERROR"
    assert "lines.1.amount" in str(error["message"])
    assert not ran


async def test_a_validator_that_raises_fails_the_attempt_and_blocks_no_other_job() -> None:
    class Broken(BaseModel):
        number: str

        def model_post_init(self, context: object) -> None:
            raise KeyError(self.number)

    app = Holdfast("memory:")

    async def handle(job: RunningJob[Any]) -> None:
        raise AssertionError

    app.handler("broken", payload=Broken, attempts=1)(handle)
    app.handler("sum")(as_dict)
    broken = NewJob(kind="broken", payload=Json('{"number": "A-1"}'))
    async with app, working(app, fast(concurrency=1)):
        await app.enqueue_many([broken])
        job = await final_job(app, broken.id)
        assert (await final_job(app, (await app.enqueue("sum", PAYLOAD)).id)).state is JobState.SUCCEEDED
    assert job.state is JobState.DEAD
    assert [error["type"] for error in errors(job)] == ["KeyError"]


async def test_a_payload_that_does_not_fit_is_refused_at_enqueue() -> None:
    app = Holdfast("memory:")
    app.handler("sum")(as_dataclass)
    async with app:
        with pytest.raises(InvalidInput, match=r"payload of 'sum': lines\.0\.amount"):
            await app.enqueue("sum", {"number": "A-1", "lines": [{"amount": "two"}]})
        assert sum((await app.jobs.count()).values()) == 0


def test_a_payload_type_that_cannot_be_resolved_is_refused_at_registration() -> None:
    async def handle(job: "RunningJob[DefinedNowhere]") -> None:  # type: ignore[name-defined]  # noqa: F821
        """Would receive a dict where it expects an object."""

    with pytest.raises(InvalidInput, match="DefinedNowhere"):
        Holdfast("memory:").handler("sum")(handle)


def test_an_unresolvable_type_elsewhere_in_the_signature_is_accepted() -> None:
    async def handle(job: RunningJob[Invoice]) -> "DefinedNowhere":  # type: ignore[name-defined]  # noqa: F821
        """Only the job's type matters."""

    app = Holdfast("memory:")
    app.handler("sum")(handle)
    assert app.handlers["sum"].payload_type is Invoice


def test_a_payload_type_that_cannot_be_checked_is_refused_with_the_reason() -> None:
    class Opaque:
        pass

    with pytest.raises(InvalidInput, match=r"cannot be checked.*Opaque"):
        Holdfast("memory:").handler("sum", payload=Opaque)(unannotated)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"isolation": "async"}, "`def` handler cannot run on the event loop"),
        ({"isolation": "proces"}, '^isolation: .proces. is not known; use "process", or leave it out'),
        ({"limit": 0}, "limit"),
        ({"timeout": "0s"}, "timeout"),
        ({"lease": "0s"}, "lease"),
        ({"lease": "100ms"}, "shorter than 500ms"),
        ({"attempts": 0}, "attempts"),
        ({"backoff": "sometimes"}, "unknown policy"),
        ({"queue": ""}, "queue"),
        ({"atempts": 3}, "^a handler has no option 'atempts'; did you mean attempts?"),
        ({"retries": 3}, "^a handler has no option 'retries'; there are payload, queue, attempts, backoff, "),
    ],
)
def test_an_invalid_option_is_refused_at_registration(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected):
        Holdfast("memory:").handler("sum", **options)(in_thread)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def outer(job: RunningJob[Any]) -> Any:  # noqa: ANN401
        return function(job)

    return outer


@decorated
def importable(job: RunningJob[Any]) -> None: ...


class Called:
    def __call__(self, job: RunningJob[Any]) -> None: ...

    def method(self, job: RunningJob[Any]) -> None: ...


def test_a_process_handler_that_cannot_be_imported_is_refused_at_registration() -> None:
    def local(job: RunningJob[Any]) -> None: ...

    for function in (local, lambda job: None, partial(local), decorated(lambda job: None)):
        with pytest.raises(InvalidInput, match=r"a child process cannot import .*; define it at the top level"):
            Holdfast("memory:").handler("sum", isolation="process")(function)
    for function in (importable, partial(importable), Called(), Called().method):
        Holdfast("memory:").handler("sum", isolation="process")(function)
        assert pickle.dumps(function)


def test_an_async_handler_cannot_run_in_a_thread() -> None:
    with pytest.raises(InvalidInput, match="cannot run in a thread"):
        Holdfast("memory:").handler("sum", isolation="thread")(as_dict)


def test_a_handler_with_a_yield_is_refused_because_calling_it_would_run_nothing() -> None:
    def yielding(job: RunningJob[Any]) -> Iterator[int]:
        yield 1

    async def yielding_too(job: RunningJob[Any]) -> AsyncIterator[int]:
        yield 1

    for function in (yielding, yielding_too):
        with pytest.raises(InvalidInput, match=r"^handler of 'do': contains a yield"):
            Holdfast("memory:").handler("do")(function)


def test_a_kind_has_one_handler() -> None:
    app = Holdfast("memory:")
    app.handler("sum")(as_dict)
    with pytest.raises(InvalidInput, match="already has a handler"):
        app.handler("sum")(as_model)


async def test_a_worker_without_handlers_is_refused() -> None:
    async with Holdfast("memory:") as app:
        with pytest.raises(InvalidInput, match="no handlers"):
            app.worker()


async def test_a_handler_sees_the_attributes_of_its_job() -> None:
    app = Holdfast("memory:")
    seen: list[RunningJob[Any]] = []

    @app.handler("look", queue="eyes", attempts=7, timeout="90s")
    async def look(job: RunningJob[dict[str, Any]]) -> None:
        seen.append(job)

    before = datetime.now(UTC)
    async with app, working(app):
        enqueued = await app.enqueue(
            "look", {"n": 1}, tenant="acme", correlation_id="trace-1", headers={"from": "test"}, attempts=3
        )
        await final_job(app, enqueued.id)
        (job,) = seen
    assert (job.id, job.kind, job.queue, job.payload) == (enqueued.id, "look", "eyes", {"n": 1})
    assert (job.tenant, job.correlation_id, job.headers) == ("acme", "trace-1", {"from": "test"})
    assert (job.attempt, job.max_attempts) == (1, 3)
    assert job.fence > 0
    assert timedelta(seconds=89) < job.deadline - before < timedelta(seconds=120)


async def test_a_job_of_an_unknown_kind_stays_ready_and_visible() -> None:
    app = Holdfast("memory:")
    app.handler("sum")(as_dict)
    async with app, working(app) as worker:
        unknown = (await app.enqueue("nobody.knows.this")).id
        await final_job(app, (await app.enqueue("sum", PAYLOAD)).id)
        await until(lambda: worker.tally["succeed"] == 1, "the known job is done")
        job = await job_in_state(app, unknown, JobState.READY)
    assert (job.kind, job.attempt) == ("nobody.knows.this", 0)


def test_a_statement_refuses_an_unknown_connection() -> None:
    with pytest.raises(InvalidInput, match="pass one from asyncpg, psycopg, SQLAlchemy or Django"):
        Statement("SELECT 1", (), nothing).execute_on(object())
