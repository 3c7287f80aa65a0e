"""Addresses with several hosts: Holdfast connects to the writable one, also after a failover."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.domain.address import each_host, without_password
from holdfast.domain.errors import AccessRefused, InvalidInput, StoreUnavailable
from holdfast.settings import Settings
from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import Address, open_session
from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database, opened_store
from tests.store_contract.steps import job

one_server = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://ann:p@one/shop", ["postgresql://ann:p@one/shop"]),
        (
            "postgresql://ann:p@one:5432,two:5433/shop?sslmode=require",
            ["postgresql://ann:p@one:5432/shop?sslmode=require", "postgresql://ann:p@two:5433/shop?sslmode=require"],
        ),
        ("postgresql://one,two/shop", ["postgresql://one/shop", "postgresql://two/shop"]),
        (
            "postgresql:///shop?host=/a,/b&port=5432,5433",
            ["postgresql:///shop?host=%2Fa&port=5432", "postgresql:///shop?host=%2Fb&port=5433"],
        ),
        (
            "postgresql:///shop?host=a,b&port=1",
            ["postgresql:///shop?host=a&port=1", "postgresql:///shop?host=b&port=1"],
        ),
        ("postgresql://[::1]:5432,[::2]/shop", ["postgresql://[::1]:5432/shop", "postgresql://[::2]/shop"]),
    ],
)
def test_each_host_has_an_address(url: str, hosts: list[str]) -> None:
    # A URL without a host has zero or two slashes before its path, depending on the Python version that writes it.
    assert [urlsplit(host) for host in each_host(url)] == [urlsplit(host) for host in hosts]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:secret@one:port,two/shop",
        "postgresql://ann:secret@one,,two/shop",
        "postgresql://ann:secret@one:0,two/shop",
        "postgresql://ann:secret@/shop?host=one,two,three&port=1,2",
        "postgresql://ann:secret@/shop?host=one,two&port=a",
    ],
)
def test_an_unreadable_address_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read") as refused:
        Address.parse(url)
    assert "secret" not in str(refused.value)


def test_the_writable_host_is_preferred_unless_the_address_says_otherwise() -> None:
    assert "target_session_attrs" not in Address.parse("postgresql://one/shop").dsn
    several = Address.parse("postgresql://one,two/shop")
    assert [urlsplit(host).query for host in several.hosts] == ["target_session_attrs=read-write"] * 2
    primary = Address.parse("postgresql://one,two/shop?target_session_attrs=primary&pgbouncer=1")
    assert [urlsplit(host).query for host in primary.hosts] == ["target_session_attrs=primary"] * 2
    assert primary.pooled


def test_settings_and_log_lines_accept_several_hosts() -> None:
    url = "postgresql://ann:secret@one:5432,two:5432/shop"
    settings = Settings.load(store=url, listen_url=url)
    assert (settings.store, settings.listen_url) == (url, url)
    assert without_password(url) == "postgresql://ann:…@one:5432,two:5432/shop"


@contextmanager
def hosts(database: Database, number: int) -> Iterator[tuple[str, list[Proxy]]]:
    """Yield several proxies to the database, and one address that lists them all."""
    with ExitStack() as exits:
        proxies = [exits.enter_context(Proxy.before(database.url)) for _ in range(number)]
        places = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        yield f"postgresql://postgres@{places}/{database.name}", proxies


@one_server
async def test_a_host_that_is_down_is_skipped(database: Database) -> None:
    with hosts(database, 1) as (url, _):
        several = url.replace("@", f"@{NOBODY},")
        async with Holdfast(several) as app:
            assert (await app.enqueue("work", {})).is_new
        (await open_session(several)).terminate()


@one_server
async def test_a_silent_host_is_skipped_and_not_tried_first_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.connecting.CONNECT_SECONDS", 1.0)
    with hosts(database, 2) as (url, (silent, other)):
        silent.swallow()
        async with opened_store(url) as store:
            await store.enqueue([job()])
            asked = len(silent.connections)
            other.cut_all()
            async with store.connection_of_its_own() as connection:
                await connection.execute("SELECT")
            await store.enqueue([job()])
            assert len(silent.connections) <= asked


@one_server
async def test_if_no_host_answers_the_error_lists_each_of_them(database: Database) -> None:
    with pytest.raises(StoreUnavailable) as raised:
        async with opened_store("postgresql://postgres@127.0.0.1:1,127.0.0.1:2/shop"):
            pass
    said = str(raised.value)
    assert said.startswith("PostgreSQL is not available on any of its hosts: 127.0.0.1:1: ")
    assert "; 127.0.0.1:2: " in said


@one_server
async def test_a_refused_login_is_reported_rather_than_another_host_being_down(database: Database) -> None:
    with hosts(database, 1) as (url, _), pytest.raises(AccessRefused, match='role "stranger" does not exist'):
        async with opened_store(url.replace("postgres@", f"stranger@{NOBODY},")):
            pass


@contextmanager
def primary_and_standby(folder: Path) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """Yield a primary and its standby: a copy of the stopped primary that follows it from then on."""
    one, two = (EmbeddedAddress(folder / name, 18, durable=False) for name in ("one", "two"))
    with EmbeddedServer.start(one) as server:
        server.url()
    shutil.copytree(one.folder, two.folder, ignore=shutil.ignore_patterns("holdfast.*", ".s.PGSQL*", "postmaster.pid"))
    (two.folder / "standby.signal").touch()
    with EmbeddedServer.start(one) as primary, Proxy.before(primary.url()) as replication:
        way = f"host=127.0.0.1 port={replication.port} user=postgres"
        (two.folder / "postgresql.auto.conf").write_text(f"primary_conninfo = '{way}'\n")
        for path in (two.folder, *two.folder.rglob("*")):
            shutil.chown(path, one.folder.owner(), one.folder.group())
        with EmbeddedServer.start(two) as standby:
            yield primary, standby


async def test_after_a_failover_writes_go_to_the_new_primary(tmp_path: Path) -> None:
    with primary_and_standby(tmp_path) as (primary, standby):
        await migrate(primary.url(), "holdfast")
        with Proxy.before(primary.url()) as to_primary, Proxy.before(standby.url()) as to_standby:
            places = f"127.0.0.1:{to_standby.port},127.0.0.1:{to_primary.port}"
            async with Holdfast(f"postgresql://postgres@{places}/postgres") as app:
                before = await app.enqueue("work", {})
                with psycopg.connect(primary.url(), autocommit=True) as admin:
                    sent = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_insert_lsn()"
                    while admin.execute(sent).fetchall() != [(1,)]:
                        pass
                to_primary.refuse()
                with pytest.raises(StoreUnavailable):
                    await app.enqueue("work", {})
                with psycopg.connect(standby.url(), autocommit=True) as admin:
                    admin.execute("SELECT pg_promote()")
                after = await app.enqueue("work", {})
                assert {(await app.jobs.get(each.id)) is not None for each in (before, after)} == {True}
