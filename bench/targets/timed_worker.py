"""`python -m bench.targets.timed_worker FILE worker …`: `holdfast worker …` that also records how long its claims take.

One line per claim: when it was sent, on the clock that processes share, its seconds, and how many jobs it got.
"""

import sys
import time
from pathlib import Path

from holdfast.cli import main
from holdfast.domain.job import LeasedJob
from holdfast.store.contract import ClaimRequest
from holdfast.store.postgres.store import PostgresStore


def time_claims(file: Path) -> None:
    claim = PostgresStore.claim
    output = file.open("a", buffering=1)

    async def timed(self: PostgresStore, request: ClaimRequest) -> list[LeasedJob]:
        sent, started = time.time(), time.perf_counter()
        jobs = await claim(self, request)
        output.write(f"{sent:.6f} {time.perf_counter() - started:.6f} {len(jobs)}\n")
        return jobs

    PostgresStore.claim = timed  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    time_claims(Path(sys.argv.pop(1)))
    main()
