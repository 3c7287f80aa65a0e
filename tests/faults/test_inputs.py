"""Generated bad input for each entry point: payloads, results, exceptions, names, settings and HTTP requests.

tests/domain covers the exact message of each check. These tests only show that no bad input passes the checks, and that
every answer is clear.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.domain.failures import Failures, outcome_of_value
from holdfast.domain.handlers import Handlers
from holdfast.domain.job import JobError
from holdfast.domain.json_text import LARGEST_RESULT, decode, readable
from holdfast.domain.limits import check_schema
from holdfast.domain.outcome import Canceled, Failed, Retried, Succeeded
from holdfast.events.subscriptions import Subscribed
from holdfast.http import health_server
from holdfast.http.health import Check, Health
from holdfast.http.health_server import HealthServer
from holdfast.producer.new_events import new_event
from holdfast.producer.new_jobs import new_job
from holdfast.settings import Settings, variable
from holdfast_lab.faults import inputs
from tests.databases import Servers
from tests.domain.answers import answer

LONGEST_LINE = 1_000
STATUSES = (b"200", b"400", b"404", b"405", b"414", b"431", b"503")
ANSWER_SECONDS = 20.0

any_text = st.text(st.characters(exclude_categories=()), max_size=30)


def made_by(make: Callable[[Random], Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 2**32 - 1).map(lambda seed: make(Random(seed)))


# Hypothesis prints the values it drew, and much of this input cannot be printed, so it draws seeds.
seeds = st.integers(0, 2**32 - 1)
names = made_by(inputs.name).filter(lambda name: not isinstance(name, inputs.Unshown)) | any_text


@pytest.fixture(scope="module")
def postgres(servers: Servers) -> Iterator["psycopg.Connection[tuple[Any, ...]]"]:
    with psycopg.connect(servers.get("embedded-18").url(), autocommit=True) as connection:
        yield connection


def check_line(line: str, begins: str) -> None:
    assert line.startswith(begins)
    assert line.isprintable()
    assert len(line) <= LONGEST_LINE


@settings(max_examples=300)
@given(seed=seeds)
def test_a_payload_is_refused_in_one_line_or_survives_postgres_unchanged(
    postgres: "psycopg.Connection[tuple[Any, ...]]", seed: int
) -> None:
    job, line = answer(lambda: new_job(Handlers(), "work", inputs.value(Random(seed))))
    if job is None:
        check_line(line, "payload: ")
        return
    ((kept, is_same),) = postgres.execute("SELECT %s::text::json::text, %s::text::jsonb IS NOT NULL", [job.payload] * 2)
    assert (kept, is_same) == (job.payload, True)
    assert repr(readable(kept)) == repr(decode(job.payload))


@settings(max_examples=150)
@given(seed=seeds)
def test_headers_are_refused_in_one_line_or_are_an_object(seed: int) -> None:
    job, line = answer(lambda: new_job(Handlers(), "work", headers=inputs.headers(Random(seed))))
    if job is None:
        check_line(line, "headers: ")
    else:
        assert isinstance(decode(job.headers or ""), dict)


@settings(max_examples=300)
@given(seed=seeds)
def test_a_result_is_stored_or_fails_its_job_without_another_attempt(seed: int) -> None:
    outcome = outcome_of_value(inputs.value(Random(seed)))
    match outcome:
        case Succeeded(result):
            assert len((result or "").encode()) <= LARGEST_RESULT
        case Failed(error):
            assert error.code == "INVALID_RESULT"
            check_storable(error)
        case _:
            pytest.fail(f"{outcome} is not the end of an attempt that has returned")


@settings(max_examples=300)
@given(seed=seeds)
def test_every_exception_becomes_an_outcome_that_can_be_stored(seed: int) -> None:
    try:
        raise inputs.exception(Random(seed))
    except BaseException as raised:  # noqa: BLE001 - includes KeyboardInterrupt
        outcome = Failures().outcome_of(raised)
    if isinstance(outcome, Retried | Failed | Canceled):
        check_storable(outcome.error)


def check_storable(error: JobError) -> None:
    together = "".join(error.as_dict().values())
    assert "\x00" not in together
    assert len(together.encode()) < 64 * 1024
    assert error.summary


FIELDS = ("kind", "queue", "tenant", "key", "correlation_id")


@settings(max_examples=300)
@given(field=st.sampled_from(FIELDS), name=names)
@example(field="tenant", name=0)
@example(field="correlation_id", name=False)
def test_a_name_is_refused_in_one_line_or_kept_unchanged(field: str, name: Any) -> None:  # noqa: ANN401
    job, line = answer(lambda: new_job(Handlers(), **{"kind": "work", field: name}))
    if job is None:
        check_line(line, f"{field}: ")
    elif name is not None and (name != "" or field != "correlation_id"):
        assert getattr(job, field) == name
        assert isinstance(name, str)
        assert name.isprintable()


@settings(max_examples=100)
@given(type=names, tenant=names)
def test_an_event_is_refused_in_one_line_or_kept_unchanged(type: Any, tenant: Any) -> None:  # noqa: ANN401
    event, line = answer(lambda: new_event(Handlers(), Subscribed(), type, tenant=tenant))
    if event is None:
        check_line(line, "")
        assert line.startswith(("event type: ", "tenant: "))
    else:
        assert (event.type, event.tenant) == (type, tenant or "")


@settings(max_examples=150)
@given(name=made_by(inputs.schema).filter(lambda name: not isinstance(name, inputs.Unshown)) | any_text)
def test_a_schema_is_refused_in_one_line_or_survives_quoting(
    postgres: "psycopg.Connection[tuple[Any, ...]]",
    name: Any,  # noqa: ANN401
) -> None:
    schema, line = answer(lambda: check_schema(name))
    if schema is None:
        check_line(line, "schema: ")
    else:
        # Compare the name that statements contain with the name that PostgreSQL reads from them.
        ((read,),) = postgres.execute("SELECT parse_ident(%s)", [f'"{schema}".job'])
        assert read == [name, "job"]


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("HOLDFAST_")}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(kept)


fitting = made_by(inputs.setting) | any_text.map(lambda text: "".join(filter(inputs.fits_environment, text)))


@settings(max_examples=400)
@given(name=st.sampled_from(sorted(Settings.model_fields)), value=fitting)
def test_a_setting_is_refused_in_one_line_that_names_its_variable(name: str, value: str) -> None:
    with environment({variable(name): value}):
        loaded, line = answer(Settings.load)
    if loaded is None:
        check_line(line, "")
        assert variable(name) in line
    elif isinstance(getattr(loaded, name), str) and name not in ("store", "listen_url", "rabbitmq_url"):
        getattr(loaded, name).encode()


@given(name=fitting.filter(lambda name: "=" not in name), value=fitting)
def test_an_unknown_variable_is_refused_in_one_line(name: str, value: str) -> None:
    with environment({f"HOLDFAST_{name}": value}):
        loaded, line = answer(Settings.load)
    if loaded is None:
        check_line(line, "HOLDFAST_")


async def ready() -> Health:
    return Health((Check("store", False, "does not answer"),))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """One server for all requests, because each server takes a moment to stop. Its loop runs in a thread."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        server = HealthServer("127.0.0.1", 0, ready=ready)
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        yield server.port
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def answered(port: int, sent: bytes, *, is_half: bool) -> bytes:
    """Everything received until the server closes the connection. After half a request, the client's end stays open."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS) as client:
        try:
            client.sendall(sent)
            if not is_half:
                client.shutdown(socket.SHUT_WR)
            while part := client.recv(65536):
                received += part
        except TimeoutError:
            raise
        except OSError:
            # The server closed the connection before it had received everything.
            pass
    return received


def check_answer(received: bytes, sent: bytes) -> None:
    if received.startswith(b"HTTP/"):
        assert received.split()[1] in STATUSES, (sent[:200], received[:200])
    elif received:
        # The client named no version, so the answer is HTTP/0.9, which has no status line.
        assert received.startswith(b"{"), (sent[:200], received[:200])


@settings(max_examples=150)
@given(requests=st.lists(seeds | st.binary(max_size=200), min_size=1, max_size=4))
@example(requests=[b"GET /live HTTP/9.9\r\n\r\n"])
@example(requests=[b"GET /ready HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"])
def test_the_server_answers_or_disconnects_and_still_serves_the_next_request(
    port: int, requests: list[int | bytes]
) -> None:
    for request in requests:
        sent = request if isinstance(request, bytes) else inputs.request(Random(request))
        check_answer(answered(port, sent, is_half=False), sent)
    assert b" 200 " in answered(port, b"GET /live HTTP/1.1\r\n\r\n", is_half=False)
    assert b" 503 " in answered(port, b"GET /ready HTTP/1.1\r\n\r\n", is_half=False)


async def test_half_requests_end_and_delay_no_other_client(monkeypatch: pytest.MonkeyPatch, threads_end: None) -> None:
    monkeypatch.setattr(health_server, "_CONNECTION_SECONDS", 0.5)
    random = Random(6)
    halves = [made[: len(made) // 2] for made in (inputs.request(random) for _ in range(20))]
    async with HealthServer("127.0.0.1", 0, ready=ready) as server:
        asked = [asyncio.to_thread(answered, server.port, half, is_half=True) for half in halves]
        for half, received in zip(halves, await asyncio.gather(*asked), strict=True):
            check_answer(received, half)
        probe = await asyncio.to_thread(answered, server.port, b"GET /live HTTP/1.1\r\n\r\n", is_half=True)
        assert b" 200 " in probe
    await asyncio.get_running_loop().shutdown_default_executor()


def test_a_value_that_cannot_be_shown_is_refused() -> None:
    for field in FIELDS:
        options: dict[str, Any] = {"kind": "work", field: inputs.Unshown()}
        job, line = answer(partial(new_job, Handlers(), **options))
        assert job is None
        check_line(line, f"{field}: ")
