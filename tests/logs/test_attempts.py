"""One record per attempt: when it is written, what it contains, and how much of the handler's own text."""

import asyncio
import logging
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Cancel, Holdfast, Permanent, RunningJob, Snooze
from holdfast.logs.formats import ConsoleFormatter
from holdfast.store.contract import ClaimRequest, KindClaim
from tests.worker.harness import drained, until, working

CANARY = "4111-canary"


def attempts(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """The level, kind and outcome of each attempt."""
    records = [vars(record) for record in caplog.records if record.name == "holdfast.attempts"]
    return sorted((record["levelname"], record["kind"], record["outcome"]) for record in records)


def shop(**settings: Any) -> Holdfast:  # noqa: ANN401
    app = Holdfast("memory:", **settings)

    @app.handler("succeeds")
    async def succeeds(job: RunningJob[object]) -> None: ...

    @app.handler("answers", queue="mail")
    async def answers(job: RunningJob[object]) -> int:
        return 7

    @app.handler("fails", attempts=2, backoff="steps 10ms")
    def fails(job: RunningJob[dict[str, str]]) -> None:
        raise LookupError(f"no account of {job.payload['card']}")

    @app.handler("refuses")
    async def refuses(job: RunningJob[dict[str, str]]) -> None:
        raise Permanent("NOT_WANTED", f"{job.payload['card']} is blocked")

    @app.handler("cancels")
    async def cancels(job: RunningJob[object]) -> None:
        raise Cancel("not needed")

    return app


async def run(app: Holdfast) -> None:
    async with app:
        await app.enqueue_many([app.job(handler.kind, {"card": CANARY}) for handler in app.handlers])
        async with working(app, app.worker_settings(poll="50ms")):
            await drained(app)


FAILED = [
    ("ERROR", "fails", "dead"),
    ("ERROR", "refuses", "failed"),
    ("INFO", "cancels", "canceled"),
    ("WARNING", "fails", "retry"),
]
SUCCEEDED = [("INFO", "answers", "succeeded"), ("INFO", "succeeds", "succeeded")]


@pytest.mark.parametrize(
    ("wanted", "logged"),
    [("all", sorted(FAILED + SUCCEEDED)), ("failed", FAILED), ("none", []), (None, FAILED)],
    ids=["all", "failed", "none", "default"],
)
async def test_the_setting_decides_which_attempts_are_logged(
    wanted: str | None, logged: list[tuple[str, str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await run(shop(log_attempts=wanted))
    assert attempts(caplog) == logged


async def test_a_record_answers_the_most_common_questions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = Holdfast("memory:", log_attempts="all")

    @app.handler("fails", attempts=3, backoff="steps 10ms", queue="mail")
    async def fails(job: RunningJob[object]) -> None:
        await asyncio.sleep(0.02)
        if job.attempt == 1:
            raise LookupError

    async with app, working(app, app.worker_settings(poll="50ms")):
        id = (await app.enqueue("fails", correlation_id="order-7")).id
        await drained(app)
    first, second = (vars(record) for record in caplog.records if record.name == "holdfast.attempts")
    common = {"job_id": str(id), "kind": "fails", "queue": "mail", "of": 3, "correlation_id": "order-7"}
    assert common.items() <= first.items()
    assert common.items() <= second.items()
    assert 0.02 <= first["seconds"] < 30
    assert (first["attempt"], first["again_in"], first["code"], first["error"]) == (1, 0.01, "ERROR", "LookupError")
    assert first["at"].startswith("tests/logs/test_attempts.py:")
    assert (second["attempt"], second["outcome"], "code" in second) == (2, "succeeded", False)


async def test_a_snooze_is_not_logged_as_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = Holdfast("memory:", log_attempts="all")

    @app.handler("waits")
    async def waits(job: RunningJob[object]) -> None:
        raise Snooze("1h")

    async with app, working(app, app.worker_settings(poll="50ms")):
        await app.enqueue("waits")
        await until(lambda: attempts(caplog), "the attempt is logged")
    assert attempts(caplog) == [("INFO", "waits", "snoozed")]
    assert "again_in=3600" in caplog.text


async def test_after_a_lost_lease_the_record_counts_one_more_possible_attempt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = Holdfast("memory:", log_attempts="all")

    @app.handler("lasts", attempts=1)
    async def lasts(job: RunningJob[object]) -> None: ...

    async with app:
        await app.enqueue("lasts")
        lost = KindClaim(timedelta(milliseconds=1), 1)
        assert await app.opened.store.claim(ClaimRequest(uuid4(), 1, ("default",), {"lasts": lost}))
        async with working(app, app.worker_settings(poll="50ms")):
            await drained(app)
    (record,) = (vars(record) for record in caplog.records if record.name == "holdfast.attempts")
    assert (record["attempt"], record["of"], record["losses"]) == (2, 2, 1)
    (attempt,) = [record for record in caplog.records if record.name == "holdfast.attempts"]
    assert "  attempt 2 of 1 (+1 lost)  " in ConsoleFormatter(has_color=False).format(attempt)


@pytest.mark.parametrize("wanted", [False, True], ids=["without", "with"])
async def test_the_text_of_an_exception_is_logged_only_if_enabled(
    wanted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await run(shop(log_attempts="all", log_tracebacks=wanted))
    assert (f"LookupError: no account of {CANARY}" in caplog.text) is wanted
    assert (f"NOT_WANTED: {CANARY} is blocked" in caplog.text) is wanted
    assert ("Traceback (most recent call last)" in caplog.text) is wanted
