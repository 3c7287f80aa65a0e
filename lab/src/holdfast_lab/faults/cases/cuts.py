"""Connections are cut all the time, and only the work in progress on them may be late."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast_lab.faults.app import WORK
from holdfast_lab.faults.case import case
from holdfast_lab.faults.lab import Lab
from holdfast_lab.faults.proxy import Proxy

_SHARE = 3
_SETTLED_SECONDS = 3.0
_DRAINED_SECONDS = 10.0
_NOISE_SECONDS = 0.005
"""Below this, a p99 says more about the machine than about Holdfast: Python lets another thread run for that long."""


@dataclass(frozen=True, slots=True)
class _Life:
    """A job's life from enqueue to end, on the store's clock, which is this machine's clock."""

    enqueued: float
    done: float

    def has_met(self, cuts: Sequence[float]) -> bool:
        return any(self.enqueued <= cut <= self.done for cut in cuts)


@case(
    "R51",
    "one connection in three is cut every second, with default settings",
    large={"seconds": 60, "rate": 100},
    lease=30.0,
)
async def cut_all_the_time(lab: Lab) -> None:
    """Jobs that met no cut must be nearly as fast as without cuts: a process that loses a connection tries again at
    once, and the others notice nothing."""
    with lab.proxy() as proxy:
        async with (
            lab.producing(proxy.url, listen_url=proxy.url),
            lab.workers(1, url=proxy.url, concurrency=32, shutdown="30s"),
        ):
            await _produce(lab, _SETTLED_SECONDS)
            calm = await _lives_of(lab, lab.size["seconds"] / 2)
            cuts: list[float] = []
            cutting = lab.beside(_cut(lab, proxy, cuts))
            stormy = await _lives_of(lab, lab.size["seconds"])
            cutting.cancel()
            lab.faulted()
            before = _p99(calm)
            bystanders = [life for life in stormy if not life.has_met(cuts)]
            lab.note("connections cut", sum(fault.what == "cut" for fault in proxy.faults))
            lab.note("p99 before", before, "s")
            lab.note("p99 of all jobs", _p99(stormy), "s")
            lab.check("jobs not affected by a cut", len(bystanders), at_least=len(stormy) / 2)
            lab.check("p99 of these", _p99(bystanders), "s", at_most=4 * max(before, _NOISE_SECONDS))
            await lab.drained(lab.lease + _DRAINED_SECONDS)


async def _lives_of(lab: Lab, seconds: float) -> list[_Life]:
    """The lives of the jobs enqueued in this time, once they are done."""
    began = time.time()
    await _produce(lab, seconds)
    ended = time.time()
    await asyncio.sleep(_SETTLED_SECONDS)
    lives = [_Life(row["enqueued"], row["done"]) for row in await lab.fetch("read_lives")]
    return [life for life in lives if began <= life.enqueued <= ended]


async def _produce(lab: Lab, seconds: float) -> None:
    """Enqueue at an even rate, without waiting for one job before the next."""
    rate, began = lab.count("rate"), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(rate * seconds)):
            tasks.create_task(lab.enqueue(WORK))
            await asyncio.sleep(max(0.0, began + (number + 1) / rate - time.monotonic()))


async def _cut(lab: Lab, proxy: Proxy, cuts: list[float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        there = proxy.connections
        cuts.append(time.time())
        for connection in lab.random.sample(there, math.ceil(len(there) / _SHARE)):
            proxy.cut(connection)
        cuts.append(time.time())


def _p99(lives: Sequence[_Life]) -> float:
    return sorted(life.done - life.enqueued for life in lives)[int(len(lives) * 0.99)]
