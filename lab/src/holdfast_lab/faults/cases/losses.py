"""Leases that are lost all the time, and one that cannot be rescued."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from uuid import UUID, uuid4

from holdfast.domain.job import LeasedJob
from holdfast.domain.lifecycle import DEFAULT_CRASHES, SUSPECT
from holdfast.store.contract import ClaimRequest, KindClaim, Store
from holdfast.store.opening import opened
from holdfast_lab.faults.app import KILL, WORK
from holdfast_lab.faults.case import case
from holdfast_lab.faults.judge import TARGET
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.load import ends
from holdfast_lab.faults.processes import FaultyProcess
from holdfast_lab.faults.proxy import Proxy
from holdfast_lab.faults.record import What

_WORKERS = 3
_EVERY_SECONDS = 1.3
_BATCH = 50
_KILLER_SECONDS = 120.0
"""Each of its losses takes a lease, a rescue and a rest, and its next worker must become empty first."""
_LEASES = (0.2, 1.6)
"""The length of a pause or a cut, in leases."""
_RESCUED_AT_ONCE = 1_000
_DRAINED_SECONDS = 30.0
_SPOILS = ("spoil_dead_letter", "spoil_finished", "spoil_ready")
"""Each spoils a lease so that no statement can rescue it; `mend_lease` undoes it."""


@case(
    "R48",
    "a fleet of preemptible machines: every 1.3 s a worker is killed, paused, cut off or restarted",
    small={"seconds": 60, "jobs": 5_000, "suspects": 1},
    large={"seconds": 600, "jobs": 50_000, "suspects": 1},
    lease=4.0,
)
async def preemptible(lab: Lab) -> None:
    """Mostly short jobs, and one that kills every worker it runs in. `suspects=0` shows the cost of suspects: then no
    job becomes one, and there is no killer."""
    seconds, killers = lab.size["seconds"], lab.count("suspects")
    if not killers:
        await lab.fetch("no_suspects")
    async with _fleet(lab) as fleet:
        began = time.monotonic()
        killer = await lab.enqueue_many(KILL, killers)
        enqueuing = lab.beside(_enqueue(lab, seconds))
        while (passed := time.monotonic() - began) < seconds:
            await asyncio.sleep(_EVERY_SECONDS)
            fleet.strike()
            lab.progress(f"{passed:.0f} of {seconds:.0f} s, {sum(fleet.struck.values())} faults")
        done = len(ends(lab.notes()))
        await enqueuing
        await fleet.calm()
        # More jobs arrive than a fleet under fire can run. The others take at most as long as at that rate.
        left = max(0, lab.count("jobs") - done)
        await lab.drained(_KILLER_SECONDS + left / max(1, done) * seconds)
    for what, number in sorted(fleet.struck.items()):
        lab.note(f"workers {what}", number)
    lab.note("jobs done while it lasted", done / seconds, "jobs/s")
    await _note_losses(lab)
    await _check_killer(lab, killer)


async def _enqueue(lab: Lab, seconds: float) -> None:
    """Enqueue evenly over nine tenths of the time."""
    # A separate source of chance, because the seed cannot decide which of the two tasks draws first.
    random = Random(lab.random.getrandbits(32))  # noqa: S311 - a plan, not a secret
    jobs = lab.count("jobs")
    for first in range(0, jobs, _BATCH):
        lasting = random.choice([0.0, 0.0, 0.05, 0.05, 0.05, 0.3, 0.3, 0.8])
        await lab.enqueue_many(WORK, min(_BATCH, jobs - first), {"seconds": lasting})
        await asyncio.sleep(0.9 * seconds * _BATCH / jobs)


async def _note_losses(lab: Lab) -> None:
    losses = [final.losses for final in await lab._final()]
    lab.note("leases lost", sum(losses))
    lab.note("jobs that lost two or more", sum(each >= SUSPECT for each in losses))


async def _check_killer(lab: Lab, killers: list[UUID]) -> None:
    states, starts = await lab.states(), lab.starts()
    for job in killers:
        if states.get(job) != "dead":
            lab.violation(TARGET, f"job {job}: kills its workers, but is {states.get(job)}", job)
        lab.check("workers killed by the bad job", len(starts.get(job, [])), at_most=SUSPECT + DEFAULT_CRASHES)


@dataclass(eq=False)
class _Machine:
    """A place for one worker at a time, with its own proxy to the server."""

    proxy: Proxy
    process: FaultyProcess
    is_struck: bool = False


@dataclass(eq=False)
class _Fleet:
    lab: Lab
    random: Random
    machines: list[_Machine] = field(default_factory=list)
    struck: dict[str, int] = field(default_factory=dict)
    _strikes: set["asyncio.Task[None]"] = field(default_factory=set)

    async def add(self, proxy: Proxy) -> None:
        self.machines.append(_Machine(proxy, self.lab.start_worker(url=proxy.url)))

    def strike(self) -> None:
        """Strike a machine that is not suffering from another fault."""
        # Replace dead workers, as a supervisor does.
        for machine in self.machines:
            if not machine.process.is_alive and not machine.is_struck:
                machine.process = self.lab.start_worker(url=machine.proxy.url)
        working = [each for each in self.machines if not each.is_struck]
        if working:
            machine = self.random.choice(working)
            machine.is_struck = True
            strike = asyncio.create_task(self._strike(machine))
            self._strikes.add(strike)
            strike.add_done_callback(self._strikes.discard)

    async def _strike(self, machine: _Machine) -> None:
        name, act = self.random.choice(
            [("killed", self._kill), ("paused", self._pause), ("cut off", self._cut), ("restarted", self._restart)]
        )
        self.struck[name] = self.struck.get(name, 0) + 1
        try:
            await act(machine)
        finally:
            machine.is_struck = False
            self.lab.faulted()

    async def _kill(self, machine: _Machine) -> None:
        await machine.process.kill()
        machine.process = self.lab.start_worker(url=machine.proxy.url)

    async def _restart(self, machine: _Machine) -> None:
        machine.process.terminate()
        old, machine.process = machine.process, self.lab.start_worker(url=machine.proxy.url)
        if await old.ended(_DRAINED_SECONDS) is None:
            await old.kill()

    async def _pause(self, machine: _Machine) -> None:
        await machine.process.stop_for(self._lasting())

    async def _cut(self, machine: _Machine) -> None:
        pid = machine.process.pid
        self.lab.record.note(What.CUT_OFF, pid=pid)
        machine.proxy.refuse()
        await asyncio.sleep(self._lasting())
        machine.proxy.flow()
        self.lab.record.note(What.BACK, pid=pid)

    def _lasting(self) -> float:
        return self.random.uniform(*_LEASES) * self.lab.lease

    async def calm(self) -> None:
        """Wait for the last fault to end. From now on only the killer does harm, and a supervisor restarts workers."""
        if self._strikes:
            await asyncio.wait(self._strikes)
        self.lab.beside(self._supervise())

    async def _supervise(self) -> None:
        while True:
            for machine in self.machines:
                if not machine.process.is_alive:
                    machine.process = self.lab.start_worker(url=machine.proxy.url)
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        await self.lab.end_beside()
        for machine in self.machines:
            if machine.process.is_stopped:
                machine.process.go_on()
            machine.process.terminate()
        for machine in self.machines:
            if await machine.process.ended(10.0) is None:
                await machine.process.kill()


@asynccontextmanager
async def _fleet(lab: Lab) -> AsyncIterator[_Fleet]:
    async with AsyncExitStack() as stack:
        random = Random(lab.random.getrandbits(32))  # noqa: S311 - a plan, not a secret
        fleet = _Fleet(lab, random)
        stack.push_async_callback(fleet.close)
        for _ in range(_WORKERS):
            await fleet.add(stack.enter_context(lab.proxy()))
        yield fleet


@case("R49", "one lease of 200 cannot be rescued, for each possible reason", small={"jobs": 200}, large={"jobs": 2_000})
async def unrescuable(lab: Lab) -> None:
    """The worker that held them is gone. One pass must rescue all but the bad one, and a later pass the mended one."""
    jobs = lab.count("jobs")
    # A row that blocks the rescue is not the end of its job.
    lab.is_sampled = False
    async with opened(lab.url, lab.schema) as store:
        for spoil in _SPOILS:
            await lab.enqueue_many(WORK, jobs)
            leased = await _claim_all(store.store, jobs)
            bad = lab.random.choice(leased)
            await lab.fetch(spoil, bad.id)
            await asyncio.sleep(0.01)
            rescued = {each.id for each in await store.store.rescue(_RESCUED_AT_ONCE * 10)}
            lab.check("rescued share of the rescuable leases", len(rescued - {bad.id}) / (jobs - 1), at_least=1)
            if bad.id in rescued:
                lab.violation(TARGET, f"{spoil}: the bad lease was rescued", bad.id)
            await lab.fetch("mend_lease", bad.id)
            lab.faulted()
            async with lab.workers(1, concurrency=50):
                await lab.drained(_DRAINED_SECONDS)


async def _claim_all(store: Store, jobs: int) -> list[LeasedJob]:
    """Claim as a worker that dies at once, with leases that expire immediately."""
    request = ClaimRequest(uuid4(), jobs, ("default",), {WORK: KindClaim(timedelta(milliseconds=1), jobs)})
    await store.look(["default"], [WORK])
    return await store.claim(request)
