"""Passwords in addresses never appear in errors, logs or the output of commands."""

import asyncio
import time
import traceback

import pytest

from holdfast import Holdfast, InvalidInput
from holdfast.cli.errors import explained
from holdfast.domain.address import without_password
from holdfast.rabbitmq.broker import Broker
from holdfast.settings import Settings
from holdfast.store.opening import opened
from holdfast.store.postgres.address import Address, place_of

SECRET = "s3cret"
WRONG_STORES = [
    f"embedded://ann:{SECRET}@db/shop",
    f"embedded:ann:{SECRET}@db/shop?version=15",
    f"embedded:/folder?password={SECRET}",
    f"host=db user=ann password={SECRET}",
    f"password={SECRET} host=db:5432",
    f"{SECRET}@db/shop",
    f"ann:{SECRET}@db/shop",
    f"mysql://ann:{SECRET}@db/shop",
    f"postgresql//ann:{SECRET}@db/shop",
    f"postgresql://ann:{SECRET}/x@db/shop",
    f"postgresql://ann:{SECRET}@[db/shop",
    f"postgresql://ann:{SECRET}@x..y/shop",
    f"postgresql://ann:1/{SECRET}@127.0.0.1:2/shop",
]


@pytest.mark.parametrize("url", WRONG_STORES)
def test_an_app_refuses_a_wrong_store_without_showing_its_password(url: str) -> None:
    async def open_it() -> None:
        async with Holdfast(url):
            pass

    with pytest.raises(Exception) as refused:  # noqa: PT011 - some are refused, others only unreachable
        asyncio.run(open_it())
    _check(refused.value)


@pytest.mark.parametrize("url", WRONG_STORES)
def test_opening_a_wrong_store_fails_without_showing_its_password(url: str) -> None:
    async def open_it() -> None:
        async with opened(url):
            pass

    with pytest.raises(Exception) as refused:  # noqa: PT011
        asyncio.run(open_it())
    _check(refused.value)


@pytest.mark.parametrize("name", ["listen_url", "rabbitmq_url", "db_schema", "shard_count", "poll", "log_level"])
@pytest.mark.parametrize("url", WRONG_STORES[:1] + WRONG_STORES[7:11])
def test_an_address_in_the_wrong_setting_is_refused_without_showing_its_password(name: str, url: str) -> None:
    if name == "listen_url" and url.startswith("postgresql://"):
        url = f"http{url}"
    with pytest.raises(InvalidInput) as refused:
        Settings.load(store="memory:", **{name: url})  # type: ignore[arg-type]
    _check(refused.value)


@pytest.mark.parametrize("url", [f"http://ann:{SECRET}@mq", f"amqp:ann:{SECRET}@mq", f"amqp://ann:{SECRET}/x@mq/v"])
def test_a_wrong_broker_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Broker(url)
    _check(refused.value)


def test_an_unexpected_error_of_a_command_is_shown_without_passwords() -> None:
    line = explained(RuntimeError(f"cannot use amqp://ann:{SECRET}@mq:5672/v or smtp://ann:{SECRET}@mail")).line
    assert "amqp://ann:…@mq:5672/v or smtp://ann:…@mail" in line


def test_the_repr_of_an_object_with_an_address_has_no_password() -> None:
    url, broker = f"postgresql://ann:{SECRET}@db/shop", f"amqp://ann:{SECRET}@mq"
    settings = Settings.load(store=url, listen_url=url, rabbitmq_url=broker)
    assert "store='postgresql://ann:…@db/shop'" in repr(settings)
    for value in (settings, Address.parse(url), Broker(broker)):
        assert SECRET not in f"{value} {value!r}"


def test_a_server_named_in_an_error_has_no_part_of_a_password() -> None:
    assert place_of("postgresql://ann:pw@db:5432/shop") == "db:5432"
    assert SECRET not in place_of(f"postgresql://ann:12/{SECRET}@db/shop")
    assert "12" not in place_of("postgresql://ann:12/34@db/shop")


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("memory:", "memory:"),
        ("embedded:/home/ann@work", "embedded:/home/ann@work"),
        ("postgresql://ann@db:5432/shop", "postgresql://ann@db:5432/shop"),
        ("postgresql://ann:@db/shop", "postgresql://ann:…@db/shop"),
        ("postgresql://:pw@db/shop", "postgresql://:…@db/shop"),
        ("postgresql://ann:p@w:x@db/shop", "postgresql://ann:…@db/shop"),
        ("postgresql://ann:p w's@db/shop", "postgresql://ann:…@db/shop"),
        ("postgresql://ann:1/2?3#4@db/shop", "postgresql://ann:…@db/shop"),
        ("postgresql://db/shop?sslpassword=pw&port=1", "postgresql://db/shop?sslpassword=…&port=1"),
        ("host=db password=pw user=ann", "host=db password=… user=ann"),
        ("host=db password='p w' user=ann", "host=db password=… user=ann"),
        (
            "'amqp://ann:pw@mq' is not known; write postgresql://user@host/database",
            "'amqp://ann:…@mq' is not known; write postgresql://user@host/database",
        ),
        ("postgresql://ann:a//b@db/shop", "postgresql://ann:…@db/shop"),
        # Advice is not an address, but a password may be this word.
        ("write amqp://user:password@host:port/…", "write amqp://user:password@host:port/…"),
        ("amqp://user:password@mq", "amqp://user:…@mq"),
    ],
)
def test_only_the_password_is_replaced(text: str, safe: str) -> None:
    assert without_password(text) == safe


@pytest.mark.parametrize("part", ["//:", "//a:b", "embedded::", "a://b:@", "password='", "password="])
def test_a_huge_message_is_shortened_at_once(part: str) -> None:
    before = time.process_time()
    line = str(InvalidInput(f"payload: {part * 1_000_000}"))
    assert time.process_time() - before < 1
    assert line.startswith("payload: ")


def test_the_shown_ends_of_a_huge_message_have_no_password() -> None:
    url = f"postgresql://{'a' * 400}:{SECRET * 30}@db/shop"
    assert SECRET not in str(InvalidInput(f"{url} {'x' * 100_000} {url}"))


def _check(error: BaseException) -> None:
    assert SECRET not in "".join(traceback.format_exception_only(error))
    assert SECRET not in explained(error).line if isinstance(error, Exception) else True
