"""Wrong clocks, and replicas that die right when an occurrence of a schedule is due."""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise, zip_longest
from uuid import UUID

from holdfast.scheduling.job_schedules import OCCURRENCE_HEADER, SCHEDULE_HEADER
from holdfast_lab.faults.app import FLAKY, WORK
from holdfast_lab.faults.case import case
from holdfast_lab.faults.crew import Crew
from holdfast_lab.faults.judge import DUPLICATE, LOST, STUCK, TARGET, UNEXPECTED, WRONG_DELAY
from holdfast_lab.faults.lab import Lab, Launch
from holdfast_lab.faults.processes import FaultyProcess
from holdfast_lab.faults.record import Note, What
from holdfast_lab.faults.schedule_app import EACH_SECOND, INLINE, INLINE_SECONDS
from holdfast_lab.faults.wrong_clock import JUMP_EVERY, SHIFT

_HOUR = 3600
_JUMP_SECONDS = 0.7
_DELAYS = (1.0, 2.0, 3.0)
_RETRY_SECONDS = 0.1
"""The retry delay of the kind FLAKY."""
_RIGHT_WITHIN = 1.0
_EARLY = 0.05
_DRAINED_SECONDS = 10.0
_OCCURRENCE_SECONDS = 2
"""The interval of the inline runner; each of its occurrences is also one of the job schedule's."""
_TURN_SECONDS = 0.05
_PATIENCE = 15.0


@case(
    "R28",
    "a worker's clock is an hour ahead, an hour behind, or jumps while it runs",
    small={"jobs": 120, "seconds": 6},
    large={"jobs": 2_000, "seconds": 60},
    lease=2.0,
)
async def wrong_clocks(lab: Lab) -> None:
    """Delays, retries, schedules, jobs longer than a lease, and a rescue, all by workers that do not know the time."""
    schedule = "fault.by_wrong_clocks"
    given = [{SHIFT: f"{_HOUR}"}, {SHIFT: f"{-_HOUR}"}, {SHIFT: f"{_HOUR}", JUMP_EVERY: f"{_JUMP_SECONDS}"}]
    turns = iter(given * 2)
    crew = Crew(lambda: lab.start_worker(launch=Launch("holdfast_lab.faults.wrong_clock", given=next(turns))))
    delays: dict[UUID, float] = {}
    try:
        # Before the workers start: on a store without schedules they look for a first one less often.
        await lab.producer.schedules.save(schedule, "every 1s", kind=WORK, payload={}, missed="all")
        await crew.start(len(given))
        began = await lab.producer.clock.now()
        await lab.enqueue_many(WORK, 6, {"seconds": 2.5 * lab.lease})
        rounds = lab.count("seconds") * 2
        for number in range(rounds):
            each = lab.count("jobs") // rounds // 2
            delay = lab.random.choice(_DELAYS)
            for id in await lab.enqueue_many(WORK, each, delay=timedelta(seconds=delay)):
                delays[id] = delay
            await lab.enqueue_many(FLAKY, each, {"failures": 2})
            await asyncio.sleep(0.5)
            if number == rounds // 2:
                # The others must rescue its jobs, neither too early nor too late.
                await crew.alive[lab.random.randrange(len(crew.alive))].kill()
                await crew.start()
                lab.faulted()
        await lab.producer.schedules.pause(schedule)
        lab.faulted()
        await lab.drained(lab.lease + max(_DELAYS) + _DRAINED_SECONDS)
    finally:
        await crew.close()
    _check_delays(lab, lab.notes(), delays, time.monotonic())
    occurrences = await lab.fetch("read_occurrences", schedule, SCHEDULE_HEADER, OCCURRENCE_HEADER)
    lab.adopt(WORK, (row["id"] for row in occurrences))
    check_occurrences(lab, [row["occurrence"] for row in occurrences], lab.count("seconds") // 2)
    late = [row["late"] for row in occurrences if row["occurrence"] > began]
    lab.check("jobs after their occurrence by at most", max(late, default=0.0), "s", at_most=_RIGHT_WITHIN)
    lab.check("and by at least", min(late, default=0.0), "s", at_least=-_EARLY)


def _check_delays(lab: Lab, notes: Sequence[Note], delays: dict[UUID, float], now: float) -> None:
    """The store's clock was read between the two notes of the enqueue, or after the note of a failed attempt.

    A job that has not started again yet counts as late by the time that has passed.
    """
    of_job: dict[UUID, list[Note]] = defaultdict(list)
    for note in notes:
        if note.job is not None:
            of_job[note.job].append(note)
    early, late = [0.0], [0.0]
    for job, delay in delays.items():
        at = {note.what: note.at for note in reversed(of_job[job])}
        if What.START in at:
            early.append(at[What.ENQUEUING] + delay - at[What.START])
            late.append(at[What.START] - at[What.ACCEPTED] - delay)
    for mine in of_job.values():
        notes_of_attempts = [note for note in mine if note.what in (What.START, What.END)]
        for ended, started in zip_longest(notes_of_attempts, notes_of_attempts[1:]):
            if ended.what is What.END and ended.more.get("how") == "RuntimeError":
                again = now if started is None else started.at
                early.append(ended.at + _RETRY_SECONDS * 0.9 - again)
                late.append(again - ended.at - _RETRY_SECONDS)
    lab.check("delays too short by", max(early), "s", at_most=_EARLY, kind=WRONG_DELAY)
    lab.check("delays too long by", max(late), "s", at_most=_RIGHT_WITHIN, kind=WRONG_DELAY)


@case(
    "R29",
    "one of 3 replicas is repeatedly killed at an occurrence",
    small={"kills": 6},
    large={"kills": 30},
)
async def kills_at_the_occurrence(lab: Lab) -> None:
    """Every second victim is working on the occurrence when it is killed."""
    kills = lab.count("kills")
    async with lab.workers(3, "holdfast_lab.faults.schedule_app:app") as crew:
        for number in range(kills):
            await _until_occurrence(lab)
            await asyncio.sleep(lab.random.uniform(0.0, INLINE_SECONDS))
            victims = crew.alive
            if number % 2 == 0:
                await lab.until(lambda: bool(_busy(lab, crew)), "a worker is busy with an occurrence", _PATIENCE)
                victims = _busy(lab, crew) or victims
            await lab.random.choice(victims).kill()
            lab.faulted()
            await crew.start()
            lab.progress(f"{number + 1} of {kills} killed")
        await until_occurrence_done(lab)
        for name in (EACH_SECOND, INLINE):
            await lab.producer.schedules.pause(name)
        await lab.drained(lab.lease + _PATIENCE + _DRAINED_SECONDS)
    rows = await lab.fetch("read_occurrences", EACH_SECOND, SCHEDULE_HEADER, OCCURRENCE_HEADER)
    lab.adopt(EACH_SECOND, (row["id"] for row in rows))
    check_occurrences(lab, [row["occurrence"] for row in rows], kills)
    # A victim may have finished its occurrence between the look and the kill.
    await check_inline(lab, kills, least_restarts=max(1, kills // 4))


def _busy(lab: Lab, crew: Crew) -> list[FaultyProcess]:
    working = _at_work(lab.notes())
    return [each for each in crew.alive if each.pid in working]


async def _until_occurrence(lab: Lab) -> None:
    """Wait for the next common occurrence of both schedules, on the store's clock."""
    now = (await lab.producer.clock.now()).timestamp()
    await asyncio.sleep(_OCCURRENCE_SECONDS - now % _OCCURRENCE_SECONDS)


def _at_work(notes: Sequence[Note]) -> set[int]:
    """The processes that have begun an occurrence of the inline runner and not ended it."""
    runs: dict[int, Note] = {}
    for note in notes:
        if note.what is What.START and "run" in note.more:
            runs[note.more["run"]] = note
        elif note.what is What.END and "run" in note.more:
            runs.pop(note.more["run"], None)
    return {note.pid for note in runs.values()}


async def until_occurrence_done(lab: Lab, seconds: float = _PATIENCE) -> None:
    """Wait for an occurrence after the last kill to be done, and thereby all earlier ones."""
    began = await lab.producer.clock.now()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not any(  # noqa: ASYNC110 - no event announces it
                row["is_done"] and row["occurrence"] > began for row in await lab.fetch("read_runs", INLINE)
            ):
                await asyncio.sleep(_TURN_SECONDS)
            return
    lab.violation(STUCK, f"no occurrence of the inline runner was done within {seconds:g} s after the last kill")


def check_occurrences(lab: Lab, occurrences: Sequence[datetime], least: int) -> None:
    """There must be one job for each second."""
    for occurrence, number in Counter(occurrences).items():
        if number > 1:
            lab.violation(DUPLICATE, f"the occurrence {occurrence.isoformat()} has {number} jobs")
    for earlier, later in pairwise(sorted(set(occurrences))):
        if later - earlier != timedelta(seconds=1):
            lab.violation(
                LOST, f"there are no jobs for occurrences between {earlier.isoformat()} and {later.isoformat()}"
            )
    lab.check("occurrences of the job schedule", len(occurrences), at_least=least)


async def check_inline(lab: Lab, least: int, least_restarts: int | None = None) -> None:
    done = Counter(row["occurrence"] for row in await lab.fetch("read_runs", INLINE) if row["is_done"])
    for occurrence, number in done.items():
        if number > 1:
            lab.violation(
                DUPLICATE, f"the inline runner's occurrence {occurrence.isoformat()} was marked {number} times"
            )
    for earlier, later in pairwise(sorted(done)):
        if later - earlier != timedelta(seconds=_OCCURRENCE_SECONDS):
            lab.violation(
                LOST, f"the inline runner has no occurrence between {earlier.isoformat()} and {later.isoformat()}"
            )
    notes = lab.notes()
    kills = {note.pid: note.at for note in notes if note.what is What.KILL}
    starts: dict[str, list[Note]] = defaultdict(list)
    for note in notes:
        if note.what is What.START and "run" in note.more:
            starts[note.more["occurrence"]].append(note)
    restarts = 0
    for occurrence, tries in starts.items():
        for first, second in pairwise(tries):
            restarts += 1
            if not first.at <= kills.get(first.pid, 0.0) <= second.at:
                lab.violation(DUPLICATE, f"the inline runner's occurrence {occurrence} began again without a kill")
    for occurrence in {*done} - {datetime.fromisoformat(occurrence) for occurrence in starts if occurrence}:
        lab.violation(UNEXPECTED, f"the inline runner's occurrence {occurrence.isoformat()} was marked but never began")
    lab.check("occurrences of the inline runner", len(done), at_least=least)
    lab.check("restarted after a kill", restarts, at_least=least_restarts)
    if any(not occurrence for occurrence in starts):
        lab.violation(TARGET, "the inline runner ran without an occurrence, although nothing asked it to")
