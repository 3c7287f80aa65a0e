"""A template whose page never finishes, because it reads from a FIFO that is never written."""

import os
import select
import shutil
from contextlib import suppress
from pathlib import Path

from apps.invoicing.settings import Settings

STUCK = "stuck"


class StuckPage:
    """`templates` holds the service's templates and one more, named STUCK."""

    def __init__(self, folder: Path) -> None:
        self.templates = Path(shutil.copytree(Settings.model_fields["templates_folder"].default, folder / "templates"))
        self._fifo = self.templates / "never"
        os.mkfifo(self._fifo)
        usual = (self.templates / "invoice.typ").read_text()
        (self.templates / f"{STUCK}.typ").write_text(f'#let _ = read("never")\n{usual}')
        self._writer: int | None = None

    def has_begun(self) -> bool:
        """Whether a page is being rendered and is waiting."""
        if self._writer is None:
            # ENXIO if there is no reader. Keep the FIFO open, or the reader would continue.
            with suppress(OSError):
                self._writer = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK)
        return self._writer is not None

    def is_gone(self) -> bool:
        """Whether the process that rendered the page is gone."""
        assert self._writer is not None
        poll = select.poll()
        poll.register(self._writer, select.POLLERR)
        return any(events & select.POLLERR for _, events in poll.poll(0))

    def let_go(self) -> None:
        """Let the waiting page finish, and every later page as well."""
        self._fifo.unlink()
        self._fifo.touch()
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None
