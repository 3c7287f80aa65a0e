"""Jobs that die. Each makes one job through `@app.on_dead`, however it dies and whichever worker dies with it."""

import asyncio
from collections import Counter
from uuid import UUID

from holdfast.domain.crash_points import VARIABLE
from holdfast_lab.faults.app import BAD, EXIT
from holdfast_lab.faults.case import case
from holdfast_lab.faults.crew import Crew
from holdfast_lab.faults.death_app import DEATH_APP, MADE
from holdfast_lab.faults.judge import DUPLICATE, LOST, TARGET
from holdfast_lab.faults.lab import Lab, Launch
from holdfast_lab.faults.record import What

_WORKERS = 2
_POINTS = ("finish.before", "finish.after", "rescue.before", "rescue.after")
_DRAINED_SECONDS = 20.0
_LONGEST_SECONDS = 120.0
_TURN_SECONDS = 0.05


@case(
    "R52",
    "jobs die in every way while workers are killed, and each death makes one job",
    small={"jobs": 200, "guilty": 2, "kills": 8},
    large={"jobs": 4_000, "guilty": 10, "kills": 60},
    lease=2.0,
)
async def deaths(lab: Lab) -> None:
    """Jobs die of exhausted attempts, of a permanent error, and at the rescue of jobs that kill their workers."""
    async with lab.workers(_WORKERS, DEATH_APP) as crew:
        # The subscription must be in the store before the first job dies.
        doomed = await _doomed(lab)
        await _kill_and_supervise(lab, crew, lab.count("kills"))
        await lab.drained(lab.lease + _DRAINED_SECONDS)
    states = await lab.states()
    for job, wanted in doomed.items():
        if states.get(job) != wanted:
            lab.violation(TARGET, f"job {job}: is {states.get(job)}, not {wanted}", job)
    rows = await lab.fetch("read_deaths", list(MADE))
    for row in rows:
        lab.adopt(row["kind"], [row["id"]])
    made = Counter(row["dead"] for row in rows)
    for job in doomed:
        if made[job] != 1:
            lab.violation(DUPLICATE if made[job] else LOST, f"job {job}: its death made {made[job]} jobs", job)
    for row in rows:
        if states.get(row["id"]) != "succeeded":
            lab.violation(LOST, f"job {row['id']}: was made by a death, but is {states.get(row['id'])}", row["id"])
    lab.check("jobs made by deaths", len(rows), at_least=len(doomed))
    lab.check("jobs made by deaths, at most", len(rows), at_most=len(doomed))


async def _doomed(lab: Lab) -> dict[UUID, str]:
    """Return the jobs, each with the state in which it must end."""
    half = lab.count("jobs") // 2
    seconds = [{"how": "error", "seconds": lab.random.choice([0, 0.05, 0.3])} for _ in range(half)]
    exhausted = await lab.enqueue_each(BAD, seconds)
    unreadable = await lab.enqueue_each(BAD, ["text"] * half)
    for job in unreadable:
        lab.record.note(What.UNUSABLE, job)
    guilty = await lab.enqueue_many(EXIT, lab.count("guilty"))
    return dict.fromkeys([*exhausted, *guilty], "dead") | dict.fromkeys(unreadable, "failed")


async def _kill_and_supervise(lab: Lab, crew: Crew, kills: int) -> None:
    """Replace dead workers. Until enough have died, the new ones will die while they write an outcome or rescue."""
    end = asyncio.get_running_loop().time() + _LONGEST_SECONDS
    known: set[int] = set()
    while await lab.open_jobs() and asyncio.get_running_loop().time() < end:
        for each in crew.processes:
            if not each.is_alive and each.pid not in known:
                known.add(each.pid)
                lab.record.note(What.KILL, pid=each.pid)
                lab.faulted()
        if len(crew.alive) < _WORKERS:
            point = lab.random.choice(_POINTS)
            fault = Launch(given={VARIABLE: f"{point}:1"}) if len(known) < kills else Launch()
            crew.processes.append(lab.start_worker(DEATH_APP, launch=fault))
            lab.progress(f"{len(known)} died")
        elif len(known) < kills and lab.random.random() < _TURN_SECONDS:
            await lab.random.choice(crew.alive).kill()
        await asyncio.sleep(_TURN_SECONDS)
    lab.check("workers that died", len(known), at_least=min(kills, 3))
