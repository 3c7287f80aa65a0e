"""Holdfast in a FastAPI application: a lifespan that opens the app, a dependency, and a response to outages.

Only applications that use FastAPI import this module; Holdfast does not install it.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.requests import HTTPConnection
from fastapi.responses import JSONResponse, Response

from holdfast.app import Holdfast
from holdfast.domain.errors import InvalidInput, StoreUnavailable
from holdfast.logs.records import get_logger

__all__ = ["Jobs", "exception_handlers", "get_jobs", "lifespan"]

log = get_logger("holdfast.fastapi")

_RETRY_AFTER_SECONDS = 1

OpenApi = Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, Any] | None]]
"""A lifespan, as FastAPI defines it."""


def lifespan(
    app: Holdfast[Any], inner: OpenApi | None = None, *, worker: bool = False
) -> Callable[[FastAPI], AbstractAsyncContextManager[Any]]:
    """Return a lifespan for FastAPI that keeps `app` open while the server is up.

    `inner` is the application's own lifespan. It is entered after the app has been opened and left before the app is
    closed.

    `worker` also runs the app's handlers and schedules, on the server's event loop. The server stops accepting requests
    first, then the worker finishes its jobs, then `inner` is left. If the worker ends by itself, the error is logged
    and the server is told to stop.
    """

    @asynccontextmanager
    async def opened(api: FastAPI) -> AsyncIterator[Any]:
        async with AsyncExitStack() as exits:
            await exits.enter_async_context(app)
            # A signal may end the server, and then nothing that runs at the interpreter's exit is called.
            exits.push_async_callback(asyncio.to_thread, app.sync.close)
            api.state.holdfast = app
            exits.callback(delattr, api.state, "holdfast")
            state = None if inner is None else await exits.enter_async_context(inner(api))
            if worker:
                await exits.enter_async_context(_working(app))
            yield state

    return opened


def get_jobs(connection: HTTPConnection) -> Holdfast[Any]:
    """Return the app that the lifespan opened. Override this dependency in tests and in mounted applications."""
    app: Holdfast[Any] | None = getattr(connection.app.state, "holdfast", None)
    if app is None:
        raise InvalidInput(
            "the API has no open app; use FastAPI(lifespan=lifespan(app)), and in tests enter the lifespan or set "
            "api.dependency_overrides[get_jobs]"
        )
    return app


Jobs = Annotated[Holdfast[Any], Depends(get_jobs)]
"""The type of an endpoint's parameter: `async def order(jobs: Jobs)`. In a `def` endpoint, use `jobs.sync`."""


async def _unavailable(_: Request, error: StoreUnavailable) -> Response:
    log.warning("store unavailable, answering 503", error=str(error))
    answer = {"detail": "The job store is unavailable. Try again."}
    return JSONResponse(answer, status_code=503, headers={"Retry-After": str(_RETRY_AFTER_SECONDS)})


exception_handlers: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    StoreUnavailable: _unavailable
}
"""For `FastAPI(exception_handlers=exception_handlers)`: an outage is a 503. Any other error is a bug in an endpoint."""


@asynccontextmanager
async def _working(app: Holdfast[Any]) -> AsyncIterator[None]:
    process, is_ending = app.worker(), False

    def look(ended: "asyncio.Task[int]") -> None:
        if not is_ending and not ended.cancelled():
            log.error("the worker has ended, stopping the server", exc_info=ended.exception())
            _stop_server()

    running = asyncio.create_task(process.run(), name="holdfast-worker")
    running.add_done_callback(look)
    try:
        yield
    finally:
        is_ending = True
        process.stop()
        if await running:
            raise RuntimeError("the worker gave up, because too many handlers could not be stopped")


def _stop_server() -> None:
    """Servers shut down on SIGTERM. Where nothing handles it, as in tests, it would kill the process on the spot."""
    if callable(signal.getsignal(signal.SIGTERM)):
        signal.raise_signal(signal.SIGTERM)
