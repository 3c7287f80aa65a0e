"""The examples in docs/runtime.md run as written."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.testing import in_memory

PAGE = (Path(__file__).parents[2] / "docs" / "runtime.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


async def test_the_examples_fetch_a_page_and_report_how_long_it_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(204 if request.url == "http://shop.test/" else 404)

    example: dict[str, Any] = {"__name__": "example"}
    exec("".join(CODE), example)  # noqa: S102
    usual = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda: usual(transport=httpx.MockTransport(answer)))
    async with in_memory(example["app"]) as jobs:
        assert await jobs.run("page.fetch", "http://shop.test/") == 204
    assert capsys.readouterr().out.startswith("page.fetch 0.")
