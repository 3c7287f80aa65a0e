"""Every `holdfast …` command that README.md and docs/ show is one that the command line accepts.

The commands are only parsed, not run. Names alone in the text, such as `holdfast jobs retry`, may lack their arguments.
"""

import logging
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.main import get_command

from holdfast.cli import commands
from holdfast_lab.cli.bench import bench
from holdfast_lab.cli.faults import faults

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LABORATORY: dict[str, Callable[..., None]] = {"bench": bench, "faults": faults}
PROMPT = re.compile(r"^(\$ )?(\w+=\S+ )*(python manage\.py )?holdfast (?P<arguments>\S.*)$")
INLINE = re.compile(r"^(\w+=\S+ )*(manage\.py )?holdfast (?P<arguments>\S.*)$", re.DOTALL)


class Shown(NamedTuple):
    page: str
    arguments: list[str]
    is_complete: bool


def shown_in(page: Path) -> Iterator[Shown]:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4}(\S.*)$", prose, re.MULTILINE)
    lines = [line for language, block in blocks if language in ("", "console", "bash") for line in block.splitlines()]
    for line in (*lines, *indented):
        if found := PROMPT.match(line):
            yield Shown(page.name, words(found["arguments"]), is_complete=True)
    for inline in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose):
        if found := INLINE.match(inline):
            arguments = words(found["arguments"])
            yield Shown(page.name, arguments, is_complete=any(word.startswith("-") for word in arguments))
    for arguments in re.findall(r"^ *(?:args|command): *\[holdfast, (.*)\]$", text, re.MULTILINE):
        yield Shown(page.name, [word.strip(" \"'") for word in arguments.split(",")], is_complete=True)


def words(text: str) -> list[str]:
    """The arguments, without redirections, comments and the brackets of a synopsis."""
    synopsis = re.sub(r"\[(--[^\]]*)\]", r"\1", text)
    every = shlex.split(synopsis, comments=True)
    return every[: next((at for at, word in enumerate(every) if word in (">", "|", "&", "&&")), len(every))]


def refusal(arguments: list[str], *, is_complete: bool) -> str | None:
    """Parse like `holdfast`, and return the reason if it refuses the arguments."""
    command: Any = get_command(commands)
    if arguments[0] in LABORATORY:
        laboratory = typer.Typer()
        laboratory.callback()(lambda: None)
        laboratory.command(arguments[0])(LABORATORY[arguments[0]])
        command = get_command(laboratory)
    context: Any = None
    name = "holdfast"
    try:
        while True:
            context = command.make_context(name, list(arguments), parent=context)
            left = [*context._protected_args, *context.args]
            if not left or not hasattr(command, "resolve_command"):
                return None
            name, command, arguments = command.resolve_command(context, left)
    except Exception as error:  # noqa: BLE001
        if not is_complete and type(error).__name__ == "MissingParameter":
            return None
        return getattr(error, "message", None) or repr(error)


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """`--json` makes this logger quieter as soon as it is parsed."""
    logger = logging.getLogger("holdfast.embedded")
    level = logger.level
    yield
    logger.setLevel(level)


SHOWN = sorted({(shown.page, shlex.join(shown.arguments), shown.is_complete) for p in PAGES for shown in shown_in(p)})


@pytest.mark.parametrize(("page", "line", "is_complete"), SHOWN)
def test_a_command_that_a_page_shows_is_accepted(page: str, line: str, is_complete: bool) -> None:
    assert refusal(shlex.split(line), is_complete=is_complete) is None, f"{page}: holdfast {line}"


@pytest.mark.parametrize(
    "line", ["worker shop:app", "jobs lost", "jobs list --colour red", "jobs show", "bench --job 1"]
)
def test_a_wrong_command_is_found(line: str) -> None:
    assert refusal(shlex.split(line), is_complete=True)


def test_commands_of_every_kind_are_found() -> None:
    lines = {line for _, line, _ in SHOWN}
    assert "tick --app tasks:app" in lines, "indented"
    assert "schedules pause monthly" in lines, "console"
    assert "tick --runners maintenance" in lines, "inline"
    assert "migrate --store postgresql://owner@db/shop --grant shop_worker" in lines, "bash"
    assert ("operations.md", "worker --app shop.jobs:app", True) in SHOWN, "yaml"
    assert len(SHOWN) > 60
