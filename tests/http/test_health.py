"""Liveness and readiness, as values and over HTTP, even when the loop, the store or a client misbehaves."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import pytest

from holdfast import Holdfast
from holdfast.domain.errors import InvalidInput
from holdfast.http import health_server
from holdfast.http.health import Check, Health, ReadinessProbe, liveness, readiness
from holdfast.http.health_server import HealthServer
from holdfast_lab.faults.proxy import Proxy
from tests.databases import Database, connected, refusing
from tests.postgres.past import add_days, day_of
from tests.worker.harness import until

ONE_SERVER = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
FINE = Health((Check("store", True, "answers"),))
POOR = Health((Check("store", False, "does not answer"),))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: Any


def ask(port: int, path: str, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        return Answer(response.status, dict(response.getheaders()), json.loads(body) if body else None)
    finally:
        connection.close()


async def get(server: HealthServer, path: str, method: str = "GET") -> Answer:
    return await asyncio.to_thread(ask, server.port, path, method)


def always(health: Health) -> Callable[[], Awaitable[Health]]:
    async def ready() -> Health:
        return health

    return ready


class Options(TypedDict, total=False):
    keeper_alive: Callable[[], bool]
    is_stopping: Callable[[], bool]
    stalled_after: float


@asynccontextmanager
async def serving(
    ready: Callable[[], Awaitable[Health]] | None = None, **options: Unpack[Options]
) -> AsyncIterator[HealthServer]:
    async with HealthServer("127.0.0.1", 0, ready=ready or always(FINE), **options) as server:
        yield server


@asynccontextmanager
async def opened_app(url: str) -> AsyncIterator[Holdfast]:
    async with Holdfast(url) as app:
        yield app


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy.before(database.url) as proxy:
        yield proxy


async def test_a_healthy_process_answers_200_with_its_checks(threads_end: None) -> None:
    async with serving(keeper_alive=lambda: True) as server:
        for path in ("/live", "/ready", "/health", "/ready?from=probe"):
            answer = await get(server, path)
            assert answer.status == 200
            assert answer.body["ok"] is True
        names = {
            path: [check["name"] for check in (await get(server, path)).body["checks"]] for path in health_server._PATHS
        }
        assert names == {
            "/live": ["event loop", "lease keeper"],
            "/ready": ["store"],
            "/health": ["event loop", "lease keeper", "store"],
        }


async def test_answers_are_json_that_is_not_cached_and_name_no_server() -> None:
    async with serving() as server:
        for path in ("/live", "/nowhere"):
            headers = (await get(server, path)).headers
            assert headers["Content-Type"] == "application/json"
            assert headers["Cache-Control"] == "no-store"
            assert "Server" not in headers


async def test_a_process_that_is_not_ready_answers_503_and_is_still_alive() -> None:
    async with serving(always(POOR)) as server:
        answer = await get(server, "/ready")
        assert answer.status == 503
        assert answer.body == {
            "ok": False, "checks": [{"name": "store", "ok": False, "detail": "does not answer"}],
        }  # fmt: skip
        assert (await get(server, "/live")).status == 200
        assert (await get(server, "/health")).status == 503


async def test_head_returns_the_status_without_a_body() -> None:
    async with serving(always(POOR)) as server:
        answer = await get(server, "/ready", "HEAD")
        assert (answer.status, answer.body) == (503, None)
        assert int(answer.headers["Content-Length"]) > 0


@pytest.mark.parametrize("path", ["/", "/live/", "/metrics", "/lives", "/../live"])
async def test_any_other_path_is_404(path: str) -> None:
    async with serving() as server:
        assert (await get(server, path)).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
async def test_other_methods_are_405(method: str) -> None:
    async with serving() as server:
        answer = await get(server, "/ready", method)
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "sent",
    [b"\r\n\r\n", b"nonsense\r\n\r\n", b"GET /live HTTP/9.9\r\n\r\n", b"GET " + b"x" * 70_000, b"\x16\x03\x01\x02\x00"],
)
async def test_nonsense_is_refused_and_the_next_probe_is_answered(sent: bytes) -> None:
    def talk(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            try:
                return client.recv(65536)
            except ConnectionResetError:
                return b""

    async with serving() as server:
        assert b"200" not in await asyncio.to_thread(talk, server.port)
        assert (await get(server, "/live")).status == 200


@pytest.mark.parametrize("line", ["GET /live HTTP/9.9", "GET /live HTTP/2.0", "GET /live HTTP/3", "GET", "A b c d"])
async def test_an_unreadable_request_is_answered_with_a_client_error(line: str) -> None:
    def talk(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(f"{line}\r\n\r\n".encode())
            return b"".join(iter(lambda: client.recv(65536), b""))

    async with serving() as server:
        assert (await asyncio.to_thread(talk, server.port)).startswith(b"HTTP/1.0 400 ")


async def test_a_stopping_process_is_not_ready_but_alive_even_without_its_keeper() -> None:
    stopping = False
    async with serving(is_stopping=lambda: stopping, keeper_alive=lambda: not stopping) as server:
        assert (await get(server, "/ready")).status == 200
        stopping = True
        answer = await get(server, "/ready")
        assert answer.status == 503
        assert answer.body["checks"][0]["detail"].startswith("stopping")
        assert (await get(server, "/live")).status == 200


async def test_a_process_without_its_lease_keeper_is_not_alive() -> None:
    async with serving(keeper_alive=lambda: False) as server:
        assert (await get(server, "/live")).status == 503


async def test_a_blocked_loop_is_at_once_not_ready_and_after_a_while_not_alive(
    monkeypatch: pytest.MonkeyPatch, threads_end: None
) -> None:
    monkeypatch.setattr(health_server, "_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(health_server, "_NUDGE_SECONDS", 0.05)
    statuses: list[int] = []
    async with serving(stalled_after=5.0) as server:
        port = server.port

        def probe() -> None:
            statuses.append(ask(port, "/live").status)
            statuses.append(ask(port, "/ready").status)
            deadline = time.monotonic() + 30
            while (status := ask(port, "/live").status) == 200 and time.monotonic() < deadline:
                time.sleep(0.01)
            statuses.append(status)

        probing = threading.Thread(target=probe)
        probing.start()
        # The loop is blocked until the probes are done.
        probing.join(60)
        assert statuses == [200, 503, 503]
        await until(lambda: _status(server, "/live", 200), "the loop turns again")
        await until(lambda: _status(server, "/ready", 200), "the loop answers again")


async def _status(server: HealthServer, path: str, status: int) -> bool:
    return (await get(server, path)).status == status


async def test_a_paused_process_is_alive_as_soon_as_its_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(stalled_after=60.0) as server:
        assert server._pulse is not None
        # As after an hour's suspension: the last beat is old, and the probe arrives before the next one.
        server._pulse._turned -= 3600
        assert (await get(server, "/live")).status == 200


async def test_a_storm_of_probes_causes_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_server, "_CACHED_SECONDS", float("inf"))
    questions = 0

    async def ready() -> Health:
        nonlocal questions
        questions += 1
        await asyncio.sleep(0.05)
        return FINE

    async with serving(ready) as server:
        answers = await asyncio.gather(*(get(server, "/ready") for _ in range(24)))
        assert {answer.status for answer in answers} == {200}
    assert questions == 1


async def test_an_answer_is_cached_only_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_server, "_CACHED_SECONDS", 0.0)
    now = POOR

    async def ready() -> Health:
        return now

    async with serving(ready) as server:
        assert (await get(server, "/ready")).status == 503
        now = FINE
        assert (await get(server, "/ready")).status == 200


async def test_a_check_that_raises_means_not_ready() -> None:
    async def ready() -> Health:
        raise ZeroDivisionError

    async with serving(ready) as server:
        answer = await get(server, "/ready")
        assert answer.status == 503
        assert "ZeroDivisionError" in answer.body["checks"][0]["detail"]


async def test_silent_clients_do_not_block_other_probes(threads_end: None) -> None:
    async with serving() as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        try:
            for client in silent:
                client.sendall(b"GET /li")
            assert (await get(server, "/live")).status == 200
            alive = [thread for thread in threading.enumerate() if "process_request" in thread.name]
            await until(
                lambda: sum(thread.is_alive() for thread in alive) <= health_server._MOST_CONNECTIONS, "few threads"
            )
        finally:
            for client in silent:
                client.close()


async def test_a_client_that_sends_too_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch, threads_end: None) -> None:
    monkeypatch.setattr(health_server, "_CONNECTION_SECONDS", 0.3)

    def drip(port: int) -> bool:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(0.02)
            client.sendall(b"GET /live HTTP/1.1\r\n")
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                try:
                    client.sendall(b"X")
                    if client.recv(1) == b"":
                        return True
                except TimeoutError:
                    continue
                except OSError:
                    return True
            return False

    async with serving() as server:
        assert await asyncio.to_thread(drip, server.port)
        assert (await get(server, "/live")).status == 200


async def test_a_port_in_use_is_one_clear_line() -> None:
    async with serving() as server:
        with pytest.raises(
            InvalidInput, match=rf"^the health port 127\.0\.0\.1:{server.port} cannot be opened: .*in use"
        ):
            HealthServer("127.0.0.1", server.port, ready=always(FINE)).start()


async def test_a_host_of_another_machine_is_one_clear_line() -> None:
    with pytest.raises(InvalidInput, match=r"^the health port .* cannot be opened: .*HOLDFAST_HEALTH_HOST"):
        HealthServer("nowhere.invalid", 0, ready=always(FINE)).start()


async def test_a_stopped_server_frees_its_port_and_leaves_no_thread(threads_end: None) -> None:
    async with serving() as server:
        port = server.port
        assert (await get(server, "/live")).status == 200
    async with HealthServer("127.0.0.1", port, ready=always(FINE)) as again:
        assert (await get(again, "/live")).status == 200
    with pytest.raises(ConnectionRefusedError):
        await asyncio.to_thread(ask, port, "/live")


async def test_an_ipv6_host_works() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with HealthServer("::1", 0, ready=always(FINE)) as server:
        connection = http.client.HTTPConnection("::1", server.port, timeout=30)
        await asyncio.to_thread(connection.request, "GET", "/live")
        assert (await asyncio.to_thread(connection.getresponse)).status == 200
        connection.close()


async def test_a_store_in_memory_is_ready() -> None:
    async with opened_app("memory:") as app:
        health = await readiness(app)
        assert health.ok
        assert [check.name for check in health.checks] == ["store", "schema", "retention"]


async def test_a_database_is_ready_until_its_schema_changes(database: Database) -> None:
    async with opened_app(database.url) as app, connected(database.url) as connection:
        assert (await readiness(app)).ok
        await connection.execute("INSERT INTO holdfast.migration (version, name) VALUES (9999, 'later')")
        store, schema, *_ = (await readiness(app)).checks
        assert store.ok
        assert not schema.ok
        assert "is version 9999, newer than this release knows" in schema.detail


async def test_late_retention_is_reported_but_does_not_affect_readiness(database: Database) -> None:
    async with opened_app(database.url) as app, connected(database.url) as connection:
        (*_, retention) = (await readiness(app)).checks
        assert (retention.name, retention.ok, retention.detail) == ("retention", True, "nothing is overdue")
        await add_days(connection, 20)
        health = await readiness(app)
        assert health.ok
        assert health.checks[-1].detail == f"behind: {day_of(20)} should be gone; see `holdfast doctor`"
        await app.opened.maintenance.mark_failed("prune jobs", "an invoice refers to it")
        expected = f"behind: {day_of(20)} should be gone; prune jobs: an invoice refers to it; see `holdfast doctor`"
        assert (await readiness(app)).checks[-1].detail == expected


@pytest.mark.parametrize(("connected", "ok"), [(True, True), (False, False)])
async def test_a_broker_is_checked_if_configured(connected: bool, ok: bool) -> None:
    async with opened_app("memory:") as app:
        health = await readiness(app, broker_connected=lambda: connected)
        assert health.ok is ok
        assert health.checks[-1].name == "broker"


@pytest.mark.fault
@ONE_SERVER
async def test_readiness_follows_a_database_that_fails_and_returns(proxy: Proxy) -> None:
    async with opened_app(proxy.url) as app:
        assert (await readiness(app)).ok
        proxy.refuse()
        health = await readiness(app)
        assert not health.ok
        assert "PostgreSQL is not available" in health.checks[0].detail
        proxy.flow()
        await until(lambda: _is_ready(app), "ready again")


@pytest.mark.fault
async def test_a_database_that_refuses_connections_is_not_available(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_app(database.url) as app:
        with refusing(database.url):

            async def is_told() -> bool:
                health = await readiness(app)
                assert not health.ok
                assert health.checks[0].detail.startswith("PostgreSQL is not available: ")
                return "accepting connections" in health.checks[0].detail

            await until(is_told, "a new connection is refused")
        await until(lambda: _is_ready(app), "ready again")
    assert [record.name for record in caplog.records if record.name.startswith("holdfast")] == []


async def _is_ready(app: Holdfast) -> bool:
    return (await readiness(app)).ok


@pytest.mark.fault
@ONE_SERVER
async def test_a_hanging_database_is_queried_once_and_probes_are_answered_in_time(proxy: Proxy) -> None:
    async with opened_app(proxy.url) as app:
        probe = ReadinessProbe(app, seconds=0.05)
        proxy.swallow()
        for _ in range(3):
            health = await asyncio.wait_for(probe.look(), 30)
            assert not health.ok
            assert "no answer within 0.05 s" in health.checks[0].detail
        asked = [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "ReadinessProbe._ask"]  # type: ignore[union-attr]
        assert len(asked) == 1
        proxy.flow()
        await until(lambda: _looks_ready(probe), "ready again")


async def test_a_worker_that_cannot_start_handlers_is_not_ready_and_says_why() -> None:
    why: str | None = "invoice.send: OSError: [Errno 24] Too many open files"
    async with Holdfast("memory:") as app:
        probe = ReadinessProbe(app, not_started=lambda: why)
        assert Check("handlers", False, f"cannot be started: {why}") in (await probe.look()).checks
        why = None
        assert (await probe.look()).ok


async def _looks_ready(probe: ReadinessProbe) -> bool:
    return (await probe.look()).ok


def test_liveness_does_not_ask_the_store() -> None:
    assert liveness(1.0).ok
    assert liveness(30.0, keeper_alive=True).ok
    assert not liveness(30.1, keeper_alive=True).ok
    assert not liveness(0.0, keeper_alive=False).ok
    assert [check.name for check in liveness(0.0, keeper_alive=False).checks] == ["event loop", "lease keeper"]
