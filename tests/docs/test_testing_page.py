"""docs/testing.md is a working project: its first block is the application, and the others are its tests."""

import re
from pathlib import Path

import pytest

from tests.testing.projects import run_pytest

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


# The tests print the report that the page shows.
PRINTED = """
async def test_the_report_of_the_page():
    print(await check_idempotency(app, "order.ship", {"order": 17}))
"""


@pytest.mark.long
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    application, *tests = blocks("python")
    source = "\n\n".join([*tests, PRINTED])
    (settings,) = blocks("toml")
    files = {"pyproject.toml": settings, "shop.py": application, "test_shop.py": source}
    output = run_pytest(tmp_path, "-W", "error", "-s", files=files)
    assert f"{source.count('def test_')} passed" in output
    (report,) = blocks("text")
    assert report in output
