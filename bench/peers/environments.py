"""Separate environments for the peers in the user's cache: a venv for Python packages, an npm project for node's.

Each list of packages gets its own environment, so changing a version creates a new one."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from bench.peers.settings import Peer

_DONE = "complete"
_FAILED = "failed"


class SetupError(Exception):
    """The requested setup is not possible; the message says why."""


@dataclass(frozen=True, slots=True)
class Environments:
    folder: Path

    @classmethod
    def default(cls) -> "Environments":
        return cls(platformdirs.user_cache_path("holdfast") / "bench-peers")

    def install(self, peer: Peer) -> None:
        folder = self._folder(peer)
        if self.missing(peer) is None:
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            if peer.node is None:
                venv.create(folder, with_pip=True)
                _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *peer.packages], folder)
            else:
                (folder / "package.json").write_text(json.dumps({"name": peer.slug, "private": True}))
                packages = [f"node@{peer.node}", *peer.packages]
                _run(["npm", "install", "--silent", "--no-audit", "--no-fund", *packages], folder)
        except SetupError as error:
            (folder / _FAILED).write_text(str(error))
            raise
        (folder / _DONE).touch()

    def missing(self, peer: Peer) -> str | None:
        """Why the peer cannot be measured here, or None if it can."""
        folder = self._folder(peer)
        if peer.is_own or (folder / _DONE).exists():
            return None
        failed = folder / _FAILED
        return failed.read_text() if failed.exists() else "not installed: run python -m bench.peers setup"

    def command(self, peer: Peer) -> list[str]:
        """The command that runs the peer's adapter, to be followed by the adapter's own arguments."""
        folder = self._folder(peer)
        if peer.is_own:
            program = sys.executable
        elif peer.node is None:
            program = str(folder / "bin" / "python")
        else:
            return [str(folder / "node_modules" / "node" / "bin" / "node"), str(peer.adapter)]
        return [program, "-m", f"bench.peers.adapters.{peer.adapter.stem}"]

    def variables(self, peer: Peer) -> dict[str, str]:
        """The adapter's environment variables, without those set for Holdfast, PostgreSQL or other Pythons."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON", "PG"))}
        if peer.is_own:
            return kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        return kept | {"BENCH_PACKAGES": str(self._folder(peer)), "NODE_ENV": "production"}

    def versions(self, peer: Peer) -> dict[str, str]:
        """The versions that are actually installed, for the record."""
        if peer.is_own:
            return {}
        folder = self._folder(peer)
        if peer.node is None:
            listed = _run([str(folder / "bin" / "python"), "-m", "pip", "list", "--format=json"], folder)
            return {
                each["name"]: each["version"]
                for each in json.loads(listed)
                if each["name"] not in ("pip", "setuptools")
            }
        listed = _run(["npm", "ls", "--json", "--depth=0"], folder)
        return {name: each["version"] for name, each in json.loads(listed)["dependencies"].items()}

    def _folder(self, peer: Peer) -> Path:
        packages = json.dumps([sys.version_info[:2], peer.node, peer.packages])
        return self.folder / f"{peer.slug}-{hashlib.sha256(packages.encode()).hexdigest()[:8]}"


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise SetupError(f"{command[0]} was not found") from error
    if done.returncode != 0:
        raise SetupError(f"{' '.join(command[:4])} … failed:\n{(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout
