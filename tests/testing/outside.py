"""An in-memory outside world for handlers under the idempotency check: a service, and a record of what happened."""

from collections.abc import Callable, Coroutine

import httpx

from holdfast import Holdfast, RunningJob
from holdfast.testing import IdempotencyReport, Request, check_idempotency

Job = RunningJob[dict[str, object]]


class Outside:
    """Handlers reach it through an httpx transport or through functions of the application."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer), base_url="http://service")

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.notes.append(f"{request.method} {request.url.path}")
        return httpx.Response(200)


outside = Outside()


async def check_outside(
    function: Callable[[Job], Coroutine[None, None, object]] | Callable[[Job], object],
    *,
    also: tuple[str, ...],
    ignore: tuple[str, ...] = (),
    harmless: Callable[[Request], bool] | None = None,
    most_steps: int = 50,
    isolation: str | None = None,
) -> IdempotencyReport:
    app = Holdfast("memory:")
    app.handler("checked", isolation=isolation)(function)
    return await check_idempotency(
        app,
        "checked",
        observe=lambda: {"notes": list(outside.notes)},
        setup=outside.notes.clear,
        also=also,
        ignore=ignore,
        harmless=harmless,
        most_steps=most_steps,
    )


def hurt(report: IdempotencyReport) -> list[int | None]:
    """The numbers of the steps after which a crash does damage."""
    return [problem.step.number if problem.step else None for problem in report.problems]
