"""Runs cases one after the other, or a few side by side on servers of their own, and gathers what they found."""

import asyncio
import tempfile
import time
import traceback
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from holdfast.domain.errors import HoldfastError, InvalidInput
from holdfast_lab.faults.bouncer import bouncer_program
from holdfast_lab.faults.broker import broker_program
from holdfast_lab.faults.case import Case, Need
from holdfast_lab.faults.disk import can_mount, mounted
from holdfast_lab.faults.failover import FailoverServer
from holdfast_lab.faults.judge import Violation
from holdfast_lab.faults.lab import WORKER_APP, Figure, Lab, opened_lab, recording
from holdfast_lab.faults.server import FaultServer

Say = Callable[[Case, str], None]
Missing = Callable[[Need], str | None]
"""Why something that a case needs is not to be had here; None: it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`seed`: the same one gives the same faults. `url`: a server of the user's, in place of ours."""

    cases: Sequence[Case]
    seed: int
    url: str | None = None
    is_large: bool = False
    side_by_side: int = 1
    worker_app: str = WORKER_APP
    sizes: Mapping[str, float] = field(default_factory=dict)
    """In place of a case's own, where it has one of that name."""

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.startswith(("postgresql://", "postgres://")):
            raise InvalidInput("url: faults are done to PostgreSQL; write postgresql://user@host:port/database")


@dataclass(frozen=True, slots=True)
class Result:
    """`skipped`: why it could not be run. `broken`: the laboratory itself failed."""

    case: Case
    seed: int
    seconds: float = 0.0
    figures: Sequence[Figure] = ()
    violations: Sequence[Violation] = ()
    notes: int = 0
    skipped: str = ""
    broken: str = ""

    @property
    def is_fine(self) -> bool:
        return not self.violations and not self.broken


async def run_plan(plan: Plan, say: Say, over: Callable[[Result], None]) -> list[Result]:
    """`say` tells what is going on, `over` of each result as it comes. The results are in the order of the cases."""
    waiting = list(enumerate(plan.cases))
    results: dict[int, Result] = {}

    async def work(folder: Path) -> None:
        async with FaultServer.opened(plan.url, folder / "postgres") as server:
            while waiting:
                number, case = waiting.pop(0)
                results[number] = await run_case(case, plan, server, folder / case.name, say)
                over(results[number])

    with tempfile.TemporaryDirectory(prefix="holdfast-faults-", ignore_cleanup_errors=True) as name:
        number = 1 if plan.url is not None else min(plan.side_by_side, len(plan.cases))
        folders = [Path(name) / str(index) for index in range(number)]
        for folder in folders:
            folder.mkdir()
        try:
            async with asyncio.TaskGroup() as tasks:
                for folder in folders:
                    tasks.create_task(work(folder))
        except* HoldfastError as errors:
            # They all have the same reason: no server could be started.
            raise errors.exceptions[0] from None
    return [results[number] for number in sorted(results)]


async def run_case(case: Case, plan: Plan, server: FaultServer, folder: Path, say: Say) -> Result:
    for need in case.needs:
        if (why := missing(need, server)) is not None:
            return Result(case, plan.seed, skipped=why)
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 - a moment, before anything runs
    started = time.monotonic()
    say(case, case.title)
    usual = case.size(is_large=plan.is_large)
    try:
        async with _server_of(case, server, folder) as server, recording(folder) as record, server.place() as place:
            lab = Lab(
                place=place,
                server=server,
                folder=folder,
                record=record,
                size={name: plan.sizes.get(name, value) for name, value in usual.items()},
                # Of the case's name too, so that a case has the same faults whichever others are run.
                random=Random(plan.seed ^ zlib.crc32(case.name.encode())),  # noqa: S311 - a plan, not a secret
                lease=case.lease,
                worker_app=plan.worker_app,
                progress=lambda text: say(case, text),
            )
            async with opened_lab(lab):
                await case.run(lab)
                violations = await lab.judged()
                notes = len(lab.notes())
    except Exception as error:  # noqa: BLE001 - what other cases have shown must not be lost by this one
        said = f"{type(error).__name__}: {error}"
        if not isinstance(error, HoldfastError | OSError):
            where = traceback.extract_tb(error.__traceback__)[-1]
            said += f" ({Path(where.filename).name}:{where.lineno})"
        return Result(case, plan.seed, time.monotonic() - started, broken=said)
    return Result(case, plan.seed, time.monotonic() - started, lab.figures, violations, notes)


@asynccontextmanager
async def _server_of(case: Case, usual: FaultServer, folder: Path) -> AsyncIterator[FaultServer]:
    """The usual one, one that has a standby, or one whose disk is small."""
    if Need.STANDBY in case.needs:
        async with FailoverServer.opened_pair(folder / "pair") as server:
            yield server
        return
    if Need.TMPFS not in case.needs:
        yield usual
        return
    disk = folder / "disk"
    disk.mkdir()
    with mounted(disk):
        async with FaultServer.opened(None, disk / "postgres") as server:
            server.disk = disk
            yield server


def missing(need: Need, server: FaultServer) -> str | None:
    """Why that is not to be had here."""
    match need:
        case Need.OWN_SERVER | Need.STANDBY:
            return None if server.folder is not None else "stops PostgreSQL, which is done to none but its own"
        case Need.RABBITMQ:
            return None if broker_program() is not None else "stops RabbitMQ, and rabbitmq-server is not installed"
        case Need.TMPFS:
            return None if can_mount() else "mounts a small disk, for which it has to be root"
        case Need.PGBOUNCER:
            return None if bouncer_program() is not None else "kills PgBouncer, and pgbouncer is not installed"
