"""The handlers of docs/handlers.md end as the page says."""

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import Cancel, Holdfast, Permanent, Retryable
from holdfast.domain.outcome import Failed, Retried
from holdfast.testing import in_memory

PAGE = (Path(__file__).parents[2] / "docs" / "handlers.md").read_text(encoding="utf-8")


async def test_the_handlers_of_the_page_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "memory:")
    module: dict[str, Any] = {"__name__": __name__}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/handlers.md", "exec"), module)  # noqa: S102
    app: Holdfast = module["app"]
    invoice = module["Invoice"]
    async with in_memory(app) as tested:
        assert await tested.run("invoice.send", invoice(17, "ann@example.com")) == {"sent": 17}
        with pytest.raises(Permanent):
            await tested.run("invoice.send", invoice(-1, "ann@example.com"))
        with pytest.raises(Cancel):
            await tested.run("invoice.send", invoice(17, ""))
    assert isinstance(app.failures.outcome_of(KeyError("number")), Failed)
    assert isinstance(app.failures.outcome_of(ConnectionResetError()), Retried)
    assert isinstance(app.failures.outcome_of(Retryable()), Retried)
    async with in_memory(module["shop"]) as tested:
        with pytest.raises(Exception, match="protocol"):
            await tested.run("address.check", "no address")
