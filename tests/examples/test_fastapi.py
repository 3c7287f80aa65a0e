"""examples/fastapi_shop with uvicorn, a worker of its own or inside the server, and after a fork."""

import signal
from collections.abc import Iterator

import pytest

from tests.databases import Servers
from tests.examples.shop_behavior import Running, ShopBehavior, check_use_around_a_fork
from tests.examples.shops import Shop, opened_shop

pytestmark = pytest.mark.long

UVICORN = ("uvicorn", "shop:api", "--port", "0")


@pytest.fixture(scope="module")
def running(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with opened_shop(servers, "fastapi_shop", tmp_path_factory.mktemp("shop")) as shop:
        server, worker = shop.start(*UVICORN), shop.start_worker()
        yield Running(shop, server, worker, shop.client(server))


@pytest.fixture(scope="module")
def closed_shop(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop of which nothing runs yet."""
    with opened_shop(servers, "fastapi_shop", tmp_path_factory.mktemp("shop")) as shop:
        yield shop


class TestFastapi(ShopBehavior):
    """The whole behavior."""


def test_a_worker_inside_the_server_stops_in_order_with_it(closed_shop: Shop) -> None:
    server = closed_shop.start(*UVICORN, WORKER="inside")
    client = closed_shop.client(server)
    client.confirmed(client.place("Jana"))
    assert client.sent(client.order_newsletter("Jana")) == "Dear Jana"
    # uvicorn ends by the signal that it was sent, after everything was closed.
    assert server.stopped() == -signal.SIGTERM
    assert server.troubles() == []
    assert "Application shutdown complete" in server.log


@pytest.mark.long
def test_a_preloaded_shop_uses_its_app_before_and_after_the_fork(closed_shop: Shop) -> None:
    check_use_around_a_fork(closed_shop, 2, "shop:api", "--worker-class", "asgi")
