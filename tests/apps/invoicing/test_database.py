"""The service's own pool of connections, when the server goes away and comes back."""

import asyncpg
import pytest

from apps.invoicing.database import opened_pool
from holdfast.faults.proxy import Proxy
from tests.databases import Database

pytestmark = [pytest.mark.postgres, pytest.mark.fault]


async def test_the_pool_logs_nothing_of_an_outage_by_itself(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asks is told; what the driver tried beside that would be a traceback for each of its tries."""
    with Proxy.before(database.url) as proxy:
        async with opened_pool(proxy.url) as pool:
            proxy.refuse()
            for _ in range(5):
                with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
                    await pool.fetchval("SELECT 1")
            proxy.flow()
            assert await pool.fetchval("SELECT 1") == 1
    assert not [record for record in caplog.records if record.name.startswith("asyncpg")]
