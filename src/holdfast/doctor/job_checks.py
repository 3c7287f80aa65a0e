"""Checks of Holdfast's own tables: the clock, leases, dead letters, jobs that nobody takes, and where each job is."""

from collections.abc import AsyncIterator
from datetime import timedelta

from holdfast.doctor.findings import Finding, Level, Limits, counted, plural, some
from holdfast.domain.duration import rough
from holdfast.domain.job import DEFAULT_QUEUE
from holdfast.store.postgres.examine import DueLane, Examiner


async def check_clock(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:  # noqa: ARG001
    clock = await examiner.clock()
    if clock is None:
        wrong = "its row is gone, and nobody knows the time"
    elif clock.frozen_at is not None:
        wrong = f"frozen at {clock.frozen_at.isoformat(sep=' ', timespec='seconds')}: no job becomes due, no lease ends"
    elif clock.moved:
        way = "ahead" if clock.moved > timedelta(0) else "back"
        wrong = f"moved {rough(abs(clock.moved))} {way}: jobs and leases go by it"
    else:
        yield Finding("clock", Level.OK, "the store's clock is the server's")
        return
    yield Finding(
        "clock",
        Level.PROBLEM,
        f"the store's clock is {wrong}" if clock is not None else wrong,
        "only tests move it. Is this the right database? If so, set the row of the table clock back to its defaults",
    )


async def check_leases(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    expired = await examiner.expired_leases(limits.rescue)
    if expired.leases and expired.oldest is not None:
        yield Finding(
            "leases",
            Level.PROBLEM,
            f"{plural(expired.leases, 'lease')} ran out, the oldest {rough(expired.oldest)} ago: no worker is rescuing",
            "start a worker, `holdfast worker APP`; if one runs, look in its log",
        )
    else:
        yield Finding("leases", Level.OK, "no lease ran out unseen")


async def check_due(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    lanes = await examiner.due(limits.due, limits.counted)
    for word, step, found in (
        (
            "nobody takes",
            "run a worker that has handlers for these kinds and serves these queues",
            [lane for lane in lanes if not lane.running],
        ),
        (
            "waiting while others of their kind run",
            "add workers, or raise HOLDFAST_CONCURRENCY or the handlers' limits",
            [lane for lane in lanes if lane.running],
        ),
    ):
        if found:
            yield Finding("due jobs", Level.WARNING, f"{word}: {some([_lane(lane) for lane in found], limits)}", step)
    if not lanes:
        yield Finding("due jobs", Level.OK, "no job has been due for long")


def _lane(lane: DueLane) -> str:
    where = "" if lane.queue == DEFAULT_QUEUE else f" in {lane.queue}"
    return f"{lane.kind}{where} for {rough(lane.due_for)}"


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
        "`holdfast jobs list --state dead` and `--state failed`; then `holdfast jobs retry` or `jobs cancel`",
    )


async def check_partitions(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    bound = max(limits.counted, limits.default_rows + 1)
    partitions = await examiner.partitions(limits.partition_days, bound, limits.retention)
    if partitions.missing:
        yield Finding(
            "partitions",
            Level.WARNING,
            f"none for {', '.join(partitions.missing)}: jobs go to the default one",
            "maintenance adds them: see that a worker or `holdfast tick` runs it",
        )
    if partitions.overdue:
        yield Finding(
            "partitions",
            Level.WARNING,
            f"{len(partitions.overdue)} should have been dropped by now, the oldest from {partitions.overdue[0]}: "
            "their jobs are pruned one by one, and each makes claims a little slower",
            "see that maintenance runs. It cannot drop what transactions of two seconds always use (run "
            "`holdfast tick APP --runners maintenance` at a quiet time), nor where very many jobs are still to run",
        )
    if partitions.has_guard:
        yield Finding(
            "partitions",
            Level.WARNING,
            "the default one has a guard, which refuses ids of days to come: maintenance is at work or was interrupted",
            "if this stays for an hour, see that a worker or `holdfast tick` runs maintenance, which takes it away",
        )
    rows = max(partitions.jobs, partitions.finished)
    if rows > limits.default_rows:
        yield Finding(
            "partitions",
            Level.WARNING,
            f"the default one holds {counted(rows, limits)} jobs, which are pruned one by one",
            "leave ids to Holdfast (they must be UUIDv7), and let maintenance run every day",
        )
    elif not (partitions.missing or partitions.overdue or partitions.has_guard):
        yield Finding("partitions", Level.OK, f"today and the next {limits.partition_days - 1} days are covered")


async def check_privileges(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    """A warning only: it may be a role that monitors and does no work."""
    privileges = await examiner.privileges()
    is_able = privileges.owns_tables and privileges.may_create
    if privileges.missing:
        yield Finding(
            "privileges",
            Level.WARNING,
            f"{privileges.role} lacks {some(privileges.missing, limits)}: no worker can connect as it",
            f'as the owner of the schema: `holdfast migrate --grant "{privileges.role}"`',
        )
    elif is_able:
        yield Finding("privileges", Level.OK, f"{privileges.role} may do what a worker does")
    if not is_able:
        yield Finding(
            "privileges",
            Level.PROBLEM,
            f"{privileges.definer}, which owns the functions, may not change the tables: none is added or dropped",
            "give schema, tables and functions to the role that migrates: ALTER SCHEMA, TABLE and FUNCTION … OWNER TO",
        )


async def check_places(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    """A sample: the newest of each table."""
    yield await _places(examiner, limits.sample)


async def check_all_places(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:  # noqa: ARG001
    yield await _places(examiner, None)


async def _places(examiner: Examiner, newest: int | None) -> Finding:
    places = await examiner.places(newest)
    looked = f"{places.seen:,} looked at" + ("" if newest is None else ", the newest; --deep looks at all")
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
        f"jobs {', '.join(wrong)} ({looked}): {examples}",
        "somebody changed the tables by hand, or this is a bug: keep a backup and report it",
    )
