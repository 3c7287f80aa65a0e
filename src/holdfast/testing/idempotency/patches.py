"""What a wrapper is, for the modules that wrap a library each."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# A wrapper neither knows nor cares what its method takes and returns.
Method = Callable[..., Any]
# The third is a method, or a static or class method in the wrapping that its class needs.
Patch = tuple[object, str, object]


def installed(name: str) -> ModuleType | None:
    return import_module(name) if find_spec(name) is not None else None
