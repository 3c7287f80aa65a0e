"""PostgreSQL refuses logins, privileges, commits or notifications. None of that may be blamed on a job."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import asyncpg

from holdfast_lab.faults.app import THREAD, WORK
from holdfast_lab.faults.case import Need, case
from holdfast_lab.faults.crew import Broken, Crew
from holdfast_lab.faults.judge import TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.load import ends

Refusal = Callable[[Lab, str], AbstractAsyncContextManager[None]]

_SECONDS = (0.5, 2.0, 10.0)
_DRAINED_SECONDS = 15.0
_LEAD_SECONDS = 1.0
"""From the enqueue to the first end of a handler: by then all handlers have started, and the fault is active."""
_SPREAD = 0.6
"""Share of the fault's time: by then the last handler has ended."""
_PAGES = 64
"""Size of the notification queue: the smallest that PostgreSQL allows, half a megabyte."""
_LARGE = 7000
_MOST = 1000
_REFUSE_COMMITS = """
CREATE FUNCTION holdfast.fault_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
CREATE CONSTRAINT TRIGGER fault_refuse AFTER INSERT OR DELETE ON holdfast.lease DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION holdfast.fault_refuse()
"""
_TAKE_COMMITS = "DROP TRIGGER fault_refuse ON holdfast.lease; DROP FUNCTION holdfast.fault_refuse()"


@case(
    "R46",
    "logins, privileges, commits and notifications are refused for 0.5, 2 and 10 s",
    small={"jobs": 40},
    large={"jobs": 60},
    needs={Need.OWN_SERVER},
    lease=30.0,
)
async def refused_for_a_while(lab: Lab) -> None:
    """Handlers end while their outcomes cannot be written. Each outcome must be written once in the end."""
    async with _small_queue_of_notifications(lab), _worker_role(lab) as role:
        url = lab.url.replace("postgres@", f"{role}@")
        async with lab.workers(2, url=url, concurrency=32) as crew:
            for refusal in (_logins, _privileges, _commits, _notifications):
                for seconds in _SECONDS:
                    await _refused(lab, refusal(lab, role), seconds)
                    lab.progress(f"{refusal.__name__.strip('_')} refused for {seconds:g} s")
            _as_left(lab, crew)


async def _refused(lab: Lab, refusal: AbstractAsyncContextManager[None], seconds: float) -> None:
    number = lab.count("jobs") // 2
    done = len(ends(lab.notes()))
    jobs = []
    for each in range(number):
        payload = {"seconds": _LEAD_SECONDS + seconds * _SPREAD * each / number}
        jobs += [job for kind in (WORK, THREAD) if (job := await lab.enqueue(kind, payload)) is not None]
    await lab.until_started(jobs)
    async with refusal:
        lab.faulted()
        await lab.until(lambda: len(ends(lab.notes())) > done, "handlers end during the refusal")
        if len(later := [await lab.enqueue(WORK) for _ in range(3)]) != len([job for job in later if job]):
            lab.violation(TARGET, "a producer that should not be refused cannot enqueue")
        await asyncio.sleep(seconds)
    lab.faulted()
    await lab.drained(_DRAINED_SECONDS)
    lab.expect_one_start(jobs)


def _as_left(lab: Lab, crew: Crew) -> None:
    """Check what the judge cannot see: that no lease was lost, even one that led to no second attempt."""
    for each in crew.processes:
        said = each.output()
        for words in ("lease was lost", "rescued jobs", "without its data", "keeping it"):
            if words in said:
                lab.violation(TARGET, f"process {each.pid} logged {words!r}")
        if not each.is_alive:
            lab.violation(TARGET, f"a worker ended with {each.exit_code}: {said[-300:]}")


@asynccontextmanager
async def _worker_role(lab: Lab) -> AsyncIterator[str]:
    """A role that has all rights of the tables' owner, as one of its members."""
    role = f"fault_worker_{lab.random.getrandbits(32):08x}"
    await lab.server.execute(f"CREATE ROLE {role} LOGIN IN ROLE postgres")
    try:
        yield role
    finally:
        await lab.server.execute(f"DROP ROLE {role}")


@asynccontextmanager
async def _logins(lab: Lab, role: str) -> AsyncIterator[None]:
    await lab.server.execute(f"ALTER ROLE {role} NOLOGIN")
    await lab.server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")  # noqa: S608
    try:
        yield
    finally:
        await lab.server.execute(f"ALTER ROLE {role} LOGIN")


@asynccontextmanager
async def _privileges(lab: Lab, role: str) -> AsyncIterator[None]:
    await lab.server.execute(f"REVOKE postgres FROM {role}")
    try:
        yield
    finally:
        await lab.server.execute(f"GRANT postgres TO {role}")


@asynccontextmanager
async def _commits(lab: Lab, role: str) -> AsyncIterator[None]:  # noqa: ARG001 - affects every role
    await lab.server.execute(_REFUSE_COMMITS, lab.url)
    try:
        yield
    finally:
        await lab.server.execute(_TAKE_COMMITS, lab.url)


@asynccontextmanager
async def _notifications(lab: Lab, role: str) -> AsyncIterator[None]:  # noqa: ARG001 - affects every role
    """Fill the queue: a listener in a transaction keeps notifications, until no notifying transaction can commit."""
    listener, other = await lab.connect(), await lab.connect()
    try:
        await listener.execute("LISTEN fault")
        await listener.execute("BEGIN")
        with contextlib.suppress(asyncpg.ProgramLimitExceededError):
            for number in range(_MOST):
                await other.execute("SELECT pg_notify('fault', $1)", f"{number:0{_LARGE}}")
            raise Broken("the queue of notifications did not fill up")
        yield
    finally:
        listener.terminate()
        other.terminate()


@asynccontextmanager
async def _small_queue_of_notifications(lab: Lab) -> AsyncIterator[None]:
    """The default queue holds eight gigabytes, which would take too long to fill."""
    await lab.server.execute(f"ALTER SYSTEM SET max_notify_queue_pages = {_PAGES}")
    await _restart(lab)
    try:
        yield
    finally:
        await lab.server.execute("ALTER SYSTEM RESET max_notify_queue_pages")
        await _restart(lab)


async def _restart(lab: Lab) -> None:
    await lab.server.stop_immediately()
    await lab.server.start()
    lab.faulted()
