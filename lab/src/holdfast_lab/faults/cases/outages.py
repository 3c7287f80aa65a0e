"""PostgreSQL goes away, drops connections, refuses logins, or writes nothing."""

import asyncio
import time
from collections.abc import Sequence

from holdfast_lab.faults.app import EFFECT, WORK
from holdfast_lab.faults.case import Need, case
from holdfast_lab.faults.crew import Crew
from holdfast_lab.faults.judge import TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.load import backlog, ends, latencies
from holdfast_lab.faults.processes import FaultyProcess
from holdfast_lab.faults.record import What

_DRAINED_SECONDS = 10.0
_WINDOW_SECONDS = 3.0
_TURN_SECONDS = 0.25
_POLL_SECONDS = 5.0
"""Long, so that a worker that starts a job at once must have been notified."""
_TOLD_SECONDS = 1.0
_KILLS_A_SECOND = 5
_KILLED_SHARE = 0.8
_SETTLED_SECONDS = 1.0
_IDLE_SECONDS = 3.0
"""Until an idle worker looks only rarely."""


@case(
    "R11",
    "PostgreSQL is stopped as in a power failure, and started again",
    small={"restarts": 2},
    large={"restarts": 10},
    needs={Need.OWN_SERVER},
)
async def restarts(lab: Lab) -> None:
    """Measures the rate with jobs that take a while, so that it depends on the slots and not on the machine."""
    number = lab.count("restarts")
    async with lab.workers(2) as crew:
        async with backlog(lab, [WORK, WORK, WORK, EFFECT], 80, seconds=0.2):
            await lab.until(lambda: bool(ends(lab.notes())), "the first job is done")
            await asyncio.sleep(_WINDOW_SECONDS)
            before = _rate(lab)
            slowest = 0.0
            for each in range(number):
                await _restart(lab)
                lab.progress(f"{each + 1} of {number} restarts")
                slowest = max(slowest, await _recovered(lab, 0.95 * before))
            await _restart_while_one_starts(lab, crew)
        lab.note("rate before", before, "jobs/s")
        lab.check("95 % of the rate after a restart", slowest, "s", at_most=30.0)
        await lab.drained(lab.lease + _DRAINED_SECONDS)
        _nobody_left(lab, crew)


async def _restart(lab: Lab) -> None:
    lab.cut_off()
    await lab.server.stop_immediately()
    await lab.server.start()
    lab.back()


async def _restart_while_one_starts(lab: Lab, crew: Crew) -> None:
    """Start a worker that has never met the server. It must work as soon as the server is back."""
    lab.cut_off()
    await lab.server.stop_immediately()
    (new,) = crew.add()
    words = "retrying until it does"
    await lab.until(lambda: words in new.output() or not new.is_alive, "a worker starts without a server")
    await lab.server.start()
    lab.back()
    await lab.until(lambda: "worker started" in new.output(), "a worker that started without a server works")


async def _recovered(lab: Lab, wanted: float) -> float:
    """Return the seconds from the end of the outage until a whole window afterwards had this rate."""
    back = time.monotonic()
    while True:
        await asyncio.sleep(_TURN_SECONDS)
        passed = time.monotonic() - back
        if passed >= _WINDOW_SECONDS and _rate(lab) >= wanted:
            return passed - _WINDOW_SECONDS
        if passed > 30 + _WINDOW_SECONDS + 1:
            return passed


def _rate(lab: Lab) -> float:
    """Jobs per second that ended well in the window that ends now. The recorder uses this machine's clock."""
    now = time.monotonic()
    return sum(now - _WINDOW_SECONDS <= at <= now for at in ends(lab.notes())) / _WINDOW_SECONDS


def _nobody_left(lab: Lab, *crews: Crew) -> None:
    for each in (each for crew in crews for each in crew.processes):
        if not each.is_alive:
            lab.violation(TARGET, f"a worker ended with {each.exit_code}: {each.output()[-300:]}")


@case(
    "R12",
    "connections to the server are killed, five per second",
    small={"seconds": 15},
    large={"seconds": 60},
)
async def killed_connections(lab: Lab) -> None:
    """Some jobs are longer than their lease. At the end, each worker is notified of a job that only it can do."""
    common = f"{_POLL_SECONDS:g}s"
    async with (
        lab.workers(1, queues="default,first", poll=common) as first,
        lab.workers(1, queues="default,second", poll=common) as second,
    ):
        async with backlog(lab, [WORK, WORK, EFFECT], 60, seconds=0.1):
            await _kill_connections(lab, lab.size["seconds"])
        await lab.drained(2 * lab.lease + _DRAINED_SECONDS)
        await _told(lab, ["first", "second"])
        _nobody_left(lab, first, second)
        await _rescued(lab, [*first.processes, *second.processes])
        for each in (*first.processes, *second.processes):
            said = each.output()
            if said.count("no wake-ups") != said.count("wake-ups are back"):
                lab.violation(TARGET, f"process {each.pid} lost its listener and did not get it back")


async def _kill_connections(lab: Lab, seconds: float) -> None:
    started = time.monotonic()
    killed = 0
    while (passed := time.monotonic() - started) < seconds:
        number = await lab.kill_connections(1)
        killed += number
        lab.faulted()
        if number and killed % 20 == 10:
            await lab.enqueue(WORK, {"seconds": 1.5 * lab.lease})
        await asyncio.sleep(max(0.0, killed / _KILLS_A_SECOND - passed) if number else 0.05)
    # Right after a kill, few connections are left to kill.
    lab.check("connections killed", killed, at_least=_KILLED_SHARE * _KILLS_A_SECOND * seconds)


async def _told(lab: Lab, queues: list[str]) -> None:
    """Each of these queues has one worker, which must learn of a job long before its next look."""
    await asyncio.sleep(_IDLE_SECONDS)
    jobs = [await lab.enqueue(WORK, {}, queue=queue) for queue in queues]
    await lab.until(lambda: all(job in latencies(lab.notes()) for job in jobs), "every worker does a job", 30.0)
    found = latencies(lab.notes())
    lab.check(
        "start after a wake-up",
        max((found[job] for job in jobs if job in found), default=0.0),
        "s",
        at_most=_TOLD_SECONDS,
    )


async def _rescued(lab: Lab, workers: Sequence[FaultyProcess]) -> None:
    """Kill the worker that has begun the job, so that the other one must rescue it."""
    jobs = await lab.enqueue_many(WORK, 1, {"seconds": 60, "again": 0})
    if not await lab.until_started(jobs):
        return
    holder = lab.starts()[jobs[0]][0].pid
    await next(each for each in workers if each.pid == holder).kill()
    lab.faulted()
    await lab.until_started(jobs, times=2, seconds=lab.lease + _DRAINED_SECONDS)
    await lab.drained(lab.lease + _DRAINED_SECONDS)


@case(
    "R15",
    "the server is read-only for a minute",
    large={"seconds": 60},
    needs={Need.OWN_SERVER},
)
async def read_only(lab: Lab) -> None:
    """Nothing can be claimed, renewed or finished, and all logs must stay readable."""
    seconds = lab.size["seconds"]
    async with lab.workers(2) as crew, backlog(lab, [WORK, EFFECT], 60, seconds=0.2):
        await lab.until(lambda: bool(ends(lab.notes())), "the first job is done")
        lab.cut_off()
        await _set_read_only(lab, is_on=True)
        lines = [len(each.output().splitlines()) for each in crew.processes]
        # A transaction that began before may still write until it ends.
        await asyncio.sleep(_SETTLED_SECONDS)
        before = await lab.fetch("read_state")
        refused = await _refused(lab, seconds - _SETTLED_SECONDS)
        changed = {tuple(row) for row in before} ^ {tuple(row) for row in await lab.fetch("read_state")}
        written = [len(each.output().splitlines()) - before for each, before in zip(crew.processes, lines, strict=True)]
        done = len(ends(lab.notes()))
        await _set_read_only(lab, is_on=False)
        lab.back()
        lab.check("enqueues refused meanwhile", refused, "of all", at_least=1.0)
        lab.check("rows that changed meanwhile", len(changed), at_most=0)
        lab.check("log lines of a worker", max(written) / seconds, "a second", at_most=1.0)
        await lab.until(lambda: len(ends(lab.notes())) > done + 10, "work goes on", 30.0)
        _nobody_left(lab, crew)
    async with lab.workers(1):
        await lab.drained(lab.lease + 3 * _DRAINED_SECONDS)


async def _refused(lab: Lab, seconds: float) -> float:
    """Return the share of enqueues that were refused in this time, with one per second."""
    tries: list[bool] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        tries.append(await lab.enqueue(WORK) is None)
        await asyncio.sleep(1.0)
    return sum(tries) / len(tries) if tries else 0.0


async def _set_read_only(lab: Lab, *, is_on: bool) -> None:
    """Set the default for all sessions by a reload. This session may change it even when it is on."""
    connection = await lab.connect()
    try:
        await connection.execute("SET default_transaction_read_only = off")
        await connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if is_on else 'off'}")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        connection.terminate()


@case(
    "R17",
    "new connections are refused, and existing ones are killed except those of the lease keepers",
    small={"leases": 2},
    large={"leases": 10},
    needs={Need.OWN_SERVER},
)
async def no_connections(lab: Lab) -> None:
    """The workers use a separate role, whose connection limit drops below the number of its connections."""
    role = f"fault_worker_{lab.random.getrandbits(32):08x}"
    await lab.server.execute(f"CREATE ROLE {role} LOGIN IN ROLE postgres")
    try:
        async with lab.workers(2, url=lab.url.replace("postgres@", f"{role}@")) as crew:
            await lab.enqueue_many(WORK, 16, {"seconds": lab.lease * lab.size["leases"]})
            await lab.until(lambda: len(_started(lab)) == 16, "16 jobs are started")
            # Gives both keepers time to renew, because they are recognized by that statement.
            await asyncio.sleep(lab.lease / 2)
            await lab.server.execute(f"ALTER ROLE {role} CONNECTION LIMIT 1")
            ((killed,),) = await lab.fetch("kill_all_but_keepers", role)
            lab.faulted()
            lab.check("connections killed", killed, at_least=2)
            await _all_done(lab, 16, lab.lease * lab.size["leases"] + 5)
            ((left, keepers),) = await lab.fetch("count_connections", role)
            lab.check("connections left, except those of lease keepers", left - keepers, at_most=0)
            # Outcomes cannot be written now, but their leases must be kept.
            await asyncio.sleep(lab.lease * 1.5)
            await lab.server.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
            lab.faulted()
            await lab.drained(_DRAINED_SECONDS)
            _nobody_left(lab, crew)
            _nothing_lost(lab, crew)
    finally:
        await lab.server.execute(f"DROP ROLE {role}")


def _started(lab: Lab) -> set[object]:
    return {note.job for note in lab.notes() if note.what is What.START}


async def _all_done(lab: Lab, jobs: int, seconds: float) -> None:
    await lab.until(lambda: len(ends(lab.notes())) >= jobs, f"{jobs} handlers end well", seconds)


def _nothing_lost(lab: Lab, crew: Crew) -> None:
    """Check the logs, because a lease that is lost and regained in time leads to no second attempt."""
    for each in crew.processes:
        for words in ("stopping handler", "outcome refused", "rescued jobs"):
            if words in each.output():
                lab.violation(TARGET, f"a lease was lost: {words!r} in the log of process {each.pid}")
