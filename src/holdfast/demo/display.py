"""Shows the story as it happens: sentences, and on a terminal also a live table below them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.demo.orders import Picture
from holdfast.domain.job import JobState

_DONE = (JobState.SUCCEEDED, JobState.FAILED, JobState.DEAD, JobState.CANCELED)


@dataclass(slots=True)
class Display:
    """Without a terminal, prints only the sentences."""

    console: Console
    total: int = 0
    now: str = ""
    workers: dict[str, str] = field(default_factory=dict)
    _live: Live | None = None
    _started: float = field(default_factory=time.monotonic)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, sentence: str, style: str = "") -> None:
        """Print a sentence about something that happened; it stays on the screen."""
        moment = Text(f"{time.monotonic() - self._started:4.1f} s  ", style="dim")
        print_hanging(self.console, moment, Text(sentence, style=style))

    def show(self, picture: Picture | None, now: str) -> None:
        """Show what is happening now."""
        self.now = now
        if self._live is not None:
            self._live.update(self._screen(picture))

    def _screen(self, picture: Picture | None) -> RenderableType:
        parts: list[RenderableType] = []
        if picture is not None and picture.jobs:
            parts.append(self._table(picture.by_kind, picture.states))
        for name, status in self.workers.items():
            parts.append(Text.assemble((f" {name}  ", "bold"), status))
        parts.append(Text.assemble((" now  ", "bold cyan"), self.now))
        return Group(*parts)

    def _table(self, by_kind: Mapping[str, Mapping[JobState, int]], states: Mapping[JobState, int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        table.add_column("kind", no_wrap=True)
        for name in ("waiting", "running", "succeeded", "given up"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("done", width=16)
        for kind in sorted(by_kind):
            table.add_row(*_row(kind, by_kind[kind]))
        table.add_section()
        table.add_row(*_row("all", states), style="bold")
        return table


def print_hanging(console: Console, start: Text, text: Text) -> None:
    """Print `start` and `text`, with wrapped lines indented below the text."""
    for number, line in enumerate(text.wrap(console, console.width - len(start))):
        console.print(Text.assemble(start if number == 0 else " " * len(start), line))


def _row(name: str, states: Mapping[JobState, int]) -> tuple[RenderableType, ...]:
    dead_letters = states.get(JobState.FAILED, 0) + states.get(JobState.DEAD, 0)
    done = sum(states.get(state, 0) for state in _DONE)
    return (
        name,
        _number(states.get(JobState.READY, 0), "cyan"),
        _number(states.get(JobState.RUNNING, 0), "yellow"),
        _number(states.get(JobState.SUCCEEDED, 0), "green"),
        _number(dead_letters, "red"),
        ProgressBar(total=max(1, sum(states.values())), completed=done, width=16),
    )


def _number(count: int, style: str) -> Text:
    return Text(str(count), style=style) if count else Text("·", style="dim")
