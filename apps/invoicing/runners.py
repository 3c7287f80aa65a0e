"""The two schedulers: singletons that ask the API to make what is due. It sees to it that nothing is made twice."""

import time
from collections.abc import Awaitable, Callable

import httpx

from apps.invoicing.settings import BILLING, LOCKS, REMINDERS, Settings
from holdfast import Holdfast

ENDPOINTS = {
    REMINDERS: "/internal/scheduler/invoice-reminders",
    BILLING: "/internal/scheduler/classes-billing",
}
TIMETABLE = "every 1m"

_MOST_AT_ONCE = 200


class NotConfigured(Exception):
    """A scheduler is chosen that does not know what to call."""


class ApiFailed(Exception):
    """The API could not be reached, or did not do it."""


def add_runners(app: Holdfast, settings: Settings) -> None:
    for name, path in ENDPOINTS.items():
        app.runner(name, TIMETABLE, lock=LOCKS[name])(_scheduler(settings, path))
    app.error(NotConfigured, code="NOT_CONFIGURED")
    app.error(ApiFailed, code="API_FAILED")


def _scheduler(settings: Settings, path: str) -> Callable[[], Awaitable[dict[str, int]]]:
    async def run() -> dict[str, int]:
        return {"created": await _create_all(settings, path)}

    return run


async def _create_all(settings: Settings, path: str) -> int:
    """Batch by batch until there is no more, or this runner's share of items or time is spent."""
    url, token = settings.worker_api_base_url, settings.worker_api_service_token
    if url is None or token is None:
        raise NotConfigured("set WORKER_API_BASE_URL and WORKER_API_SERVICE_TOKEN, or leave the runner out")
    most, created, is_more = settings.worker_tick_runner_max_items, 0, True
    end = time.monotonic() + settings.worker_tick_runner_max_ms / 1000
    async with httpx.AsyncClient(base_url=url, headers={"x-service-token": token}) as client:
        while is_more and created < most and (seconds := end - time.monotonic()) > 0:
            batch, is_more = await _create(client, path, min(_MOST_AT_ONCE, most - created), seconds)
            created += batch
            # With more to come and nothing made, somebody else is at it.
            is_more = is_more and batch > 0
    return created


async def _create(client: httpx.AsyncClient, path: str, limit: int, seconds: float) -> tuple[int, bool]:
    try:
        response = await client.post(path, params={"limit": limit}, timeout=seconds)
        response.raise_for_status()
        answer = response.json()
        return int(answer["created"]), bool(answer["more"])
    except httpx.HTTPStatusError as error:
        raise ApiFailed(f"POST {path} was answered with {error.response.status_code}") from error
    except httpx.HTTPError as error:
        raise ApiFailed(f"POST {path}: {type(error).__name__} {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ApiFailed(f"POST {path} was answered with something else than counts") from error
