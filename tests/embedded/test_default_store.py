"""The default store is announced on stderr, because the user may have forgotten the address of a server."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio
from holdfast import Holdfast

async def main():
    for _ in range(2):
        async with Holdfast() as app:
            await app.jobs.count()

asyncio.run(main())
"""


def run(folder: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {"HOLDFAST_HOME": str(folder), "PATH": "/usr/bin:/bin", **variables}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.long
def test_the_default_store_is_announced_once_per_process_but_not_to_programs(tmp_path: Path) -> None:
    announced = (
        f"no store is set, so jobs live in an embedded PostgreSQL; set HOLDFAST_STORE  folder={tmp_path / 'postgres'}\n"
    )
    assert run(tmp_path, "-c", PROGRAM).stderr == announced
    assert run(tmp_path, "-m", "holdfast", "jobs", "list").stderr == announced
    assert run(tmp_path, "-m", "holdfast", "jobs", "list", "--json").stderr == ""
    assert run(tmp_path, "-m", "holdfast", "jobs", "list", HOLDFAST_STORE="embedded:").stderr == ""
