"""docs/reference.md has every public name, and each with the parameters that the code has."""

import asyncio
import os
import re
import sys
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, HoldfastError, Job, RunningJob, Schedules, Subscriptions
from holdfast.declaring import HandlerOptions
from holdfast.producer.producer import EnqueueOptions, PublishOptions
from holdfast.store.contract import Canceling, JobReader, Retrying, StoreClock
from holdfast.store.schedules import RunStore
from tests.databases import Database

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PARTS: dict[str, type] = {
    "jobs": JobReader,
    "schedules": Schedules,
    "subscriptions": Subscriptions,
    "runs": RunStore,
    "clock": StoreClock,
}


def public(names: Any) -> set[str]:  # noqa: ANN401
    return {name for name in names if not name.startswith("_")}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[str]:
    """The first cell of each row, without the headings."""
    return [row for row in re.findall(r"^\| (.*?) \|", text, re.MULTILINE) if row.startswith("`")]


def written_as(function: Any) -> str:  # noqa: ANN401
    """The parameters as the page has them: their names, and what can be given only by name after a star."""
    first, *parameters = signature(function).parameters.values()
    names = [f"**{each.name}" if each.kind is Parameter.VAR_KEYWORD else each.name for each in parameters]
    starts = [index for index, each in enumerate(parameters) if each.kind is Parameter.KEYWORD_ONLY]
    assert first.name == "self"
    return ", ".join([*names[: starts[0]], "*", *names[starts[0] :]] if starts else names)


def test_every_method_of_an_app_is_there_with_its_parameters() -> None:
    for path, parameters in re.findall(r"^\| `app\.([\w.]+)\((.*?)\)` \|", PAGE, re.MULTILINE):
        name, _, inner = path.partition(".")
        member = getattr(PARTS[name], inner) if inner else getattr(Holdfast, name)
        assert (path, parameters) == (path, written_as(member))
    names = set(re.findall(r"`app\.(\w+)", PAGE))
    assert names == public(dir(Holdfast)) | public(vars(Holdfast("memory:")))


def test_every_member_of_what_an_app_offers_is_there() -> None:
    for name in ("jobs", "schedules", "subscriptions"):
        written = set(re.findall(rf"^\| `app\.{name}\.(\w+)\(", PAGE, re.MULTILINE))
        assert written == public(dir(PARTS[name])), name


def test_the_options_are_those_of_the_code() -> None:
    for what, options in (("a handler", HandlerOptions), ("a job", EnqueueOptions), ("an event", PublishOptions)):
        said = re.search(rf"^Options of {what}: ((?:`\w+`(?:,| and)?\s*)+)", PAGE, re.MULTILINE)
        assert said is not None
        assert re.findall(r"`(\w+)`", said[1]) == list(options.__annotations__), what


def test_every_attribute_of_a_job_is_there() -> None:
    running = re.findall(r"`job\.(\w+)", "\n".join(rows(section("RunningJob"))))
    assert len(running) == len(set(running))
    assert set(running) == public(dir(RunningJob))
    seen = re.findall(r"`(\w+)(?:\(\))?`", "\n".join(rows(section("Job"))))
    assert len(seen) == len(set(seen))
    assert set(seen) == public(dir(Job))


def test_every_exported_name_is_there_once_and_none_else() -> None:
    titles = ("What a handler raises", "Errors", "Other names")
    names = [row.strip("`") for title in titles for row in rows(section(title))]
    assert sorted(names) == sorted(holdfast.__all__)
    for name, parent in re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section("Errors"), re.MULTILINE):
        assert getattr(holdfast, name).__bases__[0].__name__ == parent
    raised = {name for name in holdfast.__all__ if _is_an_error(getattr(holdfast, name))}
    assert raised == {row.strip("`") for title in titles[:2] for row in rows(section(title))}


def _is_an_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, HoldfastError)


def test_every_answer_of_cancel_and_retry_is_explained() -> None:
    for verb, answers in (("cancel", Canceling), ("retry", Retrying)):
        table = section("Look, wait, cancel, retry").split(f"| `{verb}` answers |")[1].split("\n\n")[0]
        assert [row.strip("`") for row in rows(table)] == [answer.value for answer in answers]
        docstring = getattr(Holdfast, verb).__doc__
        assert re.findall(r"`(\w+)`: ", docstring) == [answer.value for answer in answers]


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_example_retries_dead_letters(database: Database) -> None:
    code, _program = CODE
    example: dict[str, Any] = {}
    exec(code.replace("\nasyncio.run(main())\n", ""), example)  # noqa: S102
    app = Holdfast(database.url)

    @app.handler("invoice.send", attempts=1)
    async def send(job: RunningJob[Any]) -> None:
        raise ValueError("not today")

    async with app:
        await app.enqueue("invoice.send")
        await app.tick(runners=["queue"])
        assert await example["retry_dead_letters"](app, "invoice.send") == ["ready"]


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_program_works_until_it_is_told_to_stop(database: Database, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CODE[1], encoding="utf-8")
    environment = {**os.environ, "HOLDFAST_STORE": database.url, "DATABASE_URL": database.url}
    async with Holdfast(database.url) as app:
        enqueued = await app.enqueue("order.ship", {"order": 7})
        program = await asyncio.create_subprocess_exec(
            sys.executable, "program.py", cwd=tmp_path, env=environment, stderr=asyncio.subprocess.PIPE
        )
        try:
            assert (await app.wait(enqueued.id)).state == "succeeded"
            program.terminate()
            _, log = await program.communicate()
        finally:
            if program.returncode is None:
                program.kill()
                await program.wait()
    assert program.returncode == 0
    assert f"INFO {enqueued.id} shipping 7" in log.decode()
    assert "INFO - queue processed 1, failed 0" in log.decode()


def test_the_functions_of_a_program_are_there_with_their_parameters() -> None:
    written = dict(re.findall(r"^\| `(run_\w+)\((.*?)\)` \|", PAGE, re.MULTILINE))
    assert list(written) == ["run_worker", "run_tick"]
    for name, parameters in written.items():
        app, *named = signature(getattr(holdfast, name)).parameters.values()
        assert {each.kind for each in named} == {Parameter.KEYWORD_ONLY}
        assert parameters == ", ".join([app.name, "*", *(each.name for each in named)])
