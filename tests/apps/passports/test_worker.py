"""The worker's settings, its shape in Holdfast, and jobs as clients see them."""

import asyncio
import base64
from datetime import timedelta
from random import Random

import pytest

from apps.passports.jobs_view import STATUSES, JobView, LastError, TenantJobs
from apps.passports.settings import Misconfigured, Settings
from apps.passports.tools import trusted_keys
from apps.passports.worker import build_app, run_background
from holdfast import JobState
from tests.apps.passports.bench import KEY, Bench, opened_bench, worker_settings
from tests.apps.passports.patience import until
from tests.apps.passports.receiver import Receiver
from tests.databases import Database

URL = "postgresql://nobody@127.0.0.1:1/none"


def test_every_variable_has_its_default() -> None:
    settings = Settings.load()
    assert (settings.bpc_queue_enabled, settings.bpc_health_require_queue) == (False, False)
    assert settings.bpc_jobs_poll_interval_ms == 1000
    assert (settings.bpc_jobs_lease_seconds, settings.bpc_jobs_lease_renew_seconds) == (60, 30)
    assert settings.bpc_jobs_max_attempts == 5
    assert (settings.bpc_queue_exchange, settings.bpc_queue_routing_key) == ("bpc", "jobs.trigger")
    assert (settings.bpc_payload_max_bytes, settings.bpc_signing_key_id) == (1024 * 1024, "dev-key-1")


def test_variables_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPC_QUEUE_ENABLED", "true")
    monkeypatch.setenv("BPC_JOBS_LEASE_SECONDS", "")
    monkeypatch.setenv("BPC_JOBS_POLL_INTERVAL_MS", "250")
    monkeypatch.setenv("BPC_TRUSTED_KEYS", f"old:{KEY}, older:{KEY}")
    settings = Settings.load()
    assert (settings.bpc_queue_enabled, settings.bpc_jobs_lease_seconds) == (True, 60)
    assert settings.bpc_jobs_poll_interval_ms == 250
    assert settings.bpc_trusted_keys == dict.fromkeys(("old", "older"), bytes(range(32)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bpc_database_url": "mysql://root:secret@db/x"}, "BPC_DATABASE_URL: write postgresql://"),
        ({"bpc_queue_url": "http://user:secret@host/"}, "BPC_QUEUE_URL: write amqp://"),
        ({"bpc_jobs_lease_renew_seconds": 31}, "BPC_JOBS_LEASE_RENEW_SECONDS (31) is more than half of"),
        ({"bpc_jobs_max_attempts": 0}, "BPC_JOBS_MAX_ATTEMPTS: Input should be greater than or equal to 1"),
        ({"bpc_signing_key": "secret"}, "BPC_SIGNING_KEY: is not a key: write 32 bytes in Base64"),
        ({"bpc_signing_key": base64.b64encode(bytes(31)).decode()}, "BPC_SIGNING_KEY: is not a key"),
        ({"bpc_signing_key_id": "a b"}, "BPC_SIGNING_KEY_ID: write at most 64"),
        ({"bpc_trusted_keys": f"old:{KEY},old:{KEY}"}, "BPC_TRUSTED_KEYS: has two keys with the same ID"),
        ({"bpc_trusted_keys": "old"}, "BPC_TRUSTED_KEYS: is not a key"),
        ({"bpc_health_require_queue": True}, "BPC_HEALTH_REQUIRE_QUEUE needs BPC_QUEUE_ENABLED=true"),
        ({"bpc_queue_enabled": "maybe"}, "BPC_QUEUE_ENABLED: Input should be a valid boolean"),
    ],
)
def test_a_wrong_variable_is_named_without_its_secret(given: dict[str, object], message: str) -> None:
    with pytest.raises(Misconfigured) as raised:
        Settings.load(**given)
    assert str(raised.value).startswith(message)
    assert "secret" not in str(raised.value)


def test_settings_do_not_show_their_secrets() -> None:
    assert "AAEC" not in repr(worker_settings(URL))
    assert str(bytes(range(32))) not in repr(worker_settings(URL))


def test_the_worker_leases_renews_and_polls_as_configured() -> None:
    app = build_app(worker_settings(URL))
    worker = app.worker_settings()
    assert (worker.lease, worker.renew) == (timedelta(seconds=60), timedelta(seconds=30))
    assert worker.poll == timedelta(seconds=1)
    # Also while it is idle, with PostgreSQL's notifications, and among many workers.
    assert (app.settings.idle_backoff_min, app.settings.idle_backoff_max) == (worker.poll, worker.poll)
    assert (worker.longest_wait, worker.longest_wait_in_a_crowd) == (worker.poll, worker.poll)
    assert app.settings.rabbitmq_url is None


def test_each_kind_is_tried_five_times_with_these_delays() -> None:
    app = build_app(worker_settings(URL))
    for kind in ("PARSE_FACTS", "COMPILE_PASSPORT", "SIGN_PASSPORT", "GENERATE_QR", "DELIVER_WEBHOOK"):
        handler = app.handlers.get(kind)
        assert handler is not None
        assert handler.attempts == 5
        delays = [handler.backoff.delay(failed, Random(1)).total_seconds() for failed in range(1, 13)]
        assert delays == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]


def test_slow_receivers_leave_half_of_the_slots_to_other_jobs() -> None:
    for slots, webhooks in ((10, 5), (3, 1), (1, 1)):
        handler = build_app(worker_settings(URL, bpc_jobs_concurrency=slots)).handlers.get("DELIVER_WEBHOOK")
        assert handler is not None
        assert handler.limit == webhooks


def test_a_worker_without_a_signing_key_says_so_at_its_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("apps.passports.worker.run_worker", lambda _: 0)
    monkeypatch.setattr("apps.passports.worker.setup_logging", lambda *_, **__: None)
    for key, warned in ((KEY, False), (None, True)):
        assert run_background(worker_settings(URL, bpc_signing_key=key)) == 0
        assert ("BPC_SIGNING_KEY is not set" in caplog.text) is warned


def test_rabbitmq_wakes_the_worker_only_if_the_queue_is_enabled() -> None:
    given = {"bpc_queue_url": "amqp://broker/", "bpc_queue_exchange": "x", "bpc_queue_routing_key": "y"}
    enabled = build_app(worker_settings(URL, **given, bpc_queue_enabled=True)).settings
    assert (enabled.rabbitmq_url, enabled.rabbitmq_exchange, enabled.rabbitmq_routing_key) == (
        "amqp://broker/",
        "x",
        "y",
    )
    assert build_app(worker_settings(URL, **given)).settings.rabbitmq_url is None
    for is_required in (True, False):
        settings = worker_settings(URL, bpc_queue_enabled=True, bpc_health_require_queue=is_required)
        assert build_app(settings).settings.health_broker is is_required


def test_the_verifier_trusts_the_own_key_and_older_ones() -> None:
    settings = worker_settings(URL, bpc_trusted_keys=f"old:{KEY}", bpc_signing_key_id="new")
    assert set(trusted_keys(settings)) == {"old", "new"}
    assert trusted_keys(settings)["new"] != bytes(range(32))
    with pytest.raises(Misconfigured, match="BPC_TRUSTED_KEYS: new is the ID of BPC_SIGNING_KEY"):
        trusted_keys(worker_settings(URL, bpc_trusted_keys=f"new:{KEY}", bpc_signing_key_id="new"))


@pytest.mark.postgres
async def test_a_job_is_shown_from_its_beginning_to_its_end(bench: Bench) -> None:
    tenant = await bench.tenant()
    jobs = TenantJobs(bench.app, tenant, 5)
    await bench.endpoint(tenant, "http://127.0.0.1:1/", "RULES_PUBLISHED")
    await bench.rules(tenant)
    job_id = (await bench.only("DELIVER_WEBHOOK")).id

    async def seen() -> JobView:
        view = await jobs.get(job_id)
        assert view is not None
        return view

    queued = await seen()
    assert (queued.type, queued.status, queued.tenant_id) == ("DELIVER_WEBHOOK", "QUEUED", tenant)
    assert (queued.attempts, queued.max_attempts, queued.priority) == (0, 5, 3)
    assert (queued.lease_owner, queued.lease_expires_at, queued.started_at, queued.last_error) == (None,) * 4
    assert queued.scheduled_at is not None

    await bench.work()
    retried = await seen()
    assert (retried.status, retried.attempts) == ("QUEUED", 1)
    assert isinstance(retried.last_error, LastError)
    assert retried.last_error.code == "HttpException"
    await bench.work_off()
    dead = await seen()
    assert (dead.status, dead.attempts) == ("DEAD_LETTER", 5)
    assert [job.job_id for job in await jobs.dead_letters()] == [job_id]
    assert [job.job_id for job in await jobs.newest(status="DEAD_LETTER", type="DELIVER_WEBHOOK")] == [job_id]
    assert await jobs.requeue(job_id) == "ready"
    again = await seen()
    assert (again.status, again.attempts) == ("QUEUED", 0)


def test_every_state_has_a_status() -> None:
    assert {STATUSES[state] for state in JobState} == {
        "QUEUED",
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
        "DEAD_LETTER",
        "CANCELED",
    }


@pytest.mark.postgres
async def test_a_running_job_shows_its_lease(bench: Bench, receiver: Receiver) -> None:
    tenant = await bench.tenant()
    receiver.answers, receiver.hangs = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"], True
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    await bench.rules(tenant)
    (job,) = await TenantJobs(bench.app, tenant, 5).newest()
    working = asyncio.create_task(bench.work())
    await receiver.arrived.wait()
    view = await TenantJobs(bench.app, tenant, 5).get(job.job_id)
    receiver.release()
    await working
    assert view is not None
    assert (view.status, view.attempts) == ("RUNNING", 1)
    assert view.lease_owner is not None
    assert view.started_at is not None
    assert view.lease_expires_at is not None
    assert view.lease_expires_at - view.started_at == timedelta(seconds=60)


@pytest.mark.postgres
@pytest.mark.fault
async def test_without_its_broker_the_worker_polls(database: Database) -> None:
    settings = worker_settings(database.url, bpc_queue_enabled=True, bpc_queue_url="amqp://127.0.0.1:1/")
    async with opened_bench(settings) as bench:
        process = bench.app.worker(runners=("queue",))
        running = asyncio.create_task(process.run())
        uploaded = await bench.uploaded(await bench.tenant())

        async def is_parsed() -> bool:
            return (await bench.job(uploaded.job_id)).state is JobState.SUCCEEDED

        await until(is_parsed)
        process.stop()
        await running
