"""The address of the store is that of Django's database."""

from inspect import signature
from typing import Any

import asyncpg
import pytest
from asyncpg.connect_utils import _ConnectionParameters as ConnectionParameters
from asyncpg.connect_utils import _parse_connect_dsn_and_args  # type: ignore[attr-defined]
from psycopg.conninfo import conninfo_to_dict

from holdfast.django.configuration import url_from
from holdfast.domain.address import without_password
from holdfast.settings import Settings
from holdfast.store.postgres.address import Address
from tests.databases import Database


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "shop", "PORT": 5433}, "postgresql:///shop?port=5433"),
        (
            {"NAME": "shop", "USER": "ann", "PASSWORD": "a/b@c:d?#%", "HOST": "db", "PORT": "5433"},
            "postgresql://ann:a%2Fb%40c%3Ad%3F%23%25@db:5433/shop",
        ),
        (
            {"NAME": "my shop", "HOST": "/var/run/postgresql", "PORT": "5433", "USER": "ann@work"},
            "postgresql://ann%40work@/my%20shop?host=%2Fvar%2Frun%2Fpostgresql&port=5433",
        ),
        ({"NAME": "shop", "HOST": "::1", "PORT": ""}, "postgresql://[::1]/shop"),
        ({"NAME": "shop", "HOST": "one,two", "PORT": "1,2"}, "postgresql://one:1,two:2/shop"),
        ({"NAME": "shop", "HOST": "one,two", "PORT": "5432"}, "postgresql://one:5432,two:5432/shop"),
        ({"NAME": "", "OPTIONS": {"service": "shop"}}, "postgresql:///?service=shop"),
        (
            {
                "NAME": "shop",
                "OPTIONS": {"sslmode": "require", "pool": True, "connect_timeout": 3, "options": "-c a=b"},
            },
            "postgresql:///shop?sslmode=require&options=-c+a%3Db",
        ),
        ({"NAME": "shop", "OPTIONS": {"assume_role": "clerk", "isolation_level": 4}}, "postgresql:///shop?role=clerk"),
    ],
)
def test_the_address_of_a_database(database: dict[str, Any], url: str) -> None:
    assert url_from(database) == url
    assert Settings.load(store=url).store == url


def test_the_driver_reads_what_django_was_given() -> None:
    password = "a/b@c:d?#% ü"
    database = {"NAME": "my/shop", "USER": "ann@work", "PASSWORD": password, "HOST": "db", "PORT": "5433"}
    url = url_from(database)
    assert password not in without_password(url)
    read = read_by_driver(Address.parse(url).dsn)
    assert (read.database, read.user, read.password) == ("my/shop", "ann@work", password)


def read_by_driver(dsn: str) -> ConnectionParameters:
    names = signature(_parse_connect_dsn_and_args).parameters
    given: dict[str, Any] = dict.fromkeys(names) | {"dsn": dsn}
    read: ConnectionParameters = _parse_connect_dsn_and_args(**given)[1]
    return read


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_role_and_the_options_reach_the_server(database: Database) -> None:
    parts = conninfo_to_dict(database.url)
    given = {
        "NAME": database.name,
        "HOST": parts["host"],
        "PORT": parts["port"],
        "USER": parts["user"],
        "OPTIONS": {"assume_role": "pg_monitor", "options": "-c search_path=elsewhere"},
    }
    connection = await asyncpg.connect(url_from(given))
    try:
        assert await connection.fetchval("SELECT current_user::text") == "pg_monitor"
        assert await connection.fetchval("SHOW search_path") == "elsewhere"
    finally:
        await connection.close()
