"""Somebody's project with tests, run by a pytest of its own, as if Holdfast were installed for it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def run_pytest(folder: Path, *arguments: str, files: Mapping[str, str]) -> str:
    """In a project that has no configuration."""
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
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def entry_point(folder: Path) -> None:
    """What an installation leaves for pytest to find."""
    about = folder / "holdfast_as_installed-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-as-installed\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pytest11]\nholdfast = holdfast.testing.pytest_plugin\n")
    (about / "RECORD").write_text("holdfast/__init__.py,,\nholdfast/testing/pytest_plugin.py,,\n")
