"""docs/waiting.md is true: its endpoint answers as described, and its command is valid."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli.jobs import commands
from tests.databases import Database
from tests.worker.harness import working

PAGE = (Path(__file__).parents[2] / "docs" / "waiting.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_endpoint_of_the_page_answers_as_it_says(database: Database) -> None:
    module: dict[str, Any] = {}
    exec(compile(block("python"), "docs/waiting.md", "exec"), module)  # noqa: S102
    app: Holdfast = module["app"]
    app.settings = app.settings.model_copy(update={"store": database.url})
    async with app:
        early = await app.enqueue("invoice.pdf", {"invoice": 7}, key="invoice-7")
        assert module["response"](await app.wait(early.id, "0s")) == (202, {"status": "PENDING", "retryAfterMs": 1000})
        async with working(app):
            assert await module["invoice_pdf"](7) == (200, {"status": "READY", "url": "/files/invoice-7.pdf"})
            assert await module["invoice_pdf"](0) == (422, {"error": "NO_SUCH_INVOICE"})


def test_the_command_of_the_page_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "postgresql://127.0.0.1:1/nowhere")
    holdfast, jobs, *arguments = shlex.split(block("console").removeprefix("$ "))
    assert (holdfast, jobs) == ("holdfast", "jobs")
    done = CliRunner().invoke(commands, arguments)
    assert "PostgreSQL is not available" in str(done.exception)
