"""The two schedulers: singletons that ask the API to make what is due. The API makes sure nothing is made twice."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from apps.invoicing.settings import BILLING, LOCKS, REMINDERS, Settings
from holdfast import Holdfast

log = logging.getLogger("invoicing.worker")

ENDPOINTS = {
    REMINDERS: "/internal/scheduler/invoice-reminders",
    BILLING: "/internal/scheduler/classes-billing",
}
OnRun = Callable[[str, float], object]
"""Called with a scheduler's name and the seconds that its calls took, whether they succeeded or not."""

_MOST_AT_ONCE = 200


class NotConfigured(Exception):
    """A chosen scheduler lacks the API's address or token."""


class ApiFailed(Exception):
    """The API could not be reached, or refused the call."""


def add_runners(app: Holdfast[Any], settings: Settings, on_run: OnRun, *, follows_up: bool) -> None:
    """`follows_up`: a scheduler that made its share of items and left some gets another turn at once."""
    for name, path in ENDPOINTS.items():
        scheduler = _scheduler(app, settings, name, path, on_run, follows_up=follows_up)
        app.runner(name, "every tick", lock=LOCKS[name])(scheduler)
    app.error(NotConfigured, code="NOT_CONFIGURED")
    app.error(ApiFailed, code="API_FAILED")


def _scheduler(
    app: Holdfast[Any], settings: Settings, name: str, path: str, on_run: OnRun, *, follows_up: bool
) -> Callable[[], Awaitable[dict[str, int]]]:
    async def run() -> dict[str, int]:
        began = time.monotonic()
        try:
            created, is_more = await _create_all(settings, path)
            if is_more and follows_up and not await _is_paused(app, name):
                await app.schedules.run_now(name)
        except (NotConfigured, ApiFailed) as error:
            # This service wrote these messages, so they contain no secrets.
            log.warning("%s did not succeed: %s", name, error)
            raise
        except Exception:
            log.exception("%s failed", name)
            raise
        else:
            return {"created": created}
        finally:
            on_run(name, time.monotonic() - began)

    return run


async def _is_paused(app: Holdfast[Any], name: str) -> bool:
    """Whether a person paused the scheduler. `run_now` would run it anyway."""
    return any(schedule.paused for schedule in await app.schedules.list() if schedule.name == name)


async def _create_all(settings: Settings, path: str) -> tuple[int, bool]:
    """Create in batches until nothing is left, or this runner's share of items or time is used up. Return how many
    were created, and whether there are more."""
    url, token = settings.worker_api_base_url, settings.worker_api_service_token
    if url is None or token is None:
        raise NotConfigured("set WORKER_API_BASE_URL and WORKER_API_SERVICE_TOKEN, or leave the runner out")
    most, created, is_more = settings.worker_tick_runner_max_items, 0, True
    end = time.monotonic() + settings.worker_tick_runner_max_ms / 1000
    async with httpx.AsyncClient(base_url=url, headers={"x-service-token": token}) as client:
        while is_more and created < most and (seconds := end - time.monotonic()) > 0:
            batch, is_more = await _create(client, path, min(_MOST_AT_ONCE, most - created), seconds)
            created += batch
            # If there is more but nothing was made, another process is making it.
            is_more = is_more and batch > 0
    return created, is_more


async def _create(client: httpx.AsyncClient, path: str, limit: int, seconds: float) -> tuple[int, bool]:
    # Omit a user and password, which may precede the host.
    base = client.base_url
    called = f"POST {base.scheme}://{base.netloc.decode()}{base.path.rstrip('/')}{path}"
    try:
        response = await client.post(path, params={"limit": limit}, timeout=seconds)
        response.raise_for_status()
        answer = response.json()
        return int(answer["created"]), bool(answer["more"])
    except httpx.HTTPStatusError as error:
        # Do not chain the error, here and below: its text has the whole address or the token.
        raise ApiFailed(f"{called} was answered with {_status(error.response)}") from None
    except httpx.HTTPError as error:
        said = f" {error}" if isinstance(error, httpx.ConnectError) else ""
        raise ApiFailed(f"{called}: {type(error).__name__}{said}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ApiFailed(f"{called} was answered with something other than counts") from error


def _status(response: httpx.Response) -> str:
    if response.status_code == httpx.codes.UNAUTHORIZED:
        return "401: WORKER_API_SERVICE_TOKEN differs from the API's"
    return str(response.status_code)
