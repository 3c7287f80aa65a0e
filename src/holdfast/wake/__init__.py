"""Wake-ups: hints that there may be work. Never trusted and never required, because polling goes on beside them.

A source calls `wake(queue)`, or `wake(None)` for every queue, on the event loop that runs it.
"""

from collections.abc import Callable

Wake = Callable[[str | None], None]
