"""Tracebacks show the application's frames and omit the engine's."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput, RunningJob
from holdfast.domain.tracebacks import traced
from holdfast.types import JobFilter
from tests.worker.harness import drained, working

HERE = "tests/domain/test_tracebacks.py"


async def traceback_of_failing(handler: Callable[[RunningJob[object]], Any]) -> str:
    app = Holdfast("memory:")
    app.handler("fails", attempts=1)(handler)
    async with app, working(app):
        await app.enqueue("fails")
        await drained(app)
        (job,) = await app.jobs.list(JobFilter(kind="fails"), 1)
    assert job.last_error is not None
    return job.last_error.traceback


def files(traceback: str) -> list[str]:
    return [line.split('"')[1] for line in traceback.splitlines() if line.lstrip().startswith("File ")]


async def test_engine_frames_are_removed_from_causes_and_groups_too() -> None:
    app = Holdfast("memory:")

    async def asks_wrongly(job: RunningJob[object]) -> None:
        try:
            app.job("", {})
        except Exception as error:
            raise ExceptionGroup("several", [error, ValueError("another")]) from error

    traceback = await traceback_of_failing(asks_wrongly)
    assert "kind: is empty" in traceback
    assert "several" in traceback
    assert {file.endswith(HERE) for file in files(traceback)} == {True}


async def test_a_failure_inside_asyncio_keeps_the_handlers_frames() -> None:
    async def times_out(job: RunningJob[object]) -> None:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(60)

    first, *_, last = files(await traceback_of_failing(times_out))
    assert first.endswith(HERE)
    assert last.endswith("asyncio/timeouts.py")


async def test_engine_frames_are_kept_at_log_level_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def fails(job: RunningJob[object]) -> None:
        raise LookupError

    assert files(await traceback_of_failing(fails))[0].endswith("worker/executor.py")


def test_an_exception_with_only_holdfast_frames_is_shown_in_full() -> None:
    with pytest.raises(InvalidInput) as refused:
        Holdfast("memory:").job("", {})
    trace = refused.value.__traceback__
    assert trace is not None
    found = traced(refused.value.with_traceback(trace.tb_next))
    assert {"/holdfast/" in file for file in files(found.text)} == {True}


def test_the_place_is_the_applications_last_frame() -> None:
    def breaks() -> None:
        Holdfast("memory:").job("", {})

    with pytest.raises(InvalidInput) as refused:
        breaks()
    found = traced(refused.value)
    assert found.place.startswith(f"{HERE}:")
    assert found.place.endswith(" in breaks")


def test_the_place_is_the_applications_line_even_if_a_library_raised() -> None:
    compiled = compile("def run():\n    import json\n    json.loads('{')\n", "asyncpg/protocol/protocol.pyx", "exec")
    library: dict[str, Any] = {}
    exec(compiled, library)  # noqa: S102

    def asks() -> None:
        library["run"]()

    with pytest.raises(ValueError, match="Expecting") as raised:
        asks()
    found = traced(raised.value)
    assert found.place.startswith(f"{HERE}:")
    assert found.place.endswith(" in asks")
    assert files(found.text)[-1].endswith("json/decoder.py")


def test_without_a_line_of_the_application_the_place_is_the_last_one() -> None:
    with pytest.raises(ValueError, match="Expecting") as raised:
        json.loads("{")
    trace = raised.value.__traceback__
    assert trace is not None
    assert traced(raised.value.with_traceback(trace.tb_next)).place.endswith(" in raw_decode")


def test_an_exception_that_was_never_raised_has_no_traceback() -> None:
    assert traced(LookupError("nothing")) == ("", "")
