"""Readiness with and without RabbitMQ, and the messages that wake a worker."""

import asyncio
import json
import socket

import aio_pika
import pytest

from holdfast_lab.faults.proxy import Proxy
from tests.apps.passports.api.conftest import Api, opened_api, problem
from tests.apps.passports.bench import opened_bench, worker_settings
from tests.apps.passports.patience import until
from tests.databases import Database
from tests.rabbitmq.conftest import broker_port, channel_to, exchange, url

__all__ = ["broker_port", "exchange", "url"]

pytestmark = pytest.mark.postgres

MALFORMED = [b"", b"job", b"[]", b'{"job_id": 7}', b'{"job_id": "7"}', b'{"id": "17"}', b"\xff"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize(("is_enabled", "is_required"), [(False, False), (True, False), (True, True)])
async def test_readiness_wants_the_broker_only_if_it_is_required(
    database: Database, is_enabled: bool, is_required: bool
) -> None:
    settings = worker_settings(
        database.url,
        bpc_queue_enabled=is_enabled,
        bpc_health_require_queue=is_required,
        bpc_queue_url=f"amqp://guest:guest@127.0.0.1:{free_port()}/",
    )
    async with opened_api(settings) as api:
        response = await api.nobody.get("/v1/health/ready")
        if is_required:
            assert await problem(response) == (503, "QUEUE_UNAVAILABLE", "RabbitMQ cannot be reached")
        else:
            assert response.json() == {"status": "ok"}
        # Everything else works without the broker.
        assert (await api.ann.upload())["version"] == 1


@pytest.mark.fault
async def test_a_database_that_does_not_answer_is_told_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.passports.database._ANSWER_SECONDS", 0.3)
    monkeypatch.setattr("apps.passports.database._CONNECT_SECONDS", 0.3)
    with Proxy.before(database.url) as proxy:
        async with opened_api(worker_settings(proxy.url)) as api:
            proxy.swallow()
            response = await api.ann.http.get("/v1/documents")
            assert (await problem(response))[:2] == (503, "DB_UNAVAILABLE")
            proxy.cut_all()


async def test_a_message_wakes_a_worker_that_polls_once_an_hour(
    database: Database, url: str, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise a notification of PostgreSQL would wake the worker.
    monkeypatch.setenv("HOLDFAST_LISTEN", "false")
    given = {"bpc_queue_url": url, "bpc_queue_exchange": exchange, "bpc_health_require_queue": True}
    settings = worker_settings(database.url, bpc_queue_enabled=True, bpc_jobs_poll_interval_ms=3_600_000, **given)
    async with opened_api(worker_settings(database.url)) as silent, opened_bench(settings) as bench:
        first = await silent.ann.upload()
        worker = bench.app.worker()
        subscriber = worker.subscriber
        assert subscriber is not None
        running = asyncio.create_task(worker.run())
        await until(lambda: subscriber.is_connected)
        # The worker looks when it connects, and finds the first job then or by its message.
        await until(lambda: _is_done(silent, first["job_id"]))
        uploaded = await silent.ann.upload()
        async with channel_to(url) as channel:
            to = await channel.get_exchange(exchange)
            for number, body in enumerate(MALFORMED, 1):
                await to.publish(aio_pika.Message(body), "jobs.trigger")
                await until(lambda number=number: subscriber.malformed == number)  # type: ignore[misc]
            assert not await _is_done(silent, uploaded["job_id"])
            await to.publish(aio_pika.Message(json.dumps({"job_id": uploaded["job_id"]}).encode()), "jobs.trigger")
        await until(lambda: _is_done(silent, uploaded["job_id"]))
        async with opened_api(settings) as api:
            assert (await api.nobody.get("/v1/health/ready")).json() == {"status": "ok"}
            # The API sends the message itself.
            again = await api.ann.upload()
            await until(lambda: _is_done(api, again["job_id"]))
            await api.ann.endpoint("http://127.0.0.1:9/", "RULES_PUBLISHED")
            await api.ann.published()
            (delivery,) = (await api.ann.get("/jobs", type="DELIVER_WEBHOOK"))["items"]
            await until(lambda: _is_tried(api, delivery["job_id"]))
        worker.stop()
        assert await running == 0


async def _is_done(api: Api, job_id: str) -> bool:
    return bool((await api.ann.get(f"/jobs/{job_id}"))["status"] == "SUCCEEDED")


async def _is_tried(api: Api, job_id: str) -> bool:
    return (await api.ann.get(f"/jobs/{job_id}"))["last_error"] is not None
