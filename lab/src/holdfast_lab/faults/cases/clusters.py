"""What operators put between workers and PostgreSQL: PgBouncer, HAProxy, and Patroni, which chooses the primary."""

import asyncio
import contextlib
import time
from collections import Counter
from itertools import cycle, islice
from uuid import UUID

from holdfast.domain.errors import StoreUnavailable
from holdfast.store.postgres.driver import open_connection, translated
from holdfast_lab.faults.app import EFFECT, FLAKY, THREAD, WORK
from holdfast_lab.faults.bouncer import Bouncer
from holdfast_lab.faults.case import Need, case
from holdfast_lab.faults.cases.failovers import check_losses, check_workers
from holdfast_lab.faults.cases.pooling import check_logs
from holdfast_lab.faults.cluster import TTL_SECONDS, Cluster
from holdfast_lab.faults.crew import Broken
from holdfast_lab.faults.judge import DUPLICATE
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.load import backlog, ends
from holdfast_lab.faults.record import What

_POOL = 20
_LOAD_SECONDS = 2.0
_HELD_BACK_SECONDS = 1.5
_DRAINED_SECONDS = 30.0
_PATIENCE = 60.0
_TURN_SECONDS = 0.05
_KEY_SECONDS = 0.1
_NODE, _PATRONI, _SWITCHOVER = "node killed", "Patroni killed", "switchover"
_UNHEARD = ("prepared statement", "no connection past the pooler", "Traceback", "never retrieved")
"""Must not appear in any worker's log: lease keepers bypass PgBouncer as soon as there is a primary."""
_REACHED_SECONDS = 10.0
_MOST_SECONDS = {_NODE: 2.0 * TTL_SECONDS, _PATRONI: 2.0 * TTL_SECONDS, _SWITCHOVER: 20.0}


@case(
    "P47",
    "the primary of a Patroni cluster behind PgBouncer and HAProxy is killed, loses its Patroni, or is switched over",
    large={"synchronous": 5, "asynchronous": 5},
    needs={Need.CLUSTER, Need.OWN_SERVER},
    lease=8.0,
)
async def clusters(lab: Lab) -> None:
    """Only a killed node may take commits with it, and only if its standby is asynchronous."""
    server = lab.server
    if not isinstance(server, Cluster):
        raise Broken("this case needs a cluster")
    plan = [(way, fault) for way in (True, False) for fault in _faults(lab, is_synchronous=way)]
    keys: dict[UUID, str] = {}
    with Bouncer(lab.url, lab.folder / "pgbouncer", pool=_POOL) as bouncer:
        through = lab.workers(3, url=bouncer.url, listen_url=lab.url)
        async with lab.producing(bouncer.url, listen_url=lab.url), through as crew:
            keyed = lab.beside(_keyed(lab, keys))
            for number, (is_synchronous, fault) in enumerate(plan, 1):
                await server.complete(is_synchronous=is_synchronous)
                async with backlog(lab, [WORK, WORK, EFFECT, THREAD, FLAKY], 60, seconds=0.2):
                    await lab.enqueue_many(WORK, 4, {"seconds": 2 * _LOAD_SECONDS})
                    await asyncio.sleep(_LOAD_SECONDS)
                    seconds = await _fail_over(lab, server, bouncer, fault, is_synchronous=is_synchronous)
                lab.check(f"{fault}: jobs continue after", seconds, "s", at_most=_MOST_SECONDS[fault])
                lab.progress(f"{number} of {len(plan)}: {fault}, jobs go on after {seconds:.1f} s")
            keyed.cancel()
            await lab.drained(2 * lab.lease + _DRAINED_SECONDS)
            check_workers(lab, crew)
            check_logs(lab, crew, _UNHEARD)
    await check_losses(lab, is_any=(False, _NODE) in plan)
    there = {row["id"] for row in await lab.fetch("read_final")}
    for key, jobs in Counter(keys[id] for id in there if id in keys).items():
        if jobs > 1:
            lab.violation(DUPLICATE, f"the key {key!r} has {jobs} jobs")
    lab.note("keys", len(set(keys.values())))


def _faults(lab: Lab, *, is_synchronous: bool) -> list[str]:
    number = lab.count("synchronous" if is_synchronous else "asynchronous")
    return list(islice(cycle((_NODE, _SWITCHOVER, _PATRONI)), number))


async def _fail_over(lab: Lab, server: Cluster, bouncer: Bouncer, fault: str, *, is_synchronous: bool) -> float:
    """Return the seconds from the fault until a job ended well."""
    lab.cut_off()
    if fault == _NODE:
        await server.hold_back()
        await asyncio.sleep(_HELD_BACK_SECONDS)
    since = time.monotonic()
    if fault == _NODE:
        last_kept = await server.kill_node()
        if not is_synchronous:
            lab.forgot(last_kept)
    elif fault == _PATRONI:
        await server.kill_patroni()
    else:
        await server.switch_over()
    await _let_in(bouncer.url)
    lab.back()
    done = len(ends(lab.notes()))
    await lab.until(lambda: len(ends(lab.notes())) > done, "jobs go on", _PATIENCE)
    end = ends(lab.notes())[done] if len(ends(lab.notes())) > done else time.monotonic()
    lab.check("jobs continue once there is a primary", end - lab.last_fault, "s", at_most=_REACHED_SECONDS)
    return end - since


async def _let_in(url: str) -> None:
    """Wait until clients reach a primary at this address."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(StoreUnavailable):
            connection = await open_connection(url)
            try:
                with translated():
                    if await connection.execute("SELECT WHERE NOT pg_is_in_recovery()") == "SELECT 1":
                        return
            finally:
                connection.terminate()
        await asyncio.sleep(_TURN_SECONDS)
    raise Broken("the cluster lets no client in")


async def _keyed(lab: Lab, keys: dict[UUID, str]) -> None:
    """Enqueue one job per key, asking again until there is an answer."""
    number = 0
    while True:
        found = await _ask_for(lab, f"key {number}", keys)
        if found is not None:
            lab.record.note(What.ACCEPTED, found)
            number += 1
        await asyncio.sleep(_KEY_SECONDS)


async def _ask_for(lab: Lab, key: str, keys: dict[UUID, str]) -> UUID | None:
    job = lab.producer.job(WORK, {}, key=key)
    keys[job.id] = key
    lab.record.note(What.ENQUEUING, job.id, kind=WORK)
    try:
        (enqueued,) = await lab.producer.enqueue_many([job])
    except StoreUnavailable:
        return None
    return enqueued.id
