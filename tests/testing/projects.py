"""A user's project with tests, run in a separate pytest process, with Holdfast as if it were installed."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def run_pytest(folder: Path, *arguments: str, files: Mapping[str, str], fails: bool = False) -> str:
    """Run pytest in a project that has no configuration, and return what it printed."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    installed = folder / "installed"
    entry_point(installed)
    environment = {
        **os.environ,
        "HOLDFAST_HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join([str(installed), str(SOURCE), str(folder)]),
        "PYTEST_ADDOPTS": "",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout


def entry_point(folder: Path) -> None:
    """Write the metadata that an installed package provides for pytest to find."""
    about = folder / "holdfast_as_installed-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-as-installed\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pytest11]\nholdfast = holdfast.testing.pytest_plugin\n")
    (about / "RECORD").write_text("holdfast/__init__.py,,\nholdfast/testing/pytest_plugin.py,,\n")
