"""What a program reads if its server is down or its address is wrong."""

import logging

import pytest

from holdfast import Holdfast, StoreUnavailable
from holdfast.store.postgres.address import place_and_database
from tests.databases import Servers, refusing

CLOSED = "postgresql://ann:secret@127.0.0.1:1/shop"
ADVICE = "check that the server is running and that HOLDFAST_STORE points to it"


@pytest.mark.parametrize("verb", ["open", "migrate"])
async def test_the_error_names_host_port_and_database_and_the_next_step(verb: str) -> None:
    with pytest.raises(StoreUnavailable) as raised:
        await getattr(Holdfast(CLOSED), verb)()
    said = str(raised.value)
    assert said.startswith("PostgreSQL is not available at 127.0.0.1:1, database 'shop': [Errno ")
    assert said.endswith(f"; {ADVICE}")
    assert "secret" not in said
    assert "ann" not in said


async def test_the_traceback_of_the_driver_is_shown_at_level_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StoreUnavailable) as raised:
        await Holdfast(CLOSED).open()
    assert (raised.value.__cause__, raised.value.__suppress_context__) == (None, True)
    caplog.set_level(logging.DEBUG, "holdfast")
    with pytest.raises(StoreUnavailable) as raised:
        await Holdfast(CLOSED).open()
    assert isinstance(raised.value.__cause__, OSError)


async def test_with_several_hosts_each_is_named_once() -> None:
    with pytest.raises(StoreUnavailable) as raised:
        await Holdfast("postgresql://ann@127.0.0.1:1,127.0.0.1:2/shop").open()
    said = str(raised.value)
    assert said.startswith("PostgreSQL is not available on any of its hosts: 127.0.0.1:1: ")
    assert said.endswith(f"; {ADVICE}")
    assert said.count("127.0.0.1:2: ") == 1


@pytest.mark.postgres
async def test_a_server_that_answers_is_running(servers: Servers) -> None:
    with servers.get("embedded-18").fresh_database() as database:
        with refusing(database.url), pytest.raises(StoreUnavailable) as raised:
            await Holdfast(database.url).open()
        said = str(raised.value)
        assert f"database '{database.name}': " in said
        assert ADVICE not in said


@pytest.mark.parametrize(
    ("dsn", "environment", "place"),
    [
        ("postgresql://ann:12/34@db:5433/shop", {}, None),
        ("postgresql://ann:pw@db/shop", {}, "db:5432, database 'shop'"),
        ("postgresql://ann:pw@[::1]:5433/shop", {}, "[::1]:5433, database 'shop'"),
        ("postgresql:///my%20shop?host=/run/pg&port=5433", {}, "/run/pg:5433, database 'my shop'"),
        ("postgresql://db?dbname=shop", {"PGDATABASE": "other"}, "db:5432, database 'shop'"),
        ("postgresql://", {"PGHOST": "db", "PGPORT": "5433", "PGDATABASE": "shop"}, "db:5433, database 'shop'"),
        ("postgresql://", {}, "localhost:5432"),
    ],
)
def test_an_address_is_completed_as_libpq_does(
    monkeypatch: pytest.MonkeyPatch, dsn: str, environment: dict[str, str], place: str | None
) -> None:
    for name in ("PGHOST", "PGPORT", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shown = place_and_database(dsn)
    assert "34" not in shown
    assert place in (None, shown)
