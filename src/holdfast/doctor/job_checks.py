"""Checks of Holdfast's own tables: clock, leases, due jobs, dead letters, partitions, privileges and job states."""

from collections.abc import AsyncIterator
from datetime import timedelta

from holdfast.doctor.findings import Finding, Level, Limits, counted, plural, some
from holdfast.domain.duration import rough
from holdfast.domain.job import DEFAULT_QUEUE
from holdfast.store.postgres.examine import DueLane, Examiner


async def check_clock(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:  # noqa: ARG001
    clock = await examiner.clock()
    if clock is None:
        wrong = "the row of the table clock is missing, so the store has no time"
    elif clock.frozen_at is not None:
        wrong = (
            f"frozen at {clock.frozen_at.isoformat(sep=' ', timespec='seconds')}: no job becomes due and no lease ends"
        )
    elif clock.moved:
        way = "ahead" if clock.moved > timedelta(0) else "back"
        wrong = f"moved {rough(abs(clock.moved))} {way}: jobs and leases follow it"
    else:
        yield Finding("clock", Level.OK, "the store's clock follows the server's")
        return
    yield Finding(
        "clock",
        Level.PROBLEM,
        f"the store's clock is {wrong}" if clock is not None else wrong,
        "only tests move it. Is this the right database? If so, reset the row of the table clock to its defaults",
    )


async def check_leases(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    expired = await examiner.expired_leases(limits.rescue)
    if expired.leases and expired.oldest is not None:
        yield Finding(
            "leases",
            Level.PROBLEM,
            f"{plural(expired.leases, 'lease')} ran out, the oldest {rough(expired.oldest)} ago, and no worker has "
            "rescued the jobs",
            "start a worker: `holdfast worker --app APP`; if one is running, check its log",
        )
    else:
        yield Finding("leases", Level.OK, "no job waits to be rescued after a lost lease")


async def check_due(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    lanes = await examiner.due(limits.due, limits.counted)
    for word, step, found in (
        (
            "no worker runs these jobs",
            "run a worker that has handlers for these kinds and serves these queues",
            [lane for lane in lanes if not lane.running],
        ),
        (
            "these jobs wait while others of their kind run",
            "add workers, or raise HOLDFAST_CONCURRENCY or the handlers' limits",
            [lane for lane in lanes if lane.running],
        ),
    ):
        if found:
            yield Finding("due jobs", Level.WARNING, f"{word}: {some([_lane(lane) for lane in found], limits)}", step)
    ahead = await examiner.jobs_ahead(limits.clock_difference, limits.sample)
    if ahead.furthest is not None:
        yield Finding(
            "due jobs",
            Level.WARNING,
            f"of the newest {plural(limits.sample, 'job')}, {ahead.jobs:,} were enqueued while the clock was up to "
            f"{rough(ahead.furthest)} ahead; they become due when the clock reaches that time again",
            "to make them due now, see Failover and restore on the operations page",
        )
    elif not lanes:
        yield Finding("due jobs", Level.OK, f"no job has been due for more than {rough(limits.due)}")


def _lane(lane: DueLane) -> str:
    where = "" if lane.queue == DEFAULT_QUEUE else f" in {lane.queue}"
    return f"{lane.kind}{where} (due for {rough(lane.due_for)})"


async def check_versions(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    newer = await examiner.newer_jobs(limits.sample, limits.counted)
    if newer:
        named = [f"{each.jobs:,} {each.kind} of version {each.version}, not {each.declared}" for each in newer]
        yield Finding(
            "versions",
            Level.WARNING,
            f"jobs need a newer worker than the last one that started: {some(named, limits)}",
            "deploy workers of the release that enqueued them",
        )
    else:
        yield Finding("versions", Level.OK, "no job waits for a newer worker")


async def check_dead_letters(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    kinds = await examiner.dead_letters(limits.counted)
    if not kinds:
        yield Finding("dead letters", Level.OK, "none")
        return
    total = sum(each.jobs for each in kinds)
    by_kind = some([f"{each.jobs:,} {each.kind}" for each in kinds], limits)
    newest = rough(kinds[0].now - max(each.newest for each in kinds))
    yield Finding(
        "dead letters",
        Level.WARNING,
        f"{counted(total, limits)}, the newest {newest} old: {by_kind}",
        "see `holdfast jobs list --state failed,dead` and fix the cause, then `holdfast jobs retry --all --state "
        "failed,dead`, or `holdfast jobs delete --all --state failed,dead` if they are not needed",
    )


async def check_partitions(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    bound = max(limits.counted, limits.default_rows + 1)
    partitions = await examiner.partitions(limits.partition_days, bound, limits.retention)
    if partitions.missing:
        yield Finding(
            "partitions",
            Level.WARNING,
            f"none for {', '.join(partitions.missing)}: jobs go to the default partition",
            "maintenance adds them; make sure a worker or `holdfast tick` runs it",
        )
    if partitions.overdue:
        yield Finding(
            "partitions",
            Level.WARNING,
            f"{len(partitions.overdue)} should have been dropped by now, the oldest from {partitions.overdue[0]}: "
            "each makes claims a little slower",
            "make sure maintenance runs; the maintenance check says what the database refused. A partition also stays "
            "while transactions of two seconds always use it (run `holdfast tick --app APP --runners maintenance` at a "
            "quiet time), while very many of its jobs are unfinished, while it has jobs and a foreign key refers to "
            "them, or if its bounds were not set by Holdfast",
        )
    if partitions.has_guard:
        yield Finding(
            "partitions",
            Level.WARNING,
            "the default one has a guard, which refuses ids of coming days: maintenance is running or was interrupted",
            "if it stays for an hour, make sure a worker or `holdfast tick` runs maintenance, which removes it",
        )
    rows = max(partitions.jobs, partitions.finished)
    if rows > limits.default_rows:
        yield Finding(
            "partitions",
            Level.WARNING,
            f"the default one holds {counted(rows, limits)} jobs, which are pruned one by one",
            "let Holdfast generate ids (they must be UUIDv7), and run maintenance every day",
        )
    elif not (partitions.missing or partitions.overdue or partitions.has_guard):
        yield Finding("partitions", Level.OK, f"today and the next {limits.partition_days - 1} days are covered")


async def check_maintenance(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:  # noqa: ARG001
    troubles = await examiner.troubles()
    for chore, trouble in troubles.items():
        yield Finding(
            "maintenance",
            Level.WARNING,
            f"{chore}: {trouble}",
            "remove what this names, such as a foreign key to Holdfast's tables; see Retention on the operations page",
        )
    if not troubles:
        yield Finding("maintenance", Level.OK, "the latest pass of each chore did all of its work")


async def check_privileges(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    """Missing privileges are only a warning, because the role may be one for monitoring."""
    privileges = await examiner.privileges()
    is_able = privileges.owns_tables and privileges.may_create
    if privileges.missing:
        yield Finding(
            "privileges",
            Level.WARNING,
            f"{privileges.role} lacks {some(privileges.missing, limits)}: no worker can use this role",
            f'as the owner of the schema, run `holdfast migrate --grant "{privileges.role}"`',
        )
    elif is_able:
        yield Finding("privileges", Level.OK, f"{privileges.role} has the privileges of a worker")
    if not is_able:
        yield Finding(
            "privileges",
            Level.PROBLEM,
            f"{privileges.definer}, the owner of the functions, may not change the tables: none is added or dropped",
            "let the role that migrates own schema, tables and functions: ALTER SCHEMA, TABLE and FUNCTION … OWNER TO",
        )


async def check_places(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    """Check a sample: the newest jobs of each table."""
    yield await _places(examiner, limits.sample)


async def check_all_places(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:  # noqa: ARG001
    yield await _places(examiner, None)


async def _places(examiner: Examiner, newest: int | None) -> Finding:
    places = await examiner.places(newest)
    looked = f"{places.seen:,} checked" if newest is None else f"the newest {places.seen:,} checked; --deep checks all"
    wrong = [
        f"{number:,} {what}"
        for number, what in (
            (places.nowhere, "in no state"),
            (places.twice, "in two states at once"),
            (places.without_job, "without their payload"),
        )
        if number
    ]
    if not wrong:
        return Finding("places", Level.OK, f"every job is in exactly one state ({looked})")
    examples = ", ".join(str(id) for id in places.examples or [])
    return Finding(
        "places",
        Level.PROBLEM,
        f"jobs: {', '.join(wrong)} ({looked}): {examples}",
        "the tables were changed by hand, or this is a bug: keep a backup and report it",
    )
