"""The primary is killed and its standby promoted: a synchronous one keeps everything, an asynchronous one may not."""

import asyncio
from uuid import UUID

from holdfast_lab.faults.app import EFFECT, FLAKY, THREAD, WORK
from holdfast_lab.faults.case import Need, case
from holdfast_lab.faults.crew import Broken, Crew
from holdfast_lab.faults.failover import FailoverServer
from holdfast_lab.faults.judge import REISSUED, TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.load import backlog, ends
from holdfast_lab.faults.record import What

_LOAD_SECONDS = 2.0
_HELD_BACK_SECONDS = 1.5
"""Long enough for hundreds of jobs to be enqueued, claimed and finished, but too short for a renewal to be overdue."""
_BACK_SECONDS = 20.0
_DRAINED_SECONDS = 15.0


@case(
    "R47",
    "the primary is killed and its synchronous or asynchronous standby is promoted",
    small={"synchronous": 1, "asynchronous": 1},
    large={"synchronous": 20, "asynchronous": 20},
    needs={Need.STANDBY},
    lease=8.0,
)
async def failovers(lab: Lab) -> None:
    """Before each kill the standby is held back for a moment. With a synchronous standby, commits wait and are never
    confirmed. An asynchronous one misses what was enqueued, claimed and finished in that time."""
    server = lab.server
    if not isinstance(server, FailoverServer):
        raise Broken("this case needs a server with a standby")
    plan = [True] * lab.count("synchronous") + [False] * lab.count("asynchronous")
    slowest = 0.0
    async with lab.workers(3, url=lab.url) as crew:
        for number, is_synchronous in enumerate(plan):
            await server.add_standby(is_synchronous=is_synchronous)
            async with backlog(lab, [WORK, WORK, EFFECT, THREAD, FLAKY], 60, seconds=0.2):
                await lab.enqueue_many(WORK, 4, {"seconds": 2 * _LOAD_SECONDS})
                await asyncio.sleep(_LOAD_SECONDS)
                slowest = max(slowest, await _fail_over(lab, server, is_synchronous=is_synchronous))
            lab.progress(f"{number + 1} of {len(plan)} failovers")
        await lab.drained(2 * lab.lease + _DRAINED_SECONDS)
        check_workers(lab, crew)
    lab.check("work continues after a promotion", slowest, "s", at_most=_BACK_SECONDS)
    await check_losses(lab, is_any=False in plan)


async def _fail_over(lab: Lab, server: FailoverServer, *, is_synchronous: bool) -> float:
    """Return the seconds from the promotion until the first job ended well."""
    # From now on no renewal lasts.
    lab.cut_off()
    server.hold_back()
    await asyncio.sleep(_HELD_BACK_SECONDS)
    last_kept = await server.fail_over()
    if not is_synchronous:
        lab.forgot(last_kept)
    lab.back()
    done = len(ends(lab.notes()))
    await lab.until(lambda: len(ends(lab.notes())) > done, "work continues after a promotion", _BACK_SECONDS)
    return ends(lab.notes())[done] - lab.last_fault if len(ends(lab.notes())) > done else _BACK_SECONDS


async def check_losses(lab: Lab, *, is_any: bool) -> None:
    """Check how much an asynchronous standby missed: if it missed nothing, this case proves nothing."""
    notes = lab.notes()
    there = {row["id"] for row in await lab.fetch("read_final")}
    accepted = {note.job for note in notes if note.what is What.ACCEPTED}
    claims = [(note.job, note.more["claim"]) for note in notes if note.what is What.START]
    done: dict[UUID | None, int] = {}
    for note in notes:
        if note.what is What.END and note.more.get("how") == "done":
            done[note.job] = done.get(note.job, 0) + 1
    least = 1 if is_any else None
    lab.check("enqueues lost", len(accepted - there), at_least=least)
    lab.check("jobs run again", sum(times > 1 for times in done.values()), at_least=least)
    lab.check("claims issued twice", len(claims) - len(set(claims)), at_most=0, kind=REISSUED)


def check_workers(lab: Lab, crew: Crew) -> None:
    for each in crew.processes:
        if not each.is_alive:
            lab.violation(TARGET, f"a worker ended with {each.exit_code}: {each.output()[-300:]}")
