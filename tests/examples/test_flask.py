"""examples/flask_shop with gunicorn, whose threads share one app, and after a fork."""

from collections.abc import Iterator

import pytest

from tests.databases import Servers
from tests.examples.shop_behavior import Running, ShopBehavior, check_use_around_a_fork
from tests.examples.shops import Shop, opened_shop

pytestmark = pytest.mark.long
GUNICORN = ("gunicorn", "--no-control-socket", "--bind", "127.0.0.1:0", "--threads", "8", "shop:web")


@pytest.fixture(scope="module")
def running(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with opened_shop(servers, "flask_shop", tmp_path_factory.mktemp("shop")) as shop:
        server, worker = shop.start(*GUNICORN), shop.start_worker()
        yield Running(shop, server, worker, shop.client(server))


@pytest.fixture(scope="module")
def closed_shop(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop of which nothing runs yet."""
    with opened_shop(servers, "flask_shop", tmp_path_factory.mktemp("shop")) as shop:
        yield shop


class TestFlask(ShopBehavior):
    """The whole behavior."""


@pytest.mark.long
def test_a_preloaded_shop_uses_its_app_before_and_after_the_fork(closed_shop: Shop) -> None:
    check_use_around_a_fork(closed_shop, 4, "shop:web", "--threads", "4")
