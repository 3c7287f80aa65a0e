"""What a check must not overlook, and what it must not do to the process in which it runs."""

import asyncio
import json
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.request import Request, urlopen

import httpx
import pytest
import requests
from requests.adapters import HTTPAdapter

from holdfast import Holdfast, InvalidInput
from holdfast.testing import Tables, check_idempotency
from holdfast.testing.idempotency import background
from holdfast.testing.idempotency.trace import TRACE, Trace
from tests.testing.outside import Job, check_outside, hurt, outside
from tests.testing.shop import payment_service


async def note(text: str) -> None:
    outside.notes.append(text)


check = partial(check_outside, also=(f"{__name__}.note",))


async def test_steps_after_the_handler_returned_are_found(threads_end: None) -> None:
    tasks: set[asyncio.Task[None]] = set()

    async def send() -> None:
        async with outside.client() as client:
            await client.post("/charge", headers={"Idempotency-Key": "17"})

    async def by_task(job: Job) -> None:
        tasks.add(asyncio.create_task(send()))

    def by_thread(job: Job) -> None:
        threading.Thread(target=send_when_returned, args=(TRACE.get(),)).start()

    def send_when_returned(trace: Trace) -> None:
        while not trace.has_returned:
            time.sleep(0.001)
        asyncio.run(send())

    for handler in (by_task, by_thread):
        report = await check(handler, ignore=("notes",))
        assert not report.problems[0].crashed
        assert "POST http://service/charge" in report.problems[0].differences[0]
        assert "after the handler had returned" in report.problems[0].differences[0]
        assert "without any crash:" in str(report)
    assert all(task.done() for task in tasks)


async def test_a_task_that_never_ends_is_stopped_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_SECONDS", 0.02)
    released: list[asyncio.Event] = []
    tasks: set[asyncio.Task[None]] = set()

    async def later(event: asyncio.Event) -> None:
        await event.wait()
        await note("in a world that is not its own")

    async def handler(job: Job) -> None:
        released.append(asyncio.Event())
        tasks.add(asyncio.create_task(later(released[-1])))
        async with outside.client() as client:
            await client.put("/file")

    async def release() -> None:
        for event in released:
            event.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    app = Holdfast("memory:")
    app.handler("checked")(handler)
    outside.notes.clear()
    report = await check_idempotency(app, "checked", setup=release, observe=release, also=[f"{__name__}.note"])
    assert report.ok, report
    assert "still running" in report.notes[0]
    assert report.notes[0] in str(report)
    assert set(outside.notes) == {"PUT /file"}


async def test_a_step_in_progress_at_the_crash_does_not_revive_the_run() -> None:
    async def handler(job: Job) -> None:
        crashed = asyncio.Event()

        async def slow() -> None:
            async with outside.client() as client:
                client.event_hooks = {"request": [lambda request: crashed.wait()]}
                await client.post("/slow")

        async def fast() -> None:
            try:
                await note("fast")
            finally:
                crashed.set()

        await asyncio.gather(slow(), fast(), return_exceptions=True)
        await note("after")

    report = await check(handler, ignore=("notes",))
    assert report.problems[0].differences == (
        "POST http://service/slow: sent twice instead of once",
        f"{__name__}.note: called 3 times instead of twice",
    )


def test_a_pool_first_used_by_a_handler_still_serves_others_later() -> None:
    def send() -> None:
        httpx.Client(transport=httpx.MockTransport(outside.answer)).put("http://service/from/pool")

    app = Holdfast("memory:")
    with ThreadPoolExecutor(1) as pool:

        @app.handler("checked")
        def handler(job: Job) -> None:
            pool.submit(send).result()

        report = asyncio.run(check_idempotency(app, "checked", observe=lambda: pool.submit(send).result()))
    assert report.ok, report


async def test_a_key_used_for_two_bodies_is_found() -> None:
    async def by_attempt(job: Job) -> None:
        async with outside.client() as client:
            await client.post("/pay", headers={"Idempotency-Key": "17"}, json={"attempt": job.attempt})

    async def in_one_run(job: Job) -> None:
        async with outside.client() as client:
            for amount in (5, 7):
                await client.post("/pay", headers={"Idempotency-Key": "17"}, json={"amount": amount})

    fault = "POST http://service/pay: one Idempotency-Key came with 2 different bodies"
    report = await check(by_attempt, ignore=("notes",))
    assert hurt(report) == [1, None]
    assert report.problems[0].differences == (fault,)
    report = await check(in_one_run, ignore=("notes",))
    assert [(problem.crashed, problem.differences) for problem in report.problems] == [(False, (fault,))]


@pytest.mark.parametrize("client", ["requests", "urllib"])
def test_bodies_are_compared_for_every_client_library(client: str, threads_end: None) -> None:
    with payment_service() as service:

        def post(body: dict[str, int]) -> None:
            if client == "requests":
                requests.post(service.url, json=body, headers={"Idempotency-Key": "17"}, timeout=20)
                files = {"file": b"the same"}
                requests.post(f"{service.url}/form", files=files, headers={"Idempotency-Key": "18"}, timeout=20)
            else:
                urlopen(Request(service.url, json.dumps(body).encode(), {"Idempotency-Key": "17"})).close()  # noqa: S310

        def wrong(job: Job) -> None:
            post({"attempt": job.attempt})

        def right(job: Job) -> None:
            post({"attempt": 1})

        report = asyncio.run(check(wrong))
        assert report.problems[0].differences == (
            f"POST {service.url}: one Idempotency-Key came with 2 different bodies",
        )
        assert asyncio.run(check(right)).ok


async def test_requests_is_observed_with_a_custom_adapter() -> None:
    class Answering(HTTPAdapter):
        def send(self, request: requests.PreparedRequest, *_: object, **__: object) -> requests.Response:
            response = requests.Response()
            response.status_code, response.url, response._content = 200, request.url or "", b""
            return response

    def handler(job: Job) -> None:
        with requests.Session() as session:
            session.mount("https://", Answering())
            session.post("https://pay.example/charge")

    report = await check(handler)
    assert [step.text for step in report.steps] == ["POST https://pay.example/charge"]
    assert hurt(report) == [1, None]


async def test_a_handler_without_any_step_is_not_called_idempotent() -> None:
    async def handler(job: Job) -> None: ...

    report = await check(handler)
    assert report.ok
    assert str(report).splitlines()[0] == (
        "checked took no step that the check can see, so there was no place to crash"
    )


class Mailer:
    """Has every kind of function that a class can have."""

    @staticmethod
    def static(text: str) -> None:
        outside.notes.append(text)

    @classmethod
    def of_class(cls, text: str) -> None:
        cls.static(text)

    def awaitable(self, text: str) -> Coroutine[None, None, None]:
        return note(text)


@pytest.mark.parametrize("name", ["static", "of_class", "awaitable"])
async def test_any_function_can_be_named(name: str) -> None:
    app = Holdfast("memory:")
    before = vars(Mailer)[name]

    @app.handler("checked")
    async def handler(job: Job) -> None:
        if not outside.notes:
            sending = getattr(Mailer(), name)("sent")
            assert (sending is None) == bool(outside.notes), "what is awaited has not happened yet"
            if sending is not None:
                await sending

    path = f"{__name__}.Mailer.{name}"
    report = await check_idempotency(
        app, "checked", also=[path], observe=lambda: list(outside.notes), setup=outside.notes.clear
    )
    assert report.ok, report
    assert [step.text for step in report.steps] == [f"call of {path}"]
    assert vars(Mailer)[name] is before


async def test_one_check_at_a_time() -> None:
    send, app = httpx.AsyncClient.send, Holdfast("memory:")

    @app.handler("checked")
    async def handler(job: Job) -> None:
        with pytest.raises(InvalidInput, match="another idempotency check runs"):
            await check_idempotency(app, "checked")

    assert (await check_idempotency(app, "checked")).ok
    assert httpx.AsyncClient.send is send


async def test_a_meaningless_call_is_refused_in_one_line() -> None:
    app = Holdfast("memory:")

    @app.handler("checked")
    async def handler(job: Job) -> None: ...

    unchecked: Any = check_idempotency
    mistakes: list[tuple[dict[str, object], str]] = [
        ({"observe": "account"}, "observe: give a function"),
        ({"observe": [17]}, "observe: give a function"),
        ({"setup": {}}, "setup: give a function"),
        ({"harmless": "/log"}, "harmless: give a function"),
        ({"also": "json.dumps"}, "also: give a list"),
        ({"ignore": "notes"}, "ignore: give a list"),
    ]
    for options, message in mistakes:
        with pytest.raises(InvalidInput, match=message):
            await unchecked(app, "checked", **options)
    with pytest.raises(InvalidInput, match="already has its payload"):
        await check_idempotency(app, app.job("checked"), {"a": 1})
    with pytest.raises(InvalidInput, match="name a database and its tables"):
        Tables("postgresql:///", "")
