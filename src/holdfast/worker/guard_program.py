"""Waits until its parent, the worker, has ended, and then kills the process groups that it received on its input.

Each line is a group to watch or, with a leading minus, a group to forget. Run by path, with only the standard library.
"""

import os
import select
import signal
import sys

_LOOK_SECONDS = 1.0


def main(worker: int) -> None:
    # A supervisor that signals every process wants to stop the worker, which may still need its guard.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    unread = b""
    while True:
        if select.select([0], [], [], _LOOK_SECONDS)[0]:
            told = os.read(0, 65536)
            if not told:
                break
            *lines, unread = (unread + told).split(b"\n")
            for group in map(int, lines):
                groups.add(group) if group > 0 else groups.discard(-group)
        elif os.getppid() != worker:
            # The worker is gone, but a process that it forked keeps the input open.
            break
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    main(int(sys.argv[1]))
