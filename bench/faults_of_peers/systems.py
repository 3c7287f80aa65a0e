"""The job systems under test, and how each one is set up."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.peers.environments import Environments
from bench.peers.settings import Peer, Settings

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class System:
    """`settings`: the chosen settings in words, with the defaults of those that make recovery faster."""

    peer: Peer
    settings: str

    @property
    def slug(self) -> str:
        return self.peer.slug

    def sql(self, name: str) -> str:
        return (HERE / "sql" / f"{self.slug}_{name}.sql").read_text()

    def command(self, environments: Environments, what: str) -> list[str]:
        program = sys.executable if self.peer.is_own else environments.command(self.peer)[0]
        return [program, "-m", f"bench.faults_of_peers.scripts.{self.slug}_script", what]


_SETTINGS: Mapping[str, str] = {
    "pgqueuer": "`pgqueuer.run` on one asyncpg connection, `heartbeat_timeout` 3 s (30), `dequeue_timeout` 1 s (30), "
    "`shutdown_on_listener_failure`, `batch_size` 4 (10), `max_concurrent_tasks` 8, tables as `pgq autovac` sets them",
    "procrastinate": "`concurrency` 8, `update_heartbeat_interval` 1 s (10), `stalled_worker_timeout` 3 s (30), "
    "`fetch_job_polling_interval` 1 s (5), the periodic task of its page on stalled jobs every 2 s (10 min) with "
    "`seconds_since_heartbeat` 3 (30)",
    "awa": "`max_workers` 8, `heartbeat_interval_ms` 1,000 (30,000), `heartbeat_staleness_ms` 3,000 (90,000), "
    "`heartbeat_rescue_interval_ms` 1,000 (30,000), `leader_election_interval_ms` 1,000 (10,000), "
    "`queue_storage_queue_rotate_interval_ms` 600,000 (1,000), so that final jobs can be read in the end",
    "holdfast": "`holdfast worker`, lease 3 s (30), concurrency 8",
}


@cache
def systems() -> Mapping[str, System]:
    known = {peer.slug: peer for peer in Settings.load().peers}
    return {slug: System(known[slug], said) for slug, said in _SETTINGS.items()}
