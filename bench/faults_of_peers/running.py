"""Runs one case on one peer, on a separate server, and collects the judge's findings."""

import re
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from bench.faults_of_peers.cases import PeerCase
from bench.faults_of_peers.evidence import run_more_than_once, started_again
from bench.faults_of_peers.lab import LEASE_SECONDS, PeerLab, database, install
from bench.faults_of_peers.systems import System
from bench.peers.environments import Environments
from bench.peers.facts import bare
from holdfast_lab.faults.judge import count
from holdfast_lab.faults.lab import recording
from holdfast_lab.faults.record import What
from holdfast_lab.faults.server import FaultServer

_SHOWN = 3
_SHOWN_LINES = 12


async def run(
    case: PeerCase, system: System, seed: int, environments: Environments, say: Callable[[str], None]
) -> dict[str, Any]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-of-peers-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with (
            FaultServer.opened(None, folder / "postgres") as server,
            database(server) as url,
            recording(folder) as record,
        ):
            lab = PeerLab(
                system=system,
                environments=environments,
                server=server,
                url=url,
                folder=folder,
                record=record,
                # The seed does not depend on the peer, so all of them get the same faults.
                random=Random(seed ^ zlib.crc32(case.name.encode())),
                say=say,
            )
            await install(lab)
            try:
                await case.run(lab)
                found, violations = await lab.judged()
            finally:
                await lab.close()
        notes = found.notes
        shown = {kind: [each for each in violations if each.kind == kind][:_SHOWN] for kind in count(violations)}
        return {
            "case": case.name,
            "system": system.slug,
            "seed": seed,
            "seconds": round(time.monotonic() - started, 1),
            "lease": LEASE_SECONDS,
            "accepted": sum(note.what is What.ACCEPTED for note in notes),
            "undecided": lab.undecided,
            "starts": sum(note.what is What.START for note in notes),
            "run more than once": run_more_than_once(notes),
            "started again": started_again(notes),
            "violations": dict(count(violations)),
            "worker exits": lab.exits,
            "exits": [bare(each) for each in lab.said_last[:_SHOWN]],
            "figures": lab.figures,
            "enqueue errors": sorted({bare(each) for each in lab.errors})[:_SHOWN],
            "examples": {
                kind: [{"text": each.text, "history": list(each.history)} for each in some]
                for kind, some in shown.items()
            },
            "last words": _last_words(folder),
        }


def _last_words(folder: Path) -> dict[str, int]:
    """The errors in the workers' logs: the last line of each traceback, and how often it occurs."""
    said: dict[str, int] = {}
    for log in folder.glob("worker-*.log"):
        for line in log.read_text(errors="replace").splitlines():
            words = bare(line.strip(" |│"))
            head = words.partition(":")[0]
            if head.endswith(("Error", "Exception", "Closed", "Shutdown", "NoResult")) and " " not in head:
                # Without the job's number, so that equal errors become one entry.
                words = re.sub(r"\d+", "…", words)[:160]
                said[words] = said.get(words, 0) + 1
    return dict(sorted(said.items(), key=lambda each: -each[1])[:_SHOWN_LINES])
