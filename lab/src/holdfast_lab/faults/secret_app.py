"""Handlers that know a secret and fail with it in every way, so that cases can search for leaks."""

import os
from typing import Any

from pydantic import BaseModel

from holdfast import Cancel, Permanent, RunningJob
from holdfast.domain.retry import exponential
from holdfast_lab.faults.app import Job, app, attempt

SECRET = "FAULTS_SECRET"  # noqa: S105 - a variable's name
"""The inline runner's secret; the others get theirs in the payload."""
SUCCEEDS, TYPED, RUNNER = "secret.succeeds", "secret.typed", "secret.runner"
FAILING = tuple(
    f"secret.{how}" for how in ("raises", "in_thread", "in_process", "is_permanent", "is_canceled", "result")
)
_SOON = exponential(base="50ms", max="50ms")


class Card(BaseModel):
    card: int


class _Unwritable:
    """A result that is not JSON, and whose repr reveals the secret."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return f"Unwritable({self._secret!r})"


def _secret(job: Job) -> str:
    return str(job.payload["card"])


def _fail(job: Job) -> None:
    try:
        raise ValueError(f"{_secret(job)} is no card")
    except ValueError as error:
        failure = RuntimeError(f"cannot charge {_secret(job)}")
        failure.add_note(f"the card was {_secret(job)}")
        raise failure from error


@app.handler(SUCCEEDS)
async def succeeds(job: Job) -> dict[str, object]:
    with attempt(job):
        return {"fence": job.fence, "card": _secret(job)}


@app.handler("secret.raises", attempts=2, backoff=_SOON)
async def raises(job: Job) -> None:
    with attempt(job):
        _fail(job)


@app.handler("secret.in_thread", attempts=2, backoff=_SOON)
def raises_in_a_thread(job: Job) -> None:
    with attempt(job):
        _fail(job)


@app.handler("secret.in_process", attempts=2, backoff=_SOON, isolation="process")
def raises_in_a_process(job: Job) -> None:
    with attempt(job):
        _fail(job)


@app.handler("secret.is_permanent")
async def is_permanent(job: Job) -> None:
    with attempt(job):
        raise Permanent("BLOCKED", f"{_secret(job)} is blocked")


@app.handler("secret.is_canceled")
async def is_canceled(job: Job) -> None:
    with attempt(job):
        raise Cancel(f"{_secret(job)} is not wanted")


@app.handler("secret.result")
async def unwritable(job: Job) -> Any:  # noqa: ANN401
    with attempt(job):
        return {"card": _Unwritable(_secret(job))}


@app.handler(TYPED)
async def typed(job: RunningJob[Card]) -> None:
    """Never called, because its payload has the wrong type."""


@app.runner(RUNNER, "every 1s")
async def fails_inline() -> None:
    raise RuntimeError(f"cannot log in with {os.environ.get(SECRET, '')}")
