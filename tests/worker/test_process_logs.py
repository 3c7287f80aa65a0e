"""The worker's program logs the records of handlers in separate processes."""

import logging
import os
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.worker import process_logs
from tests.worker import children, sets_up_logging
from tests.worker.harness import fast, final_job, until, working

ONE_SLOT = fast(concurrency=1)


def records(caplog: pytest.LogCaptureFixture, name: str = "shop") -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.name == name]


async def test_records_arrive_with_their_job_and_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = Holdfast("memory:")
    app.handler("logs", isolation="process")(children.logs)
    async with app, working(app, ONE_SLOT):
        job = await final_job(app, (await app.enqueue("logs", correlation_id="order-7")).id)
    counted, failed = records(caplog)
    assert [(each["levelname"], each["message"]) for each in (counted, failed)] == [
        ("INFO", "counting 3"),
        ("ERROR", "went wrong"),
    ]
    for each in (counted, failed):
        assert (each["job_id"], each["kind"]) == (str(job.id), "logs")
        assert (each["attempt"], each["correlation_id"]) == (1, "order-7")
        assert each["process"] != os.getpid()
    assert counted["table"] == "Page(number=7)"
    assert "LookupError: no such page" in caplog.text


async def test_a_child_sends_the_levels_that_the_program_enabled_per_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    caplog.set_level(logging.DEBUG, "shop")
    app = Holdfast("memory:")
    app.handler("logs", isolation="process")(children.logs)
    async with app, working(app, ONE_SLOT):
        await final_job(app, (await app.enqueue("logs")).id)
    assert [each["message"] for each in records(caplog)] == ["not wanted", "counting 3", "went wrong"]


async def test_a_thread_left_behind_by_a_handler_logs_too(caplog: pytest.LogCaptureFixture) -> None:
    app = Holdfast("memory:")
    app.handler("leaves", isolation="process")(children.logs_from_a_thread_after_its_end)
    app.handler("logs", isolation="process")(children.logs)
    async with app, working(app, ONE_SLOT):
        await final_job(app, (await app.enqueue("leaves")).id)

        async def is_logged() -> bool:
            await final_job(app, (await app.enqueue("logs")).id)
            return "after the end" in caplog.text

        await until(is_logged, "it arrives with the next attempt")


async def test_an_application_that_sets_up_logging_on_import_keeps_its_setup(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    app = Holdfast("memory:")
    app.handler("speaks", isolation="process")(sets_up_logging.speaks)
    async with app, working(app, ONE_SLOT):
        await final_job(app, (await app.enqueue("speaks")).id)
    assert "OWN spoken" in capfd.readouterr().err
    assert records(caplog) == []


def test_a_warning_that_the_worker_no_longer_accepts_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def send(message: process_logs.Logged) -> None:
        raise BrokenPipeError

    sender = process_logs._Sender(send)
    for level in (logging.INFO, logging.WARNING):
        sender.handle(logging.makeLogRecord({"levelno": level, "msg": f"closing at {level}"}))
    assert capsys.readouterr().err == "closing at 30\n"
