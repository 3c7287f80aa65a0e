"""Checks of Holdfast's own tables: the clock, leases, dead letters, jobs that nobody takes, and where each job is."""

from collections.abc import AsyncIterator
from datetime import timedelta

from holdfast.duration import rough
from holdfast.insight.findings import Finding, Level, Limits, counted, plural
from holdfast.store.postgres.examine import Examiner


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
    if not lanes:
        yield Finding("due jobs", Level.OK, "no job has been due for long")
        return
    some = ", ".join(
        f"{lane.kind}{'' if lane.queue == 'default' else f' in {lane.queue}'} for {rough(lane.due_for)}"
        for lane in lanes[: limits.shown]
    )
    more = f" and {len(lanes) - limits.shown} more" if len(lanes) > limits.shown else ""
    idle = [lane for lane in lanes if not lane.running]
    if idle:
        line = f"due and nobody takes them: {some}{more}"
        step = "run a worker that has handlers for these kinds and serves these queues"
    else:
        line = f"due, while others of their kind run: {some}{more}"
        step = "more than the workers can do: add workers, raise HOLDFAST_CONCURRENCY or the handlers' limits"
    yield Finding("due jobs", Level.WARNING, line, step)


async def check_dead_letters(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    kinds = await examiner.dead_letters(limits.counted)
    if not kinds:
        yield Finding("dead letters", Level.OK, "none")
        return
    total = sum(each.jobs for each in kinds)
    some = ", ".join(f"{each.jobs:,} {each.kind}" for each in kinds[: limits.shown])
    more = f" and {plural(len(kinds) - limits.shown, 'other kind')}" if len(kinds) > limits.shown else ""
    newest = rough(kinds[0].now - max(each.newest for each in kinds))
    yield Finding(
        "dead letters",
        Level.WARNING,
        f"{counted(total, limits)}, the newest {newest} old: {some}{more}",
        "`holdfast jobs list --state dead` and `--state failed`; then `holdfast jobs retry` or `jobs cancel`",
    )


async def check_partitions(examiner: Examiner, limits: Limits) -> AsyncIterator[Finding]:
    partitions = await examiner.partitions(limits.partition_days, limits.counted)
    if partitions.missing:
        days = ", ".join(partitions.missing)
        yield Finding(
            "partitions",
            Level.WARNING,
            f"none for {days}: jobs go to the default partition",
            "a running worker adds them: see that one runs and that its role may create tables in the schema",
        )
    if partitions.jobs or partitions.finished:
        yield Finding(
            "partitions",
            Level.WARNING,
            f"rows in the default ones: {counted(partitions.jobs, limits)} in job, "
            f"{counted(partitions.finished, limits)} in finished; their ids are of other days, or no UUIDv7",
            "harmless when few; leave ids to Holdfast, and keep the days ahead covered",
        )
    if not partitions.missing and not partitions.jobs and not partitions.finished:
        yield Finding("partitions", Level.OK, f"today and the next {limits.partition_days - 1} days are covered")


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
