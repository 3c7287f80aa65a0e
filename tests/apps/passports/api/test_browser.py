"""The verifier page in a real browser, without JavaScript. Needs Chromium and Playwright for Python."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.passports.api.conftest import Api, World, served

pytestmark = [pytest.mark.postgres, pytest.mark.long, pytest.mark.timeout(180)]

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    playwright = pytest.importorskip("playwright.async_api", reason="Playwright for Python is not installed")
    if _CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    async with playwright.async_playwright() as running:
        browser = await running.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
async def test_a_passport_is_verified_with_the_keyboard_alone(
    api: Api,
    world: World,
    browser: Any,  # noqa: ANN401
    tmp_path: Path,
    width: int,
    scheme: str,
) -> None:
    path = f"/v1/passport-versions/{world.ids['passport_version_id']}"
    files = {name: (await api.ann.http.get(f"{path}/{name}")).content for name in ("file", "label.png")}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    context = await browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=False
    )
    async with served(api.api) as url:
        page = await context.new_page()
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("requestfailed", lambda request: problems.append(request.url))
        await page.goto(f"{url}/verify")
        assert await no_wider_than_the_window(page, width)

        await page.set_input_files("#passport_file", tmp_path / "file")
        await page.set_input_files("#photo", tmp_path / "label.png")
        await page.focus("#qr")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await page.get_by_text("The passport is genuine and belongs to this QR code.").wait_for()
        assert await page.locator("#result li b").all_inner_texts() == ["✓ ok"] * 6
        assert await no_wider_than_the_window(page, width)

        await page.fill("#passport", files["file"].decode().replace("75.5", "75.6"))
        await page.fill("#qr", (await api.ann.get(path.removeprefix("/v1")))["qr_payload"])
        await page.get_by_role("button", name="Verify the passport").press("Enter")
        await page.get_by_role("heading", name="The payload is not the one in the QR code").wait_for()
        assert await page.locator("#result li b").all_inner_texts() == ["✓ ok"] * 2 + ["✗ not ok"] * 4
        assert await no_wider_than_the_window(page, width)
        assert problems == []
    await context.close()


async def no_wider_than_the_window(page: Any, width: int) -> bool:  # noqa: ANN401
    boxes = [await each.bounding_box() for each in await page.locator("body *:visible").all()]
    return all(box is None or box["x"] + box["width"] <= width for box in boxes)
