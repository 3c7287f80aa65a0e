"""An application that sets up logging when it is imported, as Django does."""

import logging
import logging.config
import multiprocessing
from typing import Any

from holdfast import RunningJob

if multiprocessing.parent_process() is not None:
    own = {"class": "logging.StreamHandler", "formatter": "own"}
    logging.config.dictConfig(
        {
            "version": 1,
            "formatters": {"own": {"format": "OWN %(message)s"}},
            "handlers": {"own": own},
            "root": {"handlers": ["own"], "level": "INFO"},
        }
    )


def speaks(job: RunningJob[Any]) -> None:
    logging.getLogger("shop").info("spoken")
