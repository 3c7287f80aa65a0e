"""A template whose page is never done: it reads what nobody writes."""

import os
import select
import shutil
from contextlib import suppress
from pathlib import Path

from apps.invoicing.settings import Settings

STUCK = "stuck"


class StuckPage:
    """`templates` are those of the service and one more, named STUCK."""

    def __init__(self, folder: Path) -> None:
        self.templates = Path(shutil.copytree(Settings.model_fields["templates_folder"].default, folder / "templates"))
        self._fifo = self.templates / "never"
        os.mkfifo(self._fifo)
        usual = (self.templates / "invoice.typ").read_text()
        (self.templates / f"{STUCK}.typ").write_text(f'#let _ = read("never")\n{usual}')
        self._writer: int | None = None

    def has_begun(self) -> bool:
        """A page is being rendered, and waits."""
        if self._writer is None:
            # ENXIO, if nobody reads. Kept open, or the reader would go on.
            with suppress(OSError):
                self._writer = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK)
        return self._writer is not None

    def is_gone(self) -> bool:
        """Nobody renders it any more."""
        assert self._writer is not None
        poll = select.poll()
        poll.register(self._writer, select.POLLERR)
        return any(events & select.POLLERR for _, events in poll.poll(0))

    def let_go(self) -> None:
        """What waits is done soon, and so is every later page."""
        self._fifo.unlink()
        self._fifo.touch()
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None
