"""docs/webhooks.md is true: its handler delivers, its receivers verify, and it lists every code."""

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import webhooks
from holdfast.testing import in_memory
from holdfast.webhooks import InvalidSignature, Response, Secrets, WebhookError, WebhookNon2xx, sign_standard
from tests.docs.pages import module_of
from tests.webhooks.receiver import Receiver, answering, receiving

DOCS = Path(__file__).parents[2] / "docs"
ID = UUID("123e4567-e89b-12d3-a456-426614174000")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    monkeypatch.setenv("HOLDFAST_STORE", "memory:")
    monkeypatch.setenv("SHOP_DEVELOPMENT", "1")
    return module_of("webhooks.md", tmp_path)


def recorded_by(page: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Response | None]]:  # noqa: ANN401
    recorded: list[tuple[str, Response | None]] = []

    async def endpoint(id: UUID) -> tuple[str, Secrets]:
        return receiver.url, Secrets("s3cret")

    async def record(id: UUID, status: str, response: Response | None) -> None:
        recorded.append((status, response))

    monkeypatch.setattr(page, "endpoint", endpoint)
    monkeypatch.setattr(page, "record", record)
    return recorded


async def test_the_handler_delivers_what_the_receiver_verifies(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    delivery = page.Delivery(ID, ID, "ORDER_PAID", {"order": "17"})
    async with receiving() as receiver, in_memory(page.app) as tested:
        recorded = recorded_by(page, receiver, monkeypatch)
        await tested.run("webhook.deliver", delivery)
    [received] = receiver.received
    page.receive(received.headers, received.body)
    with pytest.raises(InvalidSignature):
        page.receive(received.headers, received.body + b" ")
    assert received.headers["x-shop-delivery-id"] == str(ID)
    assert [(status, response and response.status) for status, response in recorded] == [("DELIVERED", 204)]


async def test_the_handler_records_a_failure_and_lets_it_fly(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401
    delivery = page.Delivery(ID, ID, "ORDER_PAID", {"order": "17"})
    async with receiving(answering(503, b"busy")) as receiver, in_memory(page.app) as tested:
        recorded = recorded_by(page, receiver, monkeypatch)
        with pytest.raises(WebhookNon2xx):
            await tested.run("webhook.deliver", delivery)
    [(code, response)] = recorded
    assert code == "WebhookNon2xx"
    assert response is not None
    assert response.body == b"busy"


def test_standard_webhooks_are_verified_as_the_page_says(page: Any) -> None:  # noqa: ANN401
    headers = sign_standard(b"{}", Secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), id=ID)
    page.receive_standard(headers, b"{}")


def test_an_address_is_checked_at_registration(page: Any) -> None:  # noqa: ANN401
    assert page.problem_of("https://hooks.example.com/") is None
    assert "password" in page.problem_of("https://user:password@hooks.example.com/")


@pytest.mark.parametrize("name", ["webhooks.md", "error-codes.md"])
def test_both_pages_list_every_code_of_a_webhook(name: str) -> None:
    exported = [getattr(webhooks, each) for each in webhooks.__all__]
    errors = {each.__name__ for each in exported if isinstance(each, type) and issubclass(each, WebhookError)}
    text = (DOCS / name).read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([A-Z][a-zA-Z0-9]*[a-z][a-zA-Z0-9]*)` \|", text, re.MULTILINE)) == errors - {
        "WebhookError"
    }
