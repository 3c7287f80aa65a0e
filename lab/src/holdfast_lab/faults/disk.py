"""A disk that is small and can be filled: a tmpfs, which only root can mount."""

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.domain.errors import InvalidInput

_SIZE = 400 * 1024 * 1024
_DETACH = 2
"""MNT_DETACH: whoever still has a file open there keeps it to the end."""


@contextmanager
def mounted(folder: Path, size: int = _SIZE) -> Iterator[None]:
    """While the block runs the folder is a disk of its own, of so many bytes."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()) != 0:
        raise InvalidInput(f"cannot mount a small disk: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        library.umount2(os.fsencode(folder), _DETACH)


def can_mount() -> bool:
    """Root may not be enough: a container can forbid it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    try:
        with tempfile.TemporaryDirectory() as folder, mounted(Path(folder), 1024 * 1024):
            return True
    except InvalidInput:
        return False


def fill(disk: Path) -> Path:
    """A file that takes all that is left, to the last page; without it there is room again."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            # Others write at the same time, so how much is left is known only when nothing is.
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return ballast
