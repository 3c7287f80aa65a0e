"""The cases. Importing this package registers them."""

from holdfast.faults.cases import (
    bad_jobs,
    brokers,
    clocks,
    crashing,
    inputs,
    keys,
    killing,
    network,
    outages,
    secrets,
    sequences,
    soaks,
    stopping,
    upkeep,
    writers,
    zones,
)

__all__ = [
    "bad_jobs",
    "brokers",
    "clocks",
    "crashing",
    "inputs",
    "keys",
    "killing",
    "network",
    "outages",
    "secrets",
    "sequences",
    "soaks",
    "stopping",
    "upkeep",
    "writers",
    "zones",
]
