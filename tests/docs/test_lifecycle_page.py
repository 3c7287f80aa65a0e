"""The example in docs/lifecycle.md runs as written."""

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Permanent, RunningJob
from holdfast.testing import in_memory

PAGE = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


async def test_the_example_reports_a_dead_job(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = CODE
    example: dict[str, Any] = {"__name__": "example"}
    exec(code, example)  # noqa: S102
    app: Holdfast = example["app"]

    @app.handler("invoice.send")
    async def send(job: RunningJob[Any]) -> None:
        raise Permanent("NO_ADDRESS", "there is none")

    async with in_memory(app) as jobs:
        await app.enqueue("invoice.send", {"number": 17})
        await jobs.drain(raise_errors=False)
    assert capsys.readouterr().out == "invoice 17 was not sent: NO_ADDRESS, there is none\n"
