"""The two sides of a comparison: the sources of a commit, and an interpreter with the packages of its lock file.

Sources are copied, so that nothing changes during a run. Environments stay in the user's cache.
"""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from bench.targets.measuring import say
from holdfast.domain.errors import HoldfastError

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("side.py")
_LOCK = "requirements.lock"
_PARTS = ("src", _LOCK)


class Unusable(HoldfastError):
    """The commit or the interpreter cannot be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side: the program to run, its sources and its interpreter."""

    name: str
    sources: Path
    python: Path
    program: Path = PROGRAM

    def command(self, *words: str) -> list[str]:
        """A command line that keeps the program's folder off the path, where its neighbors could hide modules."""
        return [str(self.python), "-P", str(self.program), *words]

    def environment(self) -> dict[str, str]:
        return _plain_environment() | {"PYTHONPATH": str(self.sources / "src")}


@dataclass(frozen=True, slots=True)
class Interpreter:
    program: str
    version: tuple[int, ...]

    @classmethod
    def at(cls, program: str) -> "Interpreter":
        """Check the interpreter. Raises Unusable if it does not run or is too old."""
        text = _output([program, "-c", "import platform; print(platform.python_version())"], f"--python {program}")
        # The third part may not be a number, as in 0rc1.
        version = tuple(int(part) for part in text.strip().split(".")[:2])
        if version < (3, 11):
            raise Unusable(f"--python {program}: Holdfast needs Python 3.11 or later, this is {text.strip()}")
        return cls(program, version)

    @property
    def label(self) -> str:
        return ".".join(map(str, self.version))


def commit_of(name: str, repository: Path = ROOT) -> str:
    """Return the full hash. Raises Unusable if the repository, or this commit in it, does not exist."""
    command = [
        "git",
        "-C",
        str(repository),
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{name}^{{commit}}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unusable("git was not found, and the other commit can only be read with it") from None
    if done.returncode:
        raise Unusable(f"--against {name}: this repository has no such commit")
    return done.stdout.strip()


def check_out(commit: str, folder: Path, repository: Path = ROOT) -> Path:
    """Extract the required parts of a commit into the folder."""
    command = ["git", "-C", str(repository), "archive", commit, *_PARTS]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise Unusable(f"{commit[:7]} cannot be measured: {_last_line(done.stderr.decode(errors='replace'))}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def copy_working_tree(folder: Path, repository: Path = ROOT) -> Path:
    """Copy the same parts in their current state, committed or not."""
    shutil.copytree(repository / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / _LOCK, folder / _LOCK)
    return folder


def environment_for(interpreter: Interpreter, sources: Path) -> Path:
    """Return the interpreter of an environment with the lock file's packages, created once per lock file."""
    lock = sources / _LOCK
    name = f"{interpreter.label}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    cache = platformdirs.user_cache_path("holdfast") / "bench-targets"
    made = cache / name
    if not made.exists():
        say(f"installing the packages of {lock.parent.name} for Python {interpreter.label}, a minute or two")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as temporary:
            making = Path(temporary, name)
            _output([interpreter.program, "-m", "venv", str(making)], "the environment cannot be made")
            pip = [str(_python(making)), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-r", str(lock)]
            _output(pip, "the packages of the lock file cannot be installed")
            # Renaming is safe: only the environment's scripts contain the old name. Another process may be first.
            if not made.exists():
                making.rename(made)
    return _python(made)


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def _output(command: Sequence[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_plain_environment())
    except OSError as error:
        raise Unusable(f"{what}: {error.strerror}") from None
    if done.returncode:
        raise Unusable(f"{what}: {_last_line(done.stderr)}")
    return done.stdout


def _plain_environment() -> dict[str, str]:
    """The environment without variables for Holdfast, PostgreSQL or other Pythons. A package index for pip is kept."""
    elsewhere = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
    hidden = ("HOLDFAST_", "PYTHON", "PG", *elsewhere)
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no error message"
