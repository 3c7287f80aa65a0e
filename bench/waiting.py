"""`python -m bench.waiting`: measures how soon waiters wake up, how many connections they need, and the cost of rings.

Uses an embedded PostgreSQL that is removed afterwards or, with --url, its own schemas on another server. The waiting
process finishes the jobs itself, which is the harder case: both need its event loop.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import time
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

from bench.markdown import table
from bench.runtime.workers import Scene, say, spread
from holdfast.app import Holdfast
from holdfast.domain.job import LeasedJob
from holdfast.domain.lifecycle import Move, Transition
from holdfast.store.contract import ClaimRequest, Finish, KindClaim, Store
from holdfast.store.opening import migrate
from holdfast.store.postgres.driver import open_connection
from holdfast.store.postgres.schema_files import schema_files
from holdfast.store.postgres.sql_files import in_schema, quoted, statement
from holdfast.store.postgres.store import PostgresStore
from holdfast_lab.bench.place import Place, scratch_place

_CONNECTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_HOUR = timedelta(hours=1)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.waiting", description=__doc__)
    parser.add_argument("--url", help="PostgreSQL server to measure on (default: an embedded one)")
    parser.add_argument("--waiters", type=int, default=500, help="number of waits at once (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="time in which the jobs end (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="finishes with and without (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args()


async def _leased(app: Holdfast, store: Store, number: int) -> list[LeasedJob]:
    await app.opened.store.enqueue([app.job("wait", {"number": each}) for each in range(number)])
    leased = await store.claim(ClaimRequest(uuid4(), number, ("default",), {"wait": KindClaim(_HOUR, number)}))
    assert len(leased) == number
    return leased


async def woken(place: Place, waiters: int, seconds: float) -> dict[str, Any]:
    say(f"{waiters} waits for jobs that end within {seconds:g} s")
    random = Random(waiters)
    finisher = PostgresStore(place.url, place.schema)
    await finisher.open()
    async with Holdfast(place.url, schema=place.schema) as app:
        leased = await _leased(app, finisher, waiters)
        before = await place.connection.fetchval(_CONNECTIONS)
        ended: dict[UUID, float] = {}
        woken_at: dict[UUID, float] = {}

        async def wait(id: UUID) -> None:
            assert (await app.wait(id, "5m")).state.is_final
            woken_at[id] = time.perf_counter()

        async def finish(each: LeasedJob) -> None:
            await asyncio.sleep(random.uniform(0, seconds))
            await finisher.finish([Finish(each.lease, Transition(Move.SUCCEED))])
            ended[each.id] = time.perf_counter()

        waits = [asyncio.create_task(wait(each.id)) for each in leased]
        registered = f"SELECT count(*) = $1 FROM {quoted(place.schema)}.waiter"
        await Scene(place).until(lambda: place.connection.fetchval(registered, waiters), "all are registered")
        extra = await place.connection.fetchval(_CONNECTIONS) - before
        await asyncio.gather(*(finish(each) for each in leased), *waits)
        await finisher.close()
    # A ring can arrive before the reply to the finisher.
    late = [max(0.0, woken_at[id] - at) for id, at in ended.items()]
    return {"from the finish to the wake-up": spread(late), "connections more": extra}


async def ring_cost(place: Place, rounds: int) -> dict[str, Any]:
    """Compare the finish function with a copy that does not look for waiters, in turns and in separate schemas."""
    say(f"finishing with and without rings, {rounds} rounds each")
    quiet = f"{place.schema}_quiet"
    await migrate(place.url, quiet)
    apps = {"with": Holdfast(place.url, schema=place.schema), "without": Holdfast(place.url, schema=quiet)}
    statements = {
        name: statement("finish_succeeded", schema, 2) for name, schema in (("with", place.schema), ("without", quiet))
    }
    connection = await open_connection(place.url)
    await connection.execute(in_schema(_quiet(schema_files().functions["finish_succeeded"]), quiet))
    figures: dict[str, Any] = {}
    try:
        async with apps["with"], apps["without"]:
            for case, batch, waited in (
                ("500 jobs, nobody waits", 500, 0),
                ("1 job, nobody waits", 1, 0),
                ("500 jobs, somebody waits for another", 500, -1),
                ("500 jobs, each is waited for", 500, 500),
            ):
                times: dict[str, list[float]] = {"with": [], "without": []}
                for _ in range(rounds if batch > 1 else rounds * 10):
                    for name, app in apps.items():
                        leased = await _leased(app, app.opened.store, batch)
                        if name == "with" and waited:
                            ids = [each.id for each in leased[:waited]] if waited > 0 else [uuid4()]
                            start = statement("wait_start", place.schema)
                            await connection.execute(start, uuid4(), ids, [_HOUR] * len(ids))
                        times[name].append(await _finish(connection, statements[name], leased))
                        await connection.execute(f"DELETE FROM {quoted(place.schema)}.waiter")
                figures[case] = {
                    "µs without rings": round(statistics.median(times["without"]) * 1e6),
                    "µs with": round(statistics.median(times["with"]) * 1e6),
                    "ratio": round(_ratio(times["with"], times["without"]), 3),
                }
    finally:
        await connection.execute(f"DROP SCHEMA {quoted(quiet)} CASCADE")
        await connection.close()
    return figures


async def _finish(connection: Any, finish: str, leased: Sequence[LeasedJob]) -> float:  # noqa: ANN401
    leases = [each.lease for each in leased]
    columns = [lease.id for lease in leases], [lease.claim for lease in leases]
    started = time.perf_counter()
    refused = await connection.fetchval(finish, *columns)
    took = time.perf_counter() - started
    assert refused is None
    return took


def _quiet(function: str) -> str:
    """The function without its look for waiters."""
    ringing = re.compile(r"^ *IF EXISTS \(SELECT FROM holdfast.waiter .*?^ *END IF;\n", re.MULTILINE | re.DOTALL)
    quiet, number = ringing.subn("", function)
    assert number == 1
    return quiet


def _ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """Compare adjacent measurements, so that the machine's other load affects both."""
    return statistics.median(mine / theirs for mine, theirs in zip(one, other, strict=True))


def tables(server: dict[str, Any], wakes: dict[str, Any], costs: dict[str, Any]) -> str:
    title = "PostgreSQL {postgresql}, {cores} cores, load average {load}".format(**server)
    late = wakes["from the finish to the wake-up"]
    columns = list(next(iter(costs.values())))
    rows = [[case, *(f"{figures[name]:,}" for name in columns)] for case, figures in costs.items()]
    return "\n\n".join(
        [
            table(
                title, ["waits", "p50 ms", "p99", "max"], [[f"{late[key]:,}" for key in ("count", "p50", "p99", "max")]]
            ),
            f"connections more than before: {wakes['connections more']}",
            table("A finish, and the same without rings", ["", *columns], rows),
        ]
    )


async def main() -> None:
    chosen = arguments()
    say("preparing PostgreSQL")
    async with scratch_place(chosen.url) as place:
        load_before = os.getloadavg()[0]
        wakes = await woken(place, chosen.waiters, chosen.seconds)
        costs = await ring_cost(place, chosen.rounds)
        server = {
            "postgresql": await place.connection.fetchval("SHOW server_version"),
            "cores": os.cpu_count(),
            # The machine's other load affects every figure here.
            "load": f"{load_before:.1f} before, {os.getloadavg()[0]:.1f} after",
        }
    print(
        json.dumps({"server": server, "waits": wakes, "rings": costs}, indent=1)
        if chosen.json
        else tables(server, wakes, costs)
    )


if __name__ == "__main__":
    asyncio.run(main())
