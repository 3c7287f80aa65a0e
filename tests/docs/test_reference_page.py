"""docs/reference.md lists every public name, with the parameters in the code."""

import asyncio
import os
import re
import sys
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Job, JobState, Permanent, RunningJob, backoff, errors, events, logs, schedules, types
from holdfast.declaring import HandlerOptions
from holdfast.events import Subscriptions
from holdfast.producer.options import EnqueueOptions, PublishOptions
from holdfast.producer.sync import SyncProducer
from holdfast.schedules import Schedules
from holdfast.store.contract import Canceling, Deleting, JobReader, Retrying, StoreClock
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
    "sync": SyncProducer,
}


def public(names: Any) -> set[str]:  # noqa: ANN401
    return {name for name in names if not name.startswith("_")}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[str]:
    """The first cell of each row, without the headings."""
    return [row for row in re.findall(r"^\| (.*?) \|", text, re.MULTILINE) if row.startswith("`")]


def named(parameter: Parameter) -> str:
    """The name, and the default unless the parameter is required."""
    if parameter.default is Parameter.empty:
        return parameter.name
    match parameter.default:
        case str() as text:
            return f'{parameter.name}="{text}"'
        case bool() | None as other:
            return f"{parameter.name}={other}"
        case int() as number:
            return f"{parameter.name}={number:_}"
    raise AssertionError(parameter)


def written_as(function: Any) -> str:  # noqa: ANN401
    """The parameters as the page writes them: names and defaults, with a star before the keyword-only ones."""
    first, *parameters = signature(function).parameters.values()
    stars: dict[object, str] = {Parameter.VAR_KEYWORD: "**", Parameter.VAR_POSITIONAL: "*"}
    names = [f"{stars.get(each.kind, '')}{named(each)}" for each in parameters]
    starts = [index for index, each in enumerate(parameters) if each.kind is Parameter.KEYWORD_ONLY]
    assert first.name == "self"
    return ", ".join([*names[: starts[0]], "*", *names[starts[0] :]] if starts else names)


def test_the_page_lists_every_method_of_an_app_with_its_parameters() -> None:
    for path, parameters in re.findall(r"^\| `app\.([\w.]+)\((.*?)\)` \|", PAGE, re.MULTILINE):
        name, _, inner = path.partition(".")
        member = getattr(PARTS[name], inner) if inner else getattr(Holdfast, name)
        assert (path, parameters) == (path, written_as(member))
    names = set(re.findall(r"`app\.(\w+)", PAGE))
    assert names == public(dir(Holdfast)) | public(vars(Holdfast("memory:")))


def test_the_page_lists_every_member_of_an_apps_attributes() -> None:
    for name in ("jobs", "schedules", "subscriptions", "sync"):
        written = set(re.findall(rf"^\| `app\.{name}\.(\w+)\(", PAGE, re.MULTILINE))
        assert written == public(dir(PARTS[name])), name


def test_the_page_lists_the_options_in_the_code() -> None:
    for what, options in (("a handler", HandlerOptions), ("a job", EnqueueOptions), ("an event", PublishOptions)):
        said = re.search(rf"^Options of {what}: ((?:`\w+`(?:,| and)?\s*)+)", PAGE, re.MULTILINE)
        assert said is not None
        assert re.findall(r"`(\w+)`", said[1]) == list(options.__annotations__), what


def test_the_page_lists_every_attribute_of_a_job() -> None:
    running = re.findall(r"`job\.(\w+)", "\n".join(rows(section("RunningJob"))))
    assert len(running) == len(set(running))
    assert set(running) == public(dir(RunningJob))
    seen = re.findall(r"`(\w+)(?:\(\))?`", "\n".join(rows(section("Job"))))
    assert len(seen) == len(set(seen))
    assert set(seen) == public(dir(Job)) - {"read"}


def exported(module: ModuleType) -> set[str]:
    return set(vars(module)["__all__"])


def test_the_page_lists_every_exported_name_once_and_no_other() -> None:
    titles = ("What a handler raises", "Errors", "Other names")
    names = [row.strip("`") for title in titles for row in rows(section(title))]
    assert sorted(names) == sorted(exported(holdfast) | exported(errors))
    for name, parent in re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section("Errors"), re.MULTILINE):
        assert getattr(errors, name).__bases__[0].__name__ == parent
    assert exported(errors) == {row.strip("`") for title in titles[:2] for row in rows(section(title))}


def test_the_page_lists_every_name_of_a_module_once_and_no_other() -> None:
    written = re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|", section("Names in modules"), re.MULTILINE)
    modules = (backoff, events, logs, schedules, types)
    assert sorted(written) == sorted((name, module.__name__) for module in modules for name in exported(module))


def test_every_answer_of_cancel_retry_and_delete_is_explained() -> None:
    for verb, answers in (("cancel", Canceling), ("retry", Retrying), ("delete", Deleting)):
        table = section("Look, wait, cancel, retry, delete").split(f"| `{verb}` answers |")[1].split("\n\n")[0]
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
    async def send(job: RunningJob[str]) -> None:
        raise Permanent("NO_ADDRESS", "there is none") if job.payload == "failed" else ValueError("not today")

    async with app:
        for state in ("failed", "dead"):
            await app.enqueue("invoice.send", state)
        await app.tick(runners=["queue"])
        assert [(await app.jobs.count())[state] for state in (JobState.FAILED, JobState.DEAD)] == [1, 1]
        assert await example["retry_dead_letters"](app, "invoice.send") == ["ready", "ready"]


@pytest.mark.parametrize("server", ["embedded-18"], indirect=True)
async def test_the_program_works_until_it_is_stopped(database: Database, tmp_path: Path) -> None:
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


def test_the_page_lists_the_functions_for_programs_with_their_parameters() -> None:
    written = dict(re.findall(r"^\| `(run_\w+)\((.*?)\)` \|", PAGE, re.MULTILINE))
    assert list(written) == ["run_worker", "run_tick"]
    for name, parameters in written.items():
        app, *others = signature(getattr(holdfast, name)).parameters.values()
        assert {each.kind for each in others} == {Parameter.KEYWORD_ONLY}
        assert parameters == ", ".join([app.name, "*", *map(named, others)])
