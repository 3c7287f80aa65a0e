"""The judge's evidence: notes of handlers, producers and faults, kept by a process that no fault touches.

A note is acknowledged before the call returns. What a handler noted therefore happened, even if it is killed next.
"""

import json
import os
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self
from uuid import UUID

RECORD = "FAULTS_RECORD"
"""The recorder's socket. Not a setting of Holdfast, so without its prefix."""


class What(StrEnum):
    ENQUEUING = "enqueuing"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    START = "start"
    EFFECT = "effect"
    END = "end"
    KILL = "kill"
    TERMINATE = "terminate"
    CUT_OFF = "cut off"
    """A process, or all of them, cannot renew from now on: it was stopped, or has no server."""
    BACK = "back"
    FORGOTTEN = "forgotten"
    """The store lost what was committed since `since`, for example by promoting an asynchronous standby."""
    CANCEL = "cancel"
    """A cancel is about to be requested."""
    UNUSABLE = "unusable"
    """The job's payload or result is unusable, so it fails although none of its attempts did."""


DONE = "done"
EVERYBODY = 0
"""Stands in for a process id: a fault that affects all processes."""


Attempt = tuple[UUID | None, int]
"""A job and the fence of one of its claims. The fence alone is not enough: other jobs may have the same one."""


@dataclass(frozen=True, slots=True)
class Note:
    """`at` is the recorder's monotonic clock in seconds. Notes are ordered by arrival."""

    at: float
    what: What
    pid: int
    job: UUID | None = None
    fence: int = 0
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def attempt(self) -> Attempt:
        return self.job, self.fence

    @classmethod
    def read(cls, line: str) -> Self:
        value = json.loads(line)
        job = value.pop("job", None)
        return cls(
            at=value.pop("at"),
            what=What(value.pop("what")),
            pid=value.pop("pid"),
            job=None if job is None else UUID(job),
            fence=value.pop("fence", 0),
            more=value,
        )

    def __str__(self) -> str:
        parts = [f"{self.at:10.3f} s", self.what]
        parts += [f"fence {self.fence}"] if self.fence else []
        parts += [f"process {self.pid}"] if self.pid else []
        parts += [f"{name} {value}" for name, value in self.more.items()]
        return "  ".join(parts)


class Record:
    """Sends notes to the recorder. Each thread of each process opens its own connection on first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()

    @classmethod
    def of_environment(cls) -> Self:
        return cls(Path(os.environ[RECORD]))

    def note(
        self, what: What, job: UUID | None = None, fence: int = 0, *, pid: int | None = None, **more: object
    ) -> None:
        value: dict[str, object] = {"what": what, "pid": os.getpid() if pid is None else pid, **more}
        if job is not None:
            value["job"] = str(job)
        if fence:
            value["fence"] = fence
        connection = self._connection()
        connection.sendall(json.dumps(value).encode() + b"\n")
        if connection.recv(1) != b".":
            raise ConnectionError("the recorder is gone")

    def note_each(self, what: What, jobs: Iterable[UUID]) -> None:
        for job in jobs:
            self.note(what, job)

    def close(self) -> None:
        """Close the connection of this thread."""
        if getattr(self._local, "pid", None) == os.getpid():
            self._local.connection.close()
            self._local.pid = None

    def _connection(self) -> socket.socket:
        pid: int | None = getattr(self._local, "pid", None)
        if pid != os.getpid():
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(self._path))
            self._local.connection, self._local.pid = connection, os.getpid()
        found: socket.socket = self._local.connection
        return found
