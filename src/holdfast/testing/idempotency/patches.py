"""Types for the modules that each wrap one library."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# A wrapper neither knows nor cares what its method takes and returns.
Method = Callable[..., Any]
# Owner, name, and replacement: a method, or a staticmethod or classmethod object if the class needs one.
Patch = tuple[object, str, object]


def installed(name: str) -> ModuleType | None:
    return import_module(name) if find_spec(name) is not None else None
