"""The service's connection pool when the server disappears and returns."""

import asyncpg
import httpx
import pytest

from apps.invoicing.database import opened_pool
from apps.invoicing.settings import Settings
from holdfast_lab.faults.proxy import Proxy
from tests.apps.invoicing.conftest import running_api
from tests.apps.invoicing.patience import until
from tests.databases import Database

pytestmark = [pytest.mark.postgres, pytest.mark.fault]


@pytest.mark.parametrize("is_connected", [True, False])
async def test_the_health_endpoint_answers_while_the_server_is_silent(
    database: Database, settings: Settings, *, is_connected: bool
) -> None:
    """The server answers neither queries nor new connections."""
    with Proxy.before(database.url) as proxy:
        async with (
            running_api(settings.model_copy(update={"database_url": proxy.url})) as api,
            # A prober is less patient than the driver, which would wait for a minute.
            httpx.AsyncClient(base_url=api.url, timeout=20) as prober,
        ):
            if not is_connected:
                proxy.cut_all()
            proxy.swallow()
            for _ in range(2):
                response = await prober.get("/healthz")
                assert (response.status_code, response.json()["error"]) == (503, "UNAVAILABLE")
            proxy.flow()

            async def is_well() -> bool:
                return (await prober.get("/healthz")).status_code == 200

            await until(is_well)


async def test_the_pool_does_not_log_an_outage(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Callers get the error. If the driver logged as well, each of its attempts would add a traceback."""
    with Proxy.before(database.url) as proxy:
        async with opened_pool(proxy.url) as pool:
            proxy.refuse()
            for _ in range(5):
                with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
                    await pool.fetchval("SELECT 1")
            proxy.flow()
            assert await pool.fetchval("SELECT 1") == 1
    assert not [record for record in caplog.records if record.name.startswith("asyncpg")]
