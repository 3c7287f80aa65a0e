"""What the figures depend on besides the peers: the machine, the server, and the versions actually installed."""

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.peers.databases import Databases
from bench.peers.environments import Environments
from bench.peers.settings import ROOT, Settings

_SERVER_SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "autovacuum",
    "shared_buffers",
    "jit",
)


def facts(settings: Settings, environments: Environments, databases: Databases, server: str) -> dict[str, Any]:
    missing = {peer.slug: bare(why) for peer in settings.peers if (why := environments.missing(peer))}
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "server": {"which": server, **{name: databases.setting(name) for name in _SERVER_SETTINGS}},
        "holdfast_commit": _commit(),
        "settings": settings.stated(),
        "installed": {peer.slug: environments.versions(peer) for peer in settings.peers if peer.slug not in missing},
        "missing": missing,
    }


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "processor": _found("/proc/cpuinfo", r"model name\s*: (.*)") or platform.processor(),
        "memory_gib": round(int(_found("/proc/meminfo", r"MemTotal:\s*(\d+)") or 0) / 2**20, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def bare(text: str) -> str:
    """Remove addresses and paths, because they concern only this machine."""
    return re.sub(r"\w+://\S+|(?<!\w)/\S+", "…", text)


def _found(path: str, pattern: str) -> str:
    text = Path(path).read_text() if Path(path).exists() else ""
    match = re.search(pattern, text)
    return match[1].strip() if match else ""


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
