"""A fork inherits connections and event loops that its parent keeps using: it must neither use nor close them."""

import os
from typing import Protocol
from weakref import WeakSet


class Inheritable(Protocol):
    def _left_to_parent(self) -> object:
        """Called in a fork: start afresh, and return what belongs to the parent."""


_owners: WeakSet[Inheritable] = WeakSet()
_left: list[object] = []
"""Kept for good, because collecting a connection would close it."""


def leave_to_parent(owner: Inheritable) -> None:
    _owners.add(owner)


def _leave_all() -> None:
    _left.extend(owner._left_to_parent() for owner in list(_owners))


os.register_at_fork(after_in_child=_leave_all)
