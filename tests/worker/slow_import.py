"""An application that is slow to import in processes where an environment variable says so."""

import os
import time
from typing import Any

from holdfast import RunningJob

time.sleep(float(os.environ.get("SLOW_IMPORT_SECONDS", "0")))


def handle(job: RunningJob[dict[str, Any]]) -> int:
    return os.getpid()
