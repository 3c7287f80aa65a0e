"""Finds the line in the application's own code where something happens."""

import sys
import sysconfig
from pathlib import Path
from types import FrameType

_PACKAGE = Path(__file__).parents[1]
_NOT_THE_APPLICATION = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {str(_PACKAGE)}
)


def place() -> str | None:
    """The innermost line of the stack that belongs neither to a library nor to Holdfast."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(("<", *_NOT_THE_APPLICATION)):
            return f"{_relative(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _relative(path: str) -> str:
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
