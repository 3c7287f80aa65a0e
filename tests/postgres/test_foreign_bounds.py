"""A drop does not trust bounds that Holdfast did not make, and never removes a job that still has to run."""

from datetime import UTC, date, datetime, timedelta

import asyncpg
import pytest

from holdfast.doctor.findings import Level
from holdfast.domain.errors import InvalidInput
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import Fenced, Finish
from holdfast.store.postgres.maintenance import drop_day
from holdfast.store.postgres.store import PostgresClock
from tests.databases import Database, connected, opened_store
from tests.doctor.examined import only
from tests.postgres.past import (
    NOON,
    RETENTION,
    day_of,
    days_with_partitions,
    id_of,
    is_sound,
    pruned,
    skipped,
)
from tests.store_contract.steps import job, wants

pytestmark = pytest.mark.parametrize("server", ["embedded-18"], indirect=True)

DAYS = 5
LONG = timedelta(days=100)
_NOT_OURS = "the bounds of the partitions of {} are not what Holdfast makes"


def _first_id(moment: datetime) -> str:
    return f"{int(moment.timestamp() * 1000):012x}" + "0" * 20


async def _attach(connection: "asyncpg.Connection[asyncpg.Record]", day: date, bounds: dict[str, str]) -> None:
    """Attach partitions that have our names but other bounds."""
    for parent, said in bounds.items():
        part = f"holdfast.{parent}_{day:%Y%m%d}"
        await connection.execute(f"CREATE TABLE {part} (LIKE holdfast.{parent} INCLUDING DEFAULTS)")
        await connection.execute(f"ALTER TABLE holdfast.{parent} ATTACH PARTITION {part} FOR VALUES {said}")


def _day(hours: int, *, days: int = 1) -> str:
    midnight = datetime.combine(day_of(DAYS), datetime.min.time(), UTC)
    start, end = midnight + timedelta(hours=hours), midnight + timedelta(days=days)
    return f"FROM ('{_first_id(start)}') TO ('{_first_id(end)}')"


@pytest.mark.parametrize(
    "bounds",
    [
        {"job": _day(1), "finished": _day(1)},
        {"job": _day(0), "finished": _day(0, days=2)},
        {"job": f"FROM (MINVALUE) TO ('{_first_id(NOON)}')", "finished": _day(0)},
        {"job": _day(0), "finished": "FROM (MINVALUE) TO (MAXVALUE)"},
    ],
    ids=["an hour less", "of other days", "without a beginning", "without an end"],
)
async def test_partitions_with_foreign_bounds_are_kept_and_pruned_job_by_job(
    database: Database, bounds: dict[str, str]
) -> None:
    day = day_of(DAYS)
    async with opened_store(database.url) as store, connected(database.url) as connection:
        for each in await days_with_partitions(connection):
            await connection.execute(f"DROP TABLE holdfast.job_{each:%Y%m%d}, holdfast.finished_{each:%Y%m%d}")
        await _attach(connection, day, bounds)
        live, old = job(id=id_of(DAYS), kind="live"), job(id=id_of(DAYS))
        await store.enqueue([live, old])
        (leased,) = await store.claim(wants())
        await store.finish([Finish(leased.lease, Transition(Move.SUCCEED))])
        await PostgresClock(store).advance(RETENTION)
        with pytest.raises(InvalidInput, match=_NOT_OURS.format(day)):
            await drop_day(store, day, RETENTION)
        with pytest.raises(asyncpg.PostgresError, match=_NOT_OURS.format(day)):
            await connection.fetch("SELECT * FROM holdfast.drop_day($1, 0, '{}', 10, 10)", day)
        assert f"{day}: the bounds of its partitions are not what Holdfast makes" in "".join(await skipped(store))
        assert await days_with_partitions(connection) == [day]
        assert {row["id"] for row in await connection.fetch("SELECT id FROM holdfast.job")} == {live.id}
        assert [each.id for each in await store.claim(wants("live"))] == [live.id]
        await is_sound(connection)
    assert (await only(database, "places")).level is Level.OK


async def test_misread_bounds_never_remove_an_unfinished_job(database: Database) -> None:
    """Holdfast reads the bounds as if each partition covered a single day."""
    async with opened_store(database.url) as store, connected(database.url) as connection:
        await connection.execute("SELECT holdfast.add_partitions($1, $2, $2)", day_of(DAYS), DAYS)
        ready = [job(id=id_of(days), kind="ready") for days in range(1, DAYS + 1)]
        running = [job(id=id_of(days), kind="running") for days in range(1, DAYS + 1)]
        await store.enqueue([*ready, *running])
        leased = await store.claim(wants("running", lease=LONG))
        await PostgresClock(store).advance(RETENTION)
        await connection.execute(
            "CREATE OR REPLACE FUNCTION holdfast.part_end(day date) RETURNS date LANGUAGE sql AS 'SELECT day + 1'"
        )
        counts = await pruned(store)
        assert (counts["partitions_dropped"], counts["jobs_moved"]) == (2, 2 * DAYS)
        assert {each.id for each in await store.claim(wants("ready"))} == {each.id for each in ready}
        endings = await store.finish([Finish(each.lease, Transition(Move.SUCCEED)) for each in leased])
        assert endings == [Fenced.DONE] * DAYS
        await is_sound(connection)
