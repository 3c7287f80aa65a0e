"""`holdfast.fastapi` in memory: what is open when, the dependency, the worker inside the server, the 503."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request

from holdfast import Holdfast, InvalidInput, RunningJob, StoreUnavailable
from holdfast.fastapi import Jobs, exception_handlers, get_jobs, lifespan
from holdfast.testing import in_memory


@asynccontextmanager
async def served(api: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with api.router.lifespan_context(api), client_of(api) as client:
        yield client


async def served_until(told: asyncio.Event, app: Holdfast, begin: Callable[[], object]) -> None:
    async with served(FastAPI(lifespan=lifespan(app, worker=True))), asyncio.timeout(10):
        await asyncio.to_thread(begin)
        await told.wait()


def client_of(api: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://shop.test")


def shop() -> Holdfast:
    app = Holdfast("memory:", poll="50ms", shutdown="5s")

    @app.handler("double")
    async def double(job: RunningJob[int]) -> int:
        return 2 * job.payload

    return app


def with_endpoints(api: FastAPI) -> FastAPI:
    @api.post("/doubled/{number}")
    async def doubled(number: int, jobs: Jobs) -> int:
        enqueued = await jobs.enqueue("double", number)
        return int(await enqueued.result("10s"))

    @api.post("/enqueued/{number}")
    async def enqueued(number: int, jobs: Jobs) -> None:
        await jobs.enqueue("double", number)

    @api.post("/doubled-in-a-thread/{number}")
    def doubled_in_a_thread(number: int, jobs: Jobs) -> int:
        return int(jobs.sync.enqueue("double", number).result("10s"))

    return api


async def test_the_app_is_open_while_the_api_is_up_and_around_the_lifespan_of_the_api() -> None:
    app, notes = shop(), list[str]()

    @asynccontextmanager
    async def inner(api: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        notes.append(f"entered {app.is_open}")
        yield {"color": "blue"}
        notes.append(f"left {app.is_open}")

    api = FastAPI(lifespan=lifespan(app, inner))
    async with api.router.lifespan_context(api) as state:
        assert state == {"color": "blue"}
        assert app.is_open
    assert notes == ["entered True", "left True"]
    assert not app.is_open


async def test_async_endpoints_and_those_in_threads_reach_a_worker_inside_the_server() -> None:
    api = with_endpoints(FastAPI(lifespan=lifespan(shop(), worker=True)))
    async with served(api) as client:
        assert (await client.post("/doubled/4")).json() == 8
        assert (await client.post("/doubled-in-a-thread/5")).json() == 10
        assert [thread.name for thread in threading.enumerate() if thread.name == "holdfast-portal"]
    assert not [thread.name for thread in threading.enumerate() if thread.name == "holdfast-portal"]


async def test_the_worker_finishes_its_jobs_before_anything_is_closed() -> None:
    app, started, notes = shop(), asyncio.Event(), list[str]()

    @app.handler("slow")
    async def slow(job: RunningJob[None]) -> None:
        started.set()
        await asyncio.sleep(0.1)
        notes.append("finished")

    @asynccontextmanager
    async def inner(api: FastAPI) -> AsyncIterator[None]:
        yield
        notes.append("left")

    async with served(FastAPI(lifespan=lifespan(app, inner, worker=True))):
        await app.enqueue("slow")
        await started.wait()
    assert notes == ["finished", "left"]


async def test_without_the_lifespan_an_endpoint_says_what_is_missing() -> None:
    async with client_of(with_endpoints(FastAPI())) as client:
        with pytest.raises(InvalidInput, match=r"FastAPI\(lifespan=lifespan\(app\)\)"):
            await client.post("/doubled/4")


async def test_a_test_overrides_the_dependency() -> None:
    api, app = with_endpoints(FastAPI()), shop()
    api.dependency_overrides[get_jobs] = lambda: app
    async with in_memory(app) as jobs, client_of(api) as client:
        await client.post("/enqueued/4")
        await jobs.assert_enqueued("double", 4)
        assert [job.result for job in (await jobs.drain()).succeeded] == [8]


class Dying:
    """An app whose worker dies as soon as it starts, or later."""

    def __init__(self) -> None:
        self.app = Holdfast("memory:", lifespan=self.lifespan, poll="50ms")
        self.die = threading.Event()
        self.app.handler("wait")(self.wait)

    async def wait(self, job: RunningJob[None]) -> None: ...

    @asynccontextmanager
    async def lifespan(self, app: Holdfast) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.fail())
            yield

    async def fail(self) -> None:
        await asyncio.to_thread(self.die.wait)
        raise ConnectionError("no pool today")


@pytest.mark.parametrize("when", ["at the start", "later"])
async def test_a_worker_that_dies_is_logged_and_stops_the_server(when: str, caplog: pytest.LogCaptureFixture) -> None:
    dying, told = Dying(), asyncio.Event()
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.set())
    if when == "at the start":
        dying.die.set()
    try:
        with pytest.raises(ExceptionGroup) as raised:
            await served_until(told, dying.app, dying.die.set)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert raised.group_contains(ConnectionError, match="no pool today")
    (record,) = [record for record in caplog.records if record.name == "holdfast.fastapi"]
    assert record.levelno == logging.ERROR
    assert "the worker has ended, stopping the server" in record.getMessage()
    assert not dying.app.is_open


async def test_a_worker_whose_handlers_cannot_be_stopped_stops_the_server() -> None:
    app, told, release = Holdfast("memory:", concurrency=1, shutdown="100ms"), asyncio.Event(), threading.Event()

    @app.handler("hang", timeout="50ms", attempts=1)
    def hang(job: RunningJob[None]) -> None:
        release.wait()

    before = signal.signal(signal.SIGTERM, lambda number, frame: told.set())
    try:
        with pytest.raises(RuntimeError, match="handlers could not be stopped"):
            await served_until(told, app, lambda: app.sync.enqueue("hang"))
    finally:
        release.set()
        signal.signal(signal.SIGTERM, before)


async def test_where_no_server_handles_the_signal_none_is_sent() -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    dying = Dying()
    dying.die.set()
    with pytest.raises(ExceptionGroup):
        async with served(FastAPI(lifespan=lifespan(dying.app, worker=True))):
            pass


async def test_an_unavailable_store_is_503_and_a_mistake_is_not_hidden(caplog: pytest.LogCaptureFixture) -> None:
    api = FastAPI(exception_handlers=exception_handlers)

    @api.get("/down")
    async def down() -> None:
        raise StoreUnavailable("10.0.0.7 does not answer")

    @api.get("/mistake")
    async def mistake(request: Request) -> None:
        raise InvalidInput("key: too long")

    @api.get("/missing")
    async def missing() -> None:
        raise HTTPException(404)

    async with client_of(api) as client:
        answer = await client.get("/down")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "10.0.0.7" not in answer.text
        assert "10.0.0.7 does not answer" in caplog.text
        with pytest.raises(InvalidInput):
            await client.get("/mistake")
        assert (await client.get("/missing")).status_code == 404


def test_uvicorn_ends_with_a_worker_that_dies(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from contextlib import asynccontextmanager\n"
        "from fastapi import FastAPI\n"
        "from holdfast import Holdfast\n"
        "from holdfast.fastapi import lifespan\n"
        "@asynccontextmanager\n"
        "async def open_clients(app):\n"
        "    raise ConnectionError('no clients today')\n"
        "    yield\n"
        "app = Holdfast('memory:', lifespan=open_clients)\n"
        "app.handler('anything')(print)\n"
        "api = FastAPI(lifespan=lifespan(app, worker=True))\n"
    )
    command = [sys.executable, "-m", "uvicorn", "program:api", "--port", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode != 0
    assert "the worker has ended, stopping the server" in done.stderr
    assert "ConnectionError: no clients today" in done.stderr
