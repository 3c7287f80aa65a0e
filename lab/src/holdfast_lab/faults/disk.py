"""A small disk that can be filled: a tmpfs, which only root can mount."""

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
"""MNT_DETACH: processes with open files there keep them until they close them."""


@contextmanager
def mounted(folder: Path, size: int = _SIZE) -> Iterator[None]:
    """While the block runs, the folder is a separate disk of this many bytes."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()) != 0:
        raise InvalidInput(f"cannot mount a small disk: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        library.umount2(os.fsencode(folder), _DETACH)


def can_mount() -> bool:
    """Being root may not be enough: a container can forbid mounts."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    try:
        with tempfile.TemporaryDirectory() as folder, mounted(Path(folder), 1024 * 1024):
            return True
    except InvalidInput:
        return False


def fill(disk: Path) -> Path:
    """Create a file that takes all free space, to the last page. Delete it to free the space."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            # Others write at the same time, so only a failed write shows that the disk is full.
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return ballast
