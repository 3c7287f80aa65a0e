"""The measurements of one peer with one setting, defined the same way for all peers, including Holdfast.

A drain begins with the first job of the worker that is last to start one, and ends when the database shows no
unfinished job, whatever the handlers report. Jobs that other workers started earlier do not count."""

import asyncio
import json
import math
import os
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench.peers.databases import Databases
from bench.peers.environments import Environments
from bench.peers.settings import ROOT, Peer, Setting, Sizes
from bench.targets.machine import rest

_START_SECONDS = 15.0
_CALL_SECONDS = 120.0
_LAST_PICKUP_SECONDS = 10.0
_TURN_SECONDS = 0.005
_COUNT_LAG = 500
"""How far a worker's count may lag behind, as in commands.py."""
_WARM_UP_JOBS = 10
_STARTED = struct.Struct("<qd")

Figures = dict[str, float | int | bool]


class MeasureError(Exception):
    """A peer failed to do what was asked; the message contains its last output."""


@dataclass(frozen=True, slots=True)
class Bench:
    environments: Environments
    databases: Databases
    sizes: Sizes

    def bulk(self, peer: Peer) -> Figures:
        with self._empty(peer) as url:
            busy = _rest()
            return _rate(self._ask(peer, url, "bulk", self.sizes.bulk_jobs, self.sizes.batch)) | busy

    def single(self, peer: Peer) -> Figures:
        with self._empty(peer) as url:
            busy = _rest()
            return _rate(self._ask(peer, url, "single", self.sizes.single_seconds)) | busy

    def pickup(self, setting: Setting) -> Figures:
        """Measure the milliseconds from the return of the enqueue to the start of the handler in an idle worker."""
        with self._empty(setting.peer, tuned=setting.tuned) as url, self._workers(setting, url, "pickup", 1) as workers:
            time.sleep(self.sizes.pickup_settle_seconds)
            busy = _rest()
            jobs = self.sizes.pickup_jobs
            returned = self._ask(setting.peer, url, "pickup", jobs, self.sizes.pickup_gap_seconds)
            end = time.monotonic() + _LAST_PICKUP_SECONDS
            while len(started := workers.starts()) < jobs + _WARM_UP_JOBS and time.monotonic() < end:
                workers.check()
                time.sleep(_TURN_SECONDS)
        # A handler can start before its enqueuer gets the reply.
        waits = sorted(max(0.0, started[number] - at) * 1000 for number, at in returned if number in started)
        if len(waits) < jobs:
            raise MeasureError(f"only {len(waits)} of {jobs} jobs were started")
        at = {name: waits[math.ceil(share * jobs) - 1] for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
        return {"jobs": jobs, **{name: round(wait, 3) for name, wait in at.items()}, **busy}

    def drain(self, setting: Setting, workers: int, jobs: int, *, paired: bool) -> Figures:
        peer = setting.peer

        def fill(url: str) -> None:
            self._install(peer, url, tuned=setting.tuned)
            self._ask(peer, url, "bulk", jobs, self.sizes.batch)

        with self.databases.clone(self.databases.template(f"{_key(peer, tuned=setting.tuned)} {jobs}", fill)) as url:
            busy = _rest()
            cap_seconds = self.sizes.pair_cap_seconds if paired else self.sizes.cap_seconds
            return self._drain(setting, url, workers, jobs, cap_seconds) | busy

    def _drain(self, setting: Setting, url: str, workers: int, jobs: int, cap_seconds: float) -> Figures:
        peer = setting.peer
        with (
            psycopg.connect(url, autocommit=True) as connection,
            self._workers(setting, url, "drain", workers) as running,
        ):
            begun = running.wait_for_all(jobs)
            left = jobs
            while left:
                time.sleep(_TURN_SECONDS)
                running.check()
                # Ask the database only near the end, because looking costs time, which matters most for fast peers.
                if running.count(math.inf) >= jobs - workers * _COUNT_LAG and not _is_any(connection, peer):
                    left = 0
                elif time.monotonic() - begun > cap_seconds:
                    left = _number(connection, peer)
                    break
            seconds = time.monotonic() - begun
            finished = jobs - left - running.count(begun)
        return {
            "jobs": jobs,
            "finished": finished,
            "seconds": round(seconds, 4),
            "rate": round(finished / seconds, 1),
            "complete": left == 0,
        }

    @contextmanager
    def _empty(self, peer: Peer, *, tuned: bool = False) -> Iterator[str]:
        template = self.databases.template(_key(peer, tuned=tuned), lambda url: self._install(peer, url, tuned=tuned))
        with self.databases.clone(template) as url:
            yield url

    def _install(self, peer: Peer, url: str, *, tuned: bool) -> None:
        self._ask(peer, url, "install", int(tuned))

    def _ask(self, peer: Peer, url: str, command: str, *arguments: float) -> Any:  # noqa: ANN401
        words = [*self.environments.command(peer), command, *(str(argument) for argument in arguments)]
        variables = self.environments.variables(peer) | {"BENCH_URL": url}
        try:
            done = subprocess.run(
                words, env=variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_CALL_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise MeasureError(f"{command} took more than {_CALL_SECONDS:.0f} s") from error
        if done.returncode != 0 or not done.stdout.strip():
            raise MeasureError(f"{command} failed: {(done.stderr or done.stdout).strip()[-800:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    @contextmanager
    def _workers(self, setting: Setting, url: str, measure: str, number: int) -> "Iterator[_Workers]":
        peer = setting.peer
        with tempfile.TemporaryDirectory(prefix="bench-peers-") as name:
            folder = Path(name)
            variables = self.environments.variables(peer) | {
                "BENCH_URL": url,
                "BENCH_MEASURE": measure,
                "BENCH_FOLDER": name,
            }
            words = [*self.environments.command(peer), "work", json.dumps(dict(setting.worker))]
            processes: list[subprocess.Popen[bytes]] = []
            try:
                with (folder / "log").open("wb") as log:
                    while len(processes) < number:
                        process = subprocess.Popen(
                            words, env=variables, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
                        )
                        processes.append(process)
                yield _Workers(folder, processes)
            finally:
                # Kill them right away: their database is dropped too, so there is nothing to save.
                for process in processes:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@dataclass(frozen=True, slots=True)
class _Workers:
    folder: Path
    processes: "list[subprocess.Popen[bytes]]"

    def wait_for_all(self, jobs: int) -> float:
        """Return when the last worker started its first job. Raises an error if the others left it none."""
        end = time.monotonic() + _START_SECONDS
        while len(counts := self._counts()) < len(self.processes):
            self.check()
            if self.count(math.inf) > jobs - _COUNT_LAG:
                raise MeasureError("too few jobs: they were all started before every worker had one")
            if time.monotonic() > end:
                raise MeasureError(
                    f"not every worker started a job within {_START_SECONDS:.0f} s: {self._last_words()}"
                )
            time.sleep(_TURN_SECONDS)
        return max(points[0][1] for points in counts)

    def count(self, moment: float) -> int:
        """How many jobs were started before this moment, interpolated linearly between the known times."""
        return sum(_at(points, moment) for points in self._counts())

    def starts(self) -> dict[int, float]:
        # A job that is started again keeps its first start time.
        return dict(reversed(_records(self.folder / "started")))

    def check(self) -> None:
        if any(process.poll() is not None for process in self.processes):
            raise MeasureError(f"a worker ended by itself: {self._last_words()}")

    def _counts(self) -> list[list[tuple[int, float]]]:
        return [points for path in self.folder.glob("*.counts") if (points := _records(path))]

    def _last_words(self) -> str:
        return (self.folder / "log").read_text(errors="replace").strip()[-800:]


def _records(path: Path) -> list[tuple[int, float]]:
    content = path.read_bytes() if path.exists() else b""
    whole = len(content) // _STARTED.size * _STARTED.size
    return list(_STARTED.iter_unpack(content[:whole]))


def _at(points: list[tuple[int, float]], moment: float) -> int:
    later = next((index for index, (_, at) in enumerate(points) if at >= moment), len(points))
    if later == 0:
        return 0
    count, at = points[later - 1]
    if later == len(points):
        return count
    next_count, next_at = points[later]
    return count + int((next_count - count) * (moment - at) / (next_at - at))


def _key(peer: Peer, *, tuned: bool) -> str:
    return f"{peer.slug} {'tuned' if tuned else 'installed'}"


def _rest() -> Figures:
    """Wait until the server has written what earlier steps left to write, so that all runs start alike."""
    return {"busy": round(asyncio.run(rest()), 3)}


def _rate(answer: dict[str, float]) -> Figures:
    return {
        "jobs": int(answer["jobs"]),
        "seconds": round(answer["seconds"], 4),
        "rate": round(answer["jobs"] / answer["seconds"], 1),
    }


def _is_any(connection: "psycopg.Connection[Any]", peer: Peer) -> bool:
    row = connection.execute(f"SELECT EXISTS ({peer.unfinished})".encode()).fetchone()
    return bool(row and row[0])


def _number(connection: "psycopg.Connection[Any]", peer: Peer) -> int:
    row = connection.execute(f"SELECT count(*) FROM ({peer.unfinished}) AS unfinished".encode()).fetchone()
    return int(row[0]) if row else 0
