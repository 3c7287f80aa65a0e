"""A module with handlers that a worker can import, and a handler's process only while nothing is wrong."""

import multiprocessing
import os
import time
from pathlib import Path

from holdfast import RunningJob

WRONG = "HOLDFAST_TEST_WRONG"
"""Names a file that says how the import goes wrong. If there is no such file, nothing is wrong."""

if multiprocessing.parent_process() is not None and (_wrong := Path(os.environ[WRONG])).exists():
    match _wrong.read_text():
        case "raises":
            raise ImportError("half of the new release is on disk")
        case "exits":
            os._exit(7)
        case "hangs":
            time.sleep(600)


def handle(job: RunningJob[object]) -> int:
    return os.getpid()
