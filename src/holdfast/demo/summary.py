"""The end of the demo: what happened, what each number means, and what to try next."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from holdfast.demo.checks import Claim
from holdfast.demo.display import print_hanging
from holdfast.demo.orders import Picture
from holdfast.domain.job import JobState

_PROGRAM = """\
from holdfast import Holdfast

app = Holdfast()

@app.handler("hello")
async def hello(job):
    print("hello", job.payload["name"])"""

_COMMANDS = """\
holdfast enqueue --app hello.py hello '{"name": "you"}'
holdfast worker --app hello.py"""


def print_summary(console: Console, picture: Picture, claims: Sequence[Claim], seconds: float) -> bool:
    """Print the summary, and return whether every claim holds."""
    _head(console, f"What happened in these {seconds:.0f} seconds")
    for count, name, meaning in _numbers(picture):
        console.print(Text.assemble((f"  {count:4}  ", "bold"), f"{name:<10}  ", (meaning, "dim")))
    _head(console, "Checked against the database")
    for claim in claims:
        mark = Text("  ok  ", style="green") if claim.holds else Text("  NO  ", style="bold red")
        print_hanging(console, mark, Text(claim.text))
    all_hold = all(claim.holds for claim in claims)
    if all_hold:
        _head(console, "Now try it yourself. Save this as hello.py:")
        _code(console, _PROGRAM)
        console.print(Text("Then enqueue a job and run a worker (Ctrl-C stops it):"))
        _code(console, _COMMANDS)
    else:
        _head(console, "A claim does not hold. This is a bug in Holdfast: please report it.", "bold red")
    return all_hold


def _numbers(picture: Picture) -> Iterator[tuple[int, str, str]]:
    states = picture.states
    failures = [error for errors in picture.errors.values() for error in errors if error["code"] != "LEASE_LOST"]
    dead_letters = [job for job in picture.jobs if job.state.is_dead_letter]
    yield len(picture.jobs), "enqueued", "rows in PostgreSQL, so they survive a crash"
    yield states.get(JobState.SUCCEEDED, 0), "succeeded", "the handler returned, and its success was recorded"
    yield len(failures) - len(dead_letters), "retries", "failed attempts that were retried after a pause"
    yield len(picture.rescued), "rescued", "the killed worker held them; their leases ran out"
    yield states.get(JobState.FAILED, 0), "failed", "a permanent error: retrying would not help"
    yield states.get(JobState.DEAD, 0), "dead", "no attempts left; kept until you retry, cancel or delete it"


def _head(console: Console, text: str, style: str = "bold") -> None:
    console.print()
    console.print(Text(text, style=style))


def _code(console: Console, text: str) -> None:
    console.print()
    for line in text.splitlines():
        console.print(Text(f"    {line}".rstrip(), style="cyan"))
    console.print()
