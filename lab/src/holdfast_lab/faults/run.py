"""Runs cases one after another, or several at once on separate servers, and collects the results."""

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
from holdfast_lab.faults.cluster import Cluster, missing_program
from holdfast_lab.faults.disk import can_mount, mounted
from holdfast_lab.faults.failover import FailoverServer
from holdfast_lab.faults.judge import Violation
from holdfast_lab.faults.lab import WORKER_APP, Figure, Lab, opened_lab, recording
from holdfast_lab.faults.server import FaultServer

Say = Callable[[Case, str], None]
Missing = Callable[[Need], str | None]
"""Says why a need cannot be met here, or None if it can."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`seed`: repeats the same plan of faults. `url`: a server of the user's, instead of a fresh one."""

    cases: Sequence[Case]
    seed: int
    url: str | None = None
    is_large: bool = False
    side_by_side: int = 1
    worker_app: str = WORKER_APP
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Overrides for the sizes of the cases that have these names."""

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.startswith(("postgresql://", "postgres://")):
            raise InvalidInput("url: faults need PostgreSQL; write postgresql://user@host:port/database")


@dataclass(frozen=True, slots=True)
class Result:
    """`skipped`: why the case could not run. `broken`: how the laboratory itself failed."""

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
    """Run the plan and return results in the order of its cases. `say` gets progress, `over` each result."""
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
            # All workers fail for the same reason: no server could be started.
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
                # Mix in the case's name: a case then has the same faults no matter which other cases run.
                random=Random(plan.seed ^ zlib.crc32(case.name.encode())),  # noqa: S311 - a plan, not a secret
                lease=case.lease,
                worker_app=plan.worker_app,
                progress=lambda text: say(case, text),
            )
            async with opened_lab(lab):
                await case.run(lab)
                violations = await lab.judged()
                notes = len(lab.notes())
    except Exception as error:  # noqa: BLE001 - one broken case must not cost the results of the others
        said = f"{type(error).__name__}: {error}"
        if not isinstance(error, HoldfastError | OSError):
            where = traceback.extract_tb(error.__traceback__)[-1]
            said += f" ({Path(where.filename).name}:{where.lineno})"
        return Result(case, plan.seed, time.monotonic() - started, broken=said)
    return Result(case, plan.seed, time.monotonic() - started, lab.figures, violations, notes)


@asynccontextmanager
async def _server_of(case: Case, usual: FaultServer, folder: Path) -> AsyncIterator[FaultServer]:
    """The shared server, or a new one with what the case needs: a cluster, a standby or a small disk."""
    if Need.CLUSTER in case.needs:
        async with Cluster.formed() as server:
            yield server
        return
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
    """Why this need cannot be met here, or None if it can."""
    match need:
        case Need.OWN_SERVER | Need.STANDBY:
            return None if server.folder is not None else "stops PostgreSQL, and a server of yours is never stopped"
        case Need.RABBITMQ:
            return None if broker_program() is not None else "stops RabbitMQ, and rabbitmq-server is not installed"
        case Need.TMPFS:
            return None if can_mount() else "mounts a small disk, and only root can do that"
        case Need.CLUSTER:
            name = missing_program()
            return None if name is None else f"runs Patroni, etcd, HAProxy and PgBouncer, and {name} is not installed"
        case Need.PGBOUNCER:
            return None if bouncer_program() is not None else "kills PgBouncer, and pgbouncer is not installed"
