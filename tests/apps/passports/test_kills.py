"""A worker process is killed inside each handler, and another one takes over."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import JobState
from tests.apps.passports.bench import KEY, Bench
from tests.apps.passports.patience import until
from tests.apps.passports.receiver import Receiver
from tests.apps.passports.test_idempotency import Prepare, to_compile, to_label, to_parse, to_sign
from tests.databases import Database, connected

pytestmark = [pytest.mark.postgres, pytest.mark.fault, pytest.mark.long]

ROOT = Path(__file__).parents[3]
_BLOCKED = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%audit_number%'
"""


@contextmanager
def worker(url: str, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    variables = {
        "BPC_DATABASE_URL": url,
        "BPC_SIGNING_KEY": KEY,
        "BPC_DEVELOPMENT": "true",
        "BPC_JOBS_LEASE_SECONDS": "2",
        "BPC_JOBS_LEASE_RENEW_SECONDS": "1",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith(("BPC_", "HOLDFAST_"))}
    command = [sys.executable, "-m", "apps.passports", "worker"]
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, env={**others, **variables}, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def all_done(bench: Bench) -> bool:
    jobs = [job for job in await bench.jobs() if job.run_at is None or job.run_at <= await bench.app.clock.now()]
    return all(job.state.is_final for job in jobs)


@pytest.mark.parametrize("prepare", [to_parse, to_compile, to_sign, to_label])
async def test_after_a_kill_inside_the_handler_there_is_one_of_everything(
    database: Database, bench: Bench, prepare: Prepare, tmp_path: Path
) -> None:
    """The handler has written its effect, and waits for the number of its audit event when its worker is killed."""
    tenant = await bench.tenant()
    job = await prepare(bench, tenant)
    await bench.app.enqueue(job)
    async with connected(database.url) as connection:
        async with connection.transaction():
            await connection.execute("SELECT FROM passports.tenants FOR NO KEY UPDATE")
            with worker(database.url, tmp_path / "killed.log") as process:

                async def is_blocked() -> bool:
                    return bool(await bench.tools.pool.fetchval(_BLOCKED))

                await until(is_blocked)
                process.kill()
                process.wait()
        with worker(database.url, tmp_path / "second.log"):
            await until(lambda: all_done(bench))
    assert (await bench.job(job.id)).state is JobState.SUCCEEDED
    events = await bench.audited(tenant)
    assert len(events) == len(set(events))
    assert len(await bench.rows("SELECT FROM passports.facts")) == 6
    assert len(await bench.rows("SELECT FROM passports.passport_versions")) == int(prepare is not to_parse)


async def test_after_a_kill_during_a_delivery_it_is_recorded_once(
    database: Database, bench: Bench, receiver: Receiver, tmp_path: Path
) -> None:
    tenant = await bench.tenant()
    await bench.endpoint(tenant, receiver.url, "RULES_PUBLISHED")
    await bench.rules(tenant)
    receiver.hangs = True
    receiver.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"]
    with worker(database.url, tmp_path / "killed.log") as process:
        await until(receiver.arrived.is_set)
        process.kill()
        process.wait()
    receiver.hangs = False
    receiver.answers = []
    with worker(database.url, tmp_path / "second.log"):
        await until(lambda: all_done(bench))
    assert (await bench.delivery(tenant))["status"] == "DELIVERED"
    assert len(receiver.received) == 2
    assert len({(each.body, each.headers["X-BPC-Delivery-Id"]) for each in receiver.received}) == 1
    assert await bench.audited(tenant) == ["RULES_PUBLISHED", "WEBHOOK_DELIVERED"]
