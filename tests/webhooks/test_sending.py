"""How one webhook is sent, and what each answer of the receiver means for the job."""

import asyncio
import gzip
import logging
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.domain.failures import Failures
from holdfast.domain.outcome import Failed, Outcome, Retried
from holdfast.webhooks import (
    HttpException,
    Policy,
    Response,
    Secrets,
    WebhookError,
    WebhookGone,
    WebhookNon2xx,
    WebhookTimeout,
    send,
    sign,
)
from tests.webhooks.receiver import answering, dripping, receiving, reset, silence, unused_port

DEVELOPMENT = Policy(allow_http=True, allow_private=True)
BODY = b'{"event_id": "c0ffee"}'
SHORT = "250ms"


async def outcome(url: str, *, timeout: str = "10s", body: bytes = BODY) -> tuple[WebhookError, Outcome]:
    """Send a webhook that fails. Return the error and what it makes of the job."""
    with pytest.raises(WebhookError) as raised:
        await send(url, body, {}, policy=DEVELOPMENT, timeout=timeout)
    return raised.value, Failures().outcome_of(raised.value)


async def test_the_receiver_gets_exactly_the_body_and_the_headers() -> None:
    async with receiving(answering(200, b"thanks", X_Trace="a1")) as receiver:
        url = f"http://127.0.0.1:{receiver.port}/a%2Fb/%25?token=%C3%A9&x=1#part"
        response = await send(url, BODY, {"X-Shop-Delivery-Id": "17"}, policy=DEVELOPMENT)
    [received] = receiver.received
    assert received.line == "POST /a%2Fb/%25?token=%C3%A9&x=1 HTTP/1.1"
    assert received.body == BODY
    assert {"Host", "X-Shop-Delivery-Id"} <= set(received.names)
    assert received.headers == {
        "host": f"127.0.0.1:{receiver.port}",
        "user-agent": "Holdfast",
        "accept": "*/*",
        "accept-encoding": "identity",
        "connection": "close",
        "content-type": "application/json",
        "content-length": str(len(BODY)),
        "x-shop-delivery-id": "17",
    }
    assert (response.status, response.body, response.is_complete) == (200, b"thanks", True)
    assert response.headers == {"content-length": "6", "x-trace": "a1"}
    assert timedelta(0) < response.duration < timedelta(seconds=10)


async def test_an_application_chooses_its_content_type_and_user_agent() -> None:
    async with receiving() as receiver:
        await send(receiver.url, BODY, {"content-type": "text/plain", "USER-AGENT": "Shop"}, policy=DEVELOPMENT)
    headers = receiver.received[0].headers
    assert (headers["content-type"], headers["user-agent"]) == ("text/plain", "Shop")


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_a_delivery(status: int) -> None:
    async with receiving(answering(status)) as receiver:
        assert (await send(receiver.url, BODY, {}, policy=DEVELOPMENT)).status == status


@pytest.mark.parametrize(
    "status", [300, 302, 304, 307, 400, 401, 404, 408, 409, 411, 418, 429, 500, 502, 503, 504, 599]
)
async def test_every_other_status_is_retried(status: int) -> None:
    body = b"" if status == 304 else b"no"
    async with receiving(answering(status, body)) as receiver:
        error, outcome_ = await outcome(receiver.url)
    assert isinstance(error, WebhookNon2xx)
    assert (error.response.status, error.response.body) == (status, body)
    assert isinstance(outcome_, Retried)
    assert (outcome_.error.code, outcome_.after) == ("WebhookNon2xx", None)
    assert str(status) in outcome_.error.message


async def test_410_ends_the_job_failed() -> None:
    async with receiving(answering(410, b"unsubscribed", retry_after="60")) as receiver:
        error, outcome_ = await outcome(receiver.url)
    assert isinstance(error, WebhookGone)
    assert (error.response.status, error.response.body) == (410, b"unsubscribed")
    assert isinstance(outcome_, Failed)
    assert outcome_.error.code == "WebhookGone"


@pytest.mark.parametrize("status", [429, 503])
async def test_the_next_attempt_is_when_the_receiver_asked_for_it(status: int) -> None:
    async with receiving(answering(status, Retry_After="120")) as receiver:
        _, outcome_ = await outcome(receiver.url)
    assert isinstance(outcome_, Retried)
    assert outcome_.after == timedelta(minutes=2)


async def test_every_attempt_has_the_same_delivery_id() -> None:
    async with receiving(answering(500)) as receiver:
        for _ in range(2):
            headers = sign(BODY, Secrets("s"), prefix="X-Shop", event_type="ORDER_PAID", delivery_id="17")
            with pytest.raises(WebhookNon2xx):
                await send(receiver.url, BODY, headers, policy=DEVELOPMENT)
    assert [received.headers["x-shop-delivery-id"] for received in receiver.received] == ["17", "17"]


# Oversized and compressed responses


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 16_384)
        await writer.drain()


async def test_the_rest_of_an_endless_response_is_not_read() -> None:
    async with receiving(endless) as receiver:
        response = await send(receiver.url, BODY, {}, policy=DEVELOPMENT)
    assert (response.status, response.is_complete) == (200, False)
    assert response.body == b"x" * 65_536


@pytest.mark.parametrize(("length", "is_complete"), [(99, True), (100, True), (101, False), (10_000_000, False)])
async def test_at_most_keep_bytes_are_kept(length: int, is_complete: bool) -> None:
    async with receiving(answering(500, b"x" * length)) as receiver:
        with pytest.raises(WebhookNon2xx) as failed:
            await send(receiver.url, BODY, {}, policy=DEVELOPMENT, keep=100)
    assert failed.value.response.is_complete is is_complete
    assert failed.value.response.body == b"x" * min(length, 100)


async def test_a_compressed_bomb_is_not_expanded() -> None:
    bomb = gzip.compress(bytes(20_000_000))
    async with receiving(answering(200, bomb, content_encoding="gzip")) as receiver:
        response = await send(receiver.url, BODY, {}, policy=DEVELOPMENT)
    assert receiver.received[0].headers["accept-encoding"] == "identity"
    assert response.body == bomb[:65_536]


async def test_endless_headers_are_an_error_and_not_a_full_memory() -> None:
    async def headers(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Long: " + b"x" * 8_000 + b"\r\n")
            await writer.drain()

    async with receiving(headers) as receiver:
        error, _ = await outcome(receiver.url)
    assert isinstance(error, HttpException)


# One deadline for everything


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (silence, None),
        (dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), None),
        (dripping(b"HTTP/1.1 200 OK\r\nX-Drip: ", b"x"), None),
        (dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x"), 200),
        (dripping(b"HTTP/1.1 410 Gone\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"), 410),
    ],
    ids=["silence", "drip of interim answers", "drip of headers", "drip of a body", "drip of chunks"],
)
async def test_a_slow_answer_is_cut_at_the_deadline(
    answer: object, status: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    started = time.monotonic()
    async with receiving(answer) as receiver:  # type: ignore[arg-type]
        error, outcome_ = await outcome(receiver.url, timeout=SHORT)
    assert 0.2 < time.monotonic() - started < 5
    assert isinstance(error, WebhookTimeout)
    assert isinstance(outcome_, Retried)
    assert outcome_.error.code == "WebhookTimeout"
    assert "250ms" in outcome_.error.message
    # What arrived before the deadline is there to be stored.
    assert (error.response.status if error.response else None) == status
    if error.response:
        assert set(error.response.body) == {ord("x")}
        assert not error.response.is_complete


async def test_a_receiver_that_does_not_read_is_cut_at_the_deadline() -> None:
    async with receiving(silence, reads=False) as receiver:
        error, _ = await outcome(receiver.url, timeout=SHORT, body=bytes(50_000_000))
    assert isinstance(error, WebhookTimeout)


async def test_a_receiver_that_never_accepts_is_cut_at_the_deadline() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        error, _ = await outcome(f"http://127.0.0.1:{port}/", timeout=SHORT)
        for each in waiting:
            each.close()
    assert isinstance(error, WebhookTimeout)


async def test_a_receiver_that_never_starts_tls_is_cut_at_the_deadline() -> None:
    async with receiving(silence, reads=False) as receiver:
        error, _ = await outcome(f"https://127.0.0.1:{receiver.port}/", timeout=SHORT)
    assert isinstance(error, WebhookTimeout)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("ends", ["timeout", "cancellation"])
async def test_a_connection_that_is_given_up_is_closed_at_once(scheme: str, ends: str) -> None:
    opened, closed = asyncio.Event(), asyncio.Event()

    async def only_listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.set()
        with suppress(ConnectionError):
            await reader.read(-1)
        closed.set()
        writer.close()

    server = await asyncio.start_server(only_listen, "127.0.0.1", 0)
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server:
        sending = asyncio.create_task(send(url, BODY, {}, policy=DEVELOPMENT, timeout=SHORT))
        await opened.wait()
        if ends == "cancellation":
            sending.cancel()
        # The error keeps the connection's objects alive, so no garbage collector closes it.
        with pytest.raises((WebhookTimeout, asyncio.CancelledError)) as raised:
            await sending
        await asyncio.wait_for(closed.wait(), 10)
    assert isinstance(raised.value, WebhookTimeout) is (ends == "timeout")


# Network errors


async def close(writer: asyncio.StreamWriter) -> None:
    """Close the connection without an answer."""


async def test_a_refused_connection_is_retried() -> None:
    port = unused_port()
    error, outcome_ = await outcome(f"http://127.0.0.1:{port}/")
    assert isinstance(error, HttpException)
    assert isinstance(outcome_, Retried)
    assert (outcome_.error.code, outcome_.error.message) == ("HttpException", "127.0.0.1: Connection refused")
    assert error.response is None


@pytest.mark.parametrize(
    "answer",
    [reset, close, b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Le", b"\x00\xff" * 100],
    ids=["reset", "closed", "SSH", "half a header", "noise"],
)
async def test_a_broken_answer_is_retried(answer: object) -> None:
    async with receiving(answer) as receiver:  # type: ignore[arg-type]
        error, outcome_ = await outcome(receiver.url)
    assert isinstance(error, HttpException)
    assert isinstance(outcome_, Retried)
    assert outcome_.error.code == "HttpException"


async def test_a_success_that_breaks_off_is_retried_with_what_arrived() -> None:
    async with receiving(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhal") as receiver:
        error, _ = await outcome(receiver.url)
    assert isinstance(error, HttpException)
    assert error.response is not None
    assert (error.response.status, error.response.body, error.response.is_complete) == (200, b"hal", False)


async def test_an_unknown_host_is_retried() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def empty(host: str, port: int) -> Sequence[str]:
        return []

    for resolve in (unknown, empty):
        with pytest.raises(HttpException, match=r"^hooks\.example\.com: [NT]") as failed:
            await send("https://hooks.example.com/", BODY, {}, resolve=resolve)
        assert isinstance(Failures().outcome_of(failed.value), Retried)


async def test_the_next_address_is_tried_if_the_first_refuses_the_connection() -> None:
    async def two(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async with receiving() as receiver:
        url = f"http://hooks.example.com:{receiver.port}/"
        assert (await send(url, BODY, {}, policy=DEVELOPMENT, resolve=two)).status == 204


async def test_the_next_address_is_not_tried_once_the_request_was_sent() -> None:
    async def two(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]

    async with receiving(reset, host="127.0.0.2") as first, receiving(port=first.port) as second:
        with pytest.raises(HttpException):
            await send(f"http://hooks.example.com:{first.port}/", BODY, {}, policy=DEVELOPMENT, resolve=two)
        assert (first.connections, second.connections) == (1, 0)


async def test_the_systems_resolver_finds_this_machine() -> None:
    async with receiving() as receiver:
        await send(f"http://localhost:{receiver.port}/", BODY, {}, policy=DEVELOPMENT)
    assert receiver.received[0].headers["host"] == f"localhost:{receiver.port}"


# What a caller may not do, and what is never shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Host", "internal"),
        ("content-length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("connection", "keep-alive"),
        ("Accept-Encoding", "gzip"),
        ("X-Event", "a\r\nX-Admin: 1"),
        ("X-Event", "a\x00"),
        ("X-Event", "é"),
        ("X-Event", ""),
        ("X-Event", " a"),
        ("X Event", "a"),
        ("", "a"),
    ],
)
async def test_a_header_that_could_change_the_request_is_the_callers_mistake(name: str, value: str) -> None:
    async with receiving() as receiver:
        with pytest.raises(InvalidInput):
            await send(receiver.url, BODY, {name: value}, policy=DEVELOPMENT)
        assert receiver.connections == 0


async def test_neither_secrets_nor_the_whole_address_are_logged_or_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = Secrets("old-secret", "new-secret")
    shown = [repr(secrets), str(secrets), f"{secrets}"]
    headers = sign(BODY, secrets, prefix="X-Shop", event_type="ORDER_PAID", delivery_id="17")
    async with receiving(answering(500, b"private answer")) as receiver:
        url = f"{receiver.url}/path-token?query-token"
        with pytest.raises(WebhookNon2xx) as failed:
            await send(url, BODY, headers, policy=DEVELOPMENT)
    described = Failures().outcome_of(failed.value)
    shown += [str(failed.value), repr(failed.value), repr(failed.value.response), repr(described), caplog.text]
    for hidden in ("old-secret", "new-secret", "path-token", "query-token", "private answer"):
        assert not [text for text in shown if hidden in text]


def test_a_response_cannot_be_changed() -> None:
    response = Response(200, {}, b"", True, timedelta(0))
    with pytest.raises(AttributeError):
        response.status = 500  # type: ignore[misc]
