"""docs/logging.md is true: its code runs, and its list of variables is complete."""

import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.logs.formats import JsonFormatter
from holdfast.settings import Settings, variable
from tests.worker.harness import drained, working

PAGE = (Path(__file__).parents[2] / "docs" / "logging.md").read_text(encoding="utf-8")
HANDLER, FILTER, SET_UP, PROCESSOR = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(block: str) -> dict[str, Any]:
    module: dict[str, Any] = {}
    exec(compile(block, "docs/logging.md", "exec"), module)  # noqa: S102
    return module


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger; the changes of the test are undone."""
    root, pool = logging.getLogger(), logging.getLogger("asyncpg.pool")
    before = root.handlers[:], root.level, pool.level
    yield root
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    pool.setLevel(before[2])


async def handled(app: Holdfast) -> None:
    app.settings = app.settings.model_copy(update={"store": "memory:"})
    async with app, working(app):
        await app.enqueue("invoice.send", {"number": 17}, correlation_id="order-7")
        await drained(app)


async def test_the_handler_logs_with_its_job(caplog: pytest.LogCaptureFixture) -> None:
    said = io.StringIO()
    caplog.set_level("INFO")
    app: Holdfast = run(HANDLER)["app"]
    handler = logging.StreamHandler(said)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(run(FILTER)["JobLogFilter"]())
    logging.getLogger("shop").addHandler(handler)
    try:
        await handled(app)
    finally:
        logging.getLogger("shop").removeHandler(handler)
    assert '"message": "sending", "number": 17, "job_id": "' in said.getvalue()
    assert '"kind": "invoice.send", "attempt": 1, "correlation_id": "order-7"' in said.getvalue()


async def test_the_filter_provides_the_fields_in_the_programs_format(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    root.handlers.clear()
    run(FILTER)
    logging.getLogger("shop").info("starting")
    await handled(run(HANDLER)["app"])
    said = capsys.readouterr().err
    assert "INFO starting job=- kind=- attempt=-\n" in said
    assert re.search(r"INFO sending job=[-0-9a-f]{36} kind=invoice.send attempt=1\n", said)


async def test_the_processor_adds_the_job() -> None:
    add_job, seen = run(PROCESSOR)["add_job"], list[Any]()
    app = Holdfast("memory:")
    app.handler("invoice.send")(lambda job: seen.append(add_job(None, "info", {"event": "sending"})))
    assert add_job(None, "info", {"event": "starting"}) == {"event": "starting"}
    await handled(app)
    assert (seen[0]["event"], seen[0]["kind"], seen[0]["attempt"]) == ("sending", "invoice.send", 1)


def test_a_program_that_sets_up_logging_logs_like_a_worker(tmp_path: Path) -> None:
    program = SET_UP.replace('Holdfast(log_format="json")', 'Holdfast("memory:", log_format="json")')
    stopping = "@app.handler('stops')\ndef stops(job): ...\nimport os, signal, threading\n"
    timer = "threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
    (tmp_path / "program.py").write_text(f"{program}\n{stopping}{timer}main()\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"message": "app opened", "store": "memory:"' in done.stderr


def test_the_page_lists_every_logging_variable() -> None:
    named = re.findall(r"^\| `(HOLDFAST_LOG_\w+)` \|", PAGE, re.MULTILINE)
    assert named == [variable(name) for name in Settings.model_fields if name.startswith("log_")]
